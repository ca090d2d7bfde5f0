"""The options for Megatron-LM and NeMo, in the `GPTModel` of a released megatron-core, beside
transformers.
"""

import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ropeconv.features.training.training import baked_output, make_snippet, trainers
from ropeconv.models.open import open_source

from ...conftest import Run
from .test_snippets import settings

pytestmark = pytest.mark.nightly
torch = pytest.importorskip("torch")
rotary = pytest.importorskip("transformers.models.llama.modeling_llama")

PROGRAM = """
import json, sys, torch
from megatron.core import parallel_state
from megatron.core.models.gpt import GPTModel
from megatron.core.models.gpt.gpt_layer_specs import get_gpt_layer_local_spec
from megatron.core.transformer import TransformerConfig

torch.cuda.current_device = lambda: "cpu"
torch.distributed.init_process_group("gloo", init_method=f"file://{sys.argv[1]}", rank=0, world_size=1)
parallel_state.initialize_model_parallel()
for rope in json.load(sys.stdin):
    sizes = dict(num_layers=1, hidden_size=32, num_attention_heads=2, kv_channels=rope.pop("head_dim"))
    config = TransformerConfig(**sizes, use_cpu_initialization=True)
    for name in [name for name in rope if name.startswith("yarn_")]:
        setattr(config, name, rope.pop(name))
    length = rope.pop("seq_length")
    model = GPTModel(config, get_gpt_layer_local_spec(), vocab_size=8, max_sequence_length=length, **rope)
    angles = model.rotary_pos_emb(2)
    angles, factor = angles if isinstance(angles, tuple) else (angles, 1.0)
    print(json.dumps([angles[1, 0, 0].tolist(), factor]))
"""
FLAGS: dict[str, tuple[str, Any]] = {
    "--seq-length": ("seq_length", int),
    "--position-embedding-type": ("position_embedding_type", str),
    "--rotary-base": ("rotary_base", int),
    "--rotary-percent": ("rotary_percent", float),
    "--rotary-seq-len-interpolation-factor": ("seq_len_interpolation_factor", int),
    "--use-rope-scaling": ("rope_scaling", lambda _: True),
    "--rotary-scaling-factor": ("yarn_rotary_scaling_factor", float),
    "--yarn-original-max-position-embeddings": ("yarn_original_max_position_embeddings", int),
    "--yarn-beta-fast": ("yarn_beta_fast", float),
    "--yarn-beta-slow": ("yarn_beta_slow", float),
    "--yarn-correction-range-round-to-int": ("yarn_correction_range_round_to_int", lambda _: True),
    "--no-yarn-correction-range-round-to-int": (
        "yarn_correction_range_round_to_int",
        lambda _: False,
    ),
    "--mscale": ("yarn_mscale", float),
    "--mscale-all-dim": ("yarn_mscale_all_dim", float),
}
"""What `gpt_config_from_args` of core 0.19.1 makes of each flag, in its type of
megatron/training/arguments.py.
"""
METHODS = (
    "--theta 500000",
    "--linear 4",
    "--yarn 4",
    "--yarn 4 --beta-fast 16 --no-truncate --attention-factor 1.3",
    "--by-parts 8 --alpha 1 --beta 4",
)


@dataclass(frozen=True)
class Computed:
    """The frequencies of an output: radians per token, float32 [rotary_dim / 2], and the factor on
    cos and sin.
    """

    inv_freq: np.ndarray
    attention_factor: float


def computed(ropes: list[dict[str, Any]], place: Path) -> list[Computed]:
    """What megatron-core computes. ropes: arguments of its `GPTModel`."""
    words = (
        sys.executable,
        "-m",
        "pip",
        "install",
        "-q",
        "--no-deps",
        "--target",
        place,
        "megatron-core==0.16.1",
    )
    subprocess.run(words, check=True)
    done = subprocess.run(
        (sys.executable, "-W", "ignore", "-c", PROGRAM, place / "rendezvous"),
        input=json.dumps(ropes),
        text=True,
        stdout=subprocess.PIPE,
        check=True,
        env={**os.environ, "PYTHONPATH": str(place)},
    )
    rows = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("[[")]
    return [
        Computed(np.array(angles[: len(angles) // 2], np.float32), factor)
        for angles, factor in rows
    ]


def test_the_options_give_the_frequencies_of_transformers(
    run: Run, llama: Path, tmp_path: Path
) -> None:
    config = json.loads((llama / "config.json").read_text())
    (llama / "config.json").write_text(json.dumps(config | {"max_position_embeddings": 8192}))
    ropes = []
    expected = []
    for number, words in enumerate(METHODS):
        assert run("apply", "model", *words.split(), "-q", "-o", f"out{number}").returncode == 0
        output = baked_output(open_source(str(tmp_path / f"out{number}")))
        embedding = rotary.LlamaRotaryEmbedding(rotary.LlamaConfig.from_pretrained(output.path))
        for name in ("megatron", "nemo"):
            trainer = trainers()[name]
            rope, _ = settings(trainer, make_snippet(trainer, output).text)
            rope = {
                FLAGS[key][0]: FLAGS[key][1](value) for key, value in rope.items() if key in FLAGS
            } or rope
            ropes.append(rope | {"head_dim": output.spec.head_dim})
            expected.append(Computed(embedding.inv_freq.numpy(), embedding.attention_scaling))
    other = ropes[4] | {"yarn_rotary_scaling_factor": 2.0}
    *results, control = computed([*ropes, other], tmp_path / "megatron")
    assert len(results) == 2 * len(METHODS)
    for words, result, reference in zip(np.repeat(METHODS, 2), results, expected, strict=True):
        ulps = 4 if "by-parts" in words else 2
        assert (
            np.abs(result.inv_freq - reference.inv_freq) <= ulps * np.spacing(reference.inv_freq)
        ).all(), words
        assert result.attention_factor == pytest.approx(reference.attention_factor, rel=1e-12), (
            words
        )
    assert not np.allclose(control.inv_freq, expected[4].inv_freq, rtol=1e-2)
