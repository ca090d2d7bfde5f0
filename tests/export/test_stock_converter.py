"""Files of llama.cpp's own converter become checkpoints again.

It is no package: LLAMA_CPP names a folder with llama.cpp's sources, commit 0c1e570, which the sdist of llama-cpp-python
0.3.36 has under vendor/llama.cpp. Without it nothing of this runs.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
import safetensors.torch
import torch

from ropeconv.secrets import without_secrets

from ..support.baking import stored_as
from ..support.extent import sample
from ..support.llamacpp import EXPORTED, checkpoint
from .test_checkpoint import logits, restored

TREE = os.environ.get("LLAMA_CPP", "")
PROGRAM = Path(__file__).with_name("converter_program.py")
Q8_0 = gguf.GGMLQuantizationType.Q8_0

YARN = {
    "rope_type": "yarn", "rope_theta": 10000.0, "factor": 4.0, "beta_fast": 32.0, "beta_slow": 1.0, "mscale": 1.0,
    "mscale_all_dim": 1.0, "original_max_position_embeddings": 16, "llama_4_scaling_beta": 0.1,
}  # fmt: skip
LAYERS = ["sliding_attention"] * 5 + ["full_attention", "sliding_attention"]
SIZES: dict[str, dict[str, Any]] = {
    "phi": {"intermediate_size": 512, "num_key_value_heads": 2},
    "gemma3_text": {"num_hidden_layers": 7, "layer_types": LAYERS},
    "cohere2": {"num_hidden_layers": 4, "layer_types": ["sliding_attention"] * 3 + ["full_attention"]},
    "stablelm": {"qk_layernorm": False},
    "ernie4_5_moe": {"intermediate_size": 64},
    "glm4_moe": {"num_nextn_predict_layers": 0},
    "ministral3": {"rope_parameters": YARN},
}
"""What the converter takes for granted, as it is in published models."""
KEYS: dict[str, dict[str, Any]] = {
    "gpt_neox": {"rotary_pct": 0.5}, "cohere2": {"rotary_pct": 1.0}, "deepseek_v2": {"scoring_func": "softmax"},
    "deepseek_v3": {"scoring_func": "sigmoid"}, "dots1": {"scoring_func": "sigmoid"},
    "minimax_m2": {"scoring_func": "sigmoid"}, "glm": {"layernorm_epsilon": 1.5625e-07},
    "hunyuan_v1_moe": {"num_shared_expert": [1, 1], "moe_topk": [2, 2], "moe_intermediate_size": [96, 96]},
}  # fmt: skip
"""Keys of published configs that the classes of transformers do not write."""


def in_bfloat16(model_type: str, folder: Path) -> tuple[Path, dict[str, torch.Tensor]]:
    """A checkpoint that the converter can read, stored in bfloat16 as published ones are, and its tensors."""
    checkpoint(model_type, folder, **SIZES.get(model_type, {}))
    own = json.loads((folder / "config.json").read_text()) | {"torch_dtype": "bfloat16"}
    (folder / "config.json").write_text(json.dumps(own))
    return folder, stored_as(folder, "bfloat16")


def by_converter(source: Path, outtypes: list[str], tree: str) -> dict[str, Path]:
    """The files that the converter makes of a checkpoint of bfloat16, by type. tree: llama.cpp's sources."""
    text = (source / "config.json").read_text()
    own = json.loads(text)
    (source / "config.json").write_text(json.dumps(own | KEYS.get(own["model_type"], {})))
    command = [sys.executable, str(PROGRAM), tree, str(source), *outtypes]
    done = subprocess.run(command, capture_output=True, text=True, env=without_secrets(), cwd=source.parent)
    assert done.returncode == 0, done.stderr
    (source / "config.json").write_text(text)
    return {outtype: source.with_name(f"{source.name}-{outtype}.gguf") for outtype in outtypes}


def as_q8_0(tensor: torch.Tensor) -> torch.Tensor:
    """What Q8_0 makes of a matrix; F16 where its rows are no whole number of blocks."""
    if tensor.shape[-1] % 32:
        return tensor.half().float()
    return torch.from_numpy(gguf.quants.dequantize(gguf.quants.quantize(tensor.float().numpy(), Q8_0), Q8_0))


def is_same(outtype: str, after: torch.Tensor, before: torch.Tensor) -> bool:
    """Whether a tensor is that of the checkpoint, or what its type in GGUF makes of it, along either dimension."""
    if np.allclose(after.float(), before.float(), rtol=2**-22, atol=0):
        return outtype != "f16" or torch.equal(after.float(), before.float())
    if outtype == "f16":
        return torch.equal(after.float(), before.half().float())
    across = as_q8_0(before.transpose(-1, -2).contiguous()).transpose(-1, -2) if before.ndim > 1 else before
    return outtype == "q8_0" and (torch.equal(after, as_q8_0(before)) or torch.equal(after, across))


@pytest.mark.skipif(not TREE, reason="LLAMA_CPP does not name llama.cpp's sources")
@pytest.mark.parametrize("model_type", sample(EXPORTED, 4))
def test_tensors_and_logits_are_those_of_the_checkpoint(model_type: str, tmp_path: Path) -> None:
    """In F32, F16, BF16 and Q8_0, whose numbers are compared with those of gguf-py's quantiser."""
    source, before = in_bfloat16(model_type, tmp_path / "source")
    own = json.loads((source / "config.json").read_text())
    files = by_converter(source, ["f32", "f16", "bf16", "q8_0"], TREE)
    expected = {name for name in before if name != "lm_head.weight" or own.get("tie_word_embeddings") is not True}
    for outtype, file in files.items():
        back = restored(file, tmp_path / outtype)
        after = safetensors.torch.load_file(back / "model.safetensors")
        assert after.keys() == expected
        split = "kv_b_proj" if outtype == "q8_0" else "no tensor"  # keys and values along different dimensions
        assert not [name for name in after if split not in name and not is_same(outtype, after[name], before[name])]
    assert torch.equal(logits(source), logits(tmp_path / "bf16"))
