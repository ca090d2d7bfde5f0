"""Families whose class only vLLM has, beside what its own model computes from a config.

ROPECONV_VLLM_PYTHON names the Python of an environment with vLLM 0.32 or newer. The model is built
without weights, as `ropeconv probe vllm` does; the config class, which the checkpoints of these
models bring as code, is one that keeps every key.
"""

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ropeconv.bake.overrides import override_commands
from ropeconv.engines.probes.installed import find_installed
from ropeconv.errors import BadSource
from ropeconv.models.config import detect
from ropeconv.runtimes.read_config import read_spec

from ..conftest import DATA
from ..support.baking import make_plan, recipe_of

PROGRAMS = Path(__file__).parents[2] / "ropeconv" / "engines" / "probes" / "programs"
PROGRAM = """
import json, sys
sys.path.insert(0, sys.argv[1])
import ask_vllm
from transformers import AutoConfig, PretrainedConfig

def config_class(name):
    class Own(PretrainedConfig):
        model_type = name

        def __init__(self, **settings):
            for key, value in settings.items():  # the base class comes last, as in published ones
                if key not in ("rope_parameters", "rope_scaling", "architectures", "model_type"):
                    setattr(self, key, value)
            super().__init__(**settings)

    return Own

ask_vllm.prepare()
answers = []
for question in json.load(sys.stdin):
    config = question["config"]
    name = config["model_type"]
    AutoConfig.register(name, config_class(name), exist_ok=True)
    answers.append(ask_vllm.ask(config, question))
print("ANSWERS" + json.dumps(answers))
"""
SIZES = {
    "hidden_size": 256,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "num_hidden_layers": 3,
    "intermediate_size": 128,
    "max_position_embeddings": 32768,
    "vocab_size": 512,
    "rms_norm_eps": 1e-6,
    "hidden_act": "silu",
    "tie_word_embeddings": False,
}
EXPERTS = {
    "num_experts": 4,
    "num_experts_per_tok": 2,
    "num_shared_experts": 1,
    "moe_intermediate_size": 64,
    "first_k_dense_replace": 3,
    "norm_topk_prob": True,
    "use_bias": False,
    "use_qkv_bias": False,
    "norm_head": False,
    "embedding_dropout": 0.0,
    "output_dropout": 0.0,
    "output_router_logits": False,
    "score_function": "softmax",
    "n_group": 1,
    "topk_group": 1,
    "routed_scaling_factor": 1.0,
    "router_dtype": "fp32",
    "moe_router_enable_expert_bias": False,
}
# the RoPE keys of published configs, in models of small sizes
MODELS: dict[str, dict[str, Any]] = {
    "Ling 2.0": {
        **SIZES,
        **EXPERTS,
        "architectures": ["BailingMoeV2ForCausalLM"],
        "model_type": "bailing_moe",
        "head_dim": 128,
        "rope_theta": 600000,
        "partial_rotary_factor": 0.5,
        "use_qk_norm": True,
        "use_rmsnorm": True,
    },
    "Ling 1.5": {
        **SIZES,
        **EXPERTS,
        "architectures": ["BailingMoeForCausalLM"],
        "model_type": "bailing_moe",
        "head_dim": None,
        "rope_theta": 600000,
        "rope_scaling": None,
    },
    "MiMo 7B": {
        **SIZES,
        "architectures": ["MiMoForCausalLM"],
        "model_type": "mimo",
        "head_dim": 64,
        "rope_theta": 640000,
        "use_sliding_window": False,
        "num_nextn_predict_layers": 1,
    },
}
ROTATED = {"Ling 2.0": (64, 600000.0), "Ling 1.5": (64, 600000.0), "MiMo 7B": (64, 640000.0)}
"""The dimensions that rotate, and the base: 0.5 of 128, and twice all of 256 / 4."""


def plain(size: int, base: float) -> np.ndarray[Any, Any]:
    return np.asarray(base ** (-np.arange(0, size, 2) / size))


@pytest.mark.parametrize("name", MODELS)
def test_the_spec_is_what_the_published_keys_say(name: str) -> None:
    config = MODELS[name]
    spec = read_spec(config, detect(config))
    size, base = ROTATED[name]
    assert (spec.rotary_dim, spec.layout, spec.layers) == (size, "half", ("global",) * 3)
    np.testing.assert_allclose(spec.current().inv_freq, plain(size, base), rtol=1e-12)


def test_vllm_computes_the_same_before_and_after_a_bake(tmp_path: Path) -> None:
    python = os.environ.get("ROPECONV_VLLM_PYTHON")
    if not python:
        pytest.skip("vLLM is not installed; name the Python that has it in ROPECONV_VLLM_PYTHON")
    questions = []
    for name, config in MODELS.items():
        questions.append({"config": config, "trained": 32768, "context": 32768})
        path = tmp_path / f"{name}.json"
        path.write_text(json.dumps(config))
        plan = make_plan(path, recipe_of("yarn", 4.0))
        baked = plan.result.config
        questions.append({"config": baked, "trained": 32768, "context": 131072})
    done = subprocess.run(
        [python, "-c", PROGRAM, str(PROGRAMS)],
        input=json.dumps(questions),
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert "ANSWERS" in done.stdout, done.stderr[-2000:]
    answers = json.loads(done.stdout.split("ANSWERS")[1])

    for index, name in enumerate(MODELS):
        size, base = ROTATED[name]
        before, after = answers[2 * index : 2 * index + 2]
        assert before["layers"] == [0, 0, 0], before
        (rope,) = before["ropes"]
        np.testing.assert_allclose(rope["inv_freq"], plain(size, base), rtol=1e-6)
        assert rope["attention_factor"] == pytest.approx(1)

        # YaRN in its own words: the ramp from 32 to 1 rotations in 32,768 tokens
        rotations = 32768 * plain(size, base) / (2 * np.pi)
        (rope,) = after["ropes"]
        ratio = plain(size, base) / np.asarray(rope["inv_freq"])
        assert ratio[rotations > 40] == pytest.approx(1, rel=1e-6)
        assert ratio[rotations < 0.8] == pytest.approx(4, rel=1e-5)
        assert rope["attention_factor"] == pytest.approx(0.1 * np.log(4) + 1, rel=1e-5)


@pytest.mark.parametrize("name", MODELS)
def test_vllm_starts_them_only_with_their_own_config_class(name: str, tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    path.write_text(json.dumps({**MODELS[name], "auto_map": {"AutoConfig": "configuration.Own"}}))
    plan = make_plan(path, recipe_of("yarn", 4.0), runtimes=("vllm",))
    newest = [verdict for verdict in plan.result.verdicts if verdict.runtime.startswith("vllm@")][
        -1
    ]
    assert (newest.status, newest.options) == ("exact", "--trust-remote-code")
    assert "--trust-remote-code" in override_commands(plan, "{}")[0]


def test_the_probe_of_vllm_says_so(tmp_path: Path) -> None:
    """With auto_map it would run the code, and without it there is no config class."""
    found = find_installed("vllm", os.environ.get("ROPECONV_VLLM_PYTHON", ""))
    if found is None:
        pytest.skip("vLLM is not installed; name the Python that has it in ROPECONV_VLLM_PYTHON")
    config = {**MODELS["MiMo 7B"], "auto_map": {"AutoConfig": "configuration_mimo.MiMoConfig"}}
    with_code = found.ask(config, 32768, 65536)
    without = found.ask(MODELS["MiMo 7B"], 32768, 65536)
    unknown = found.ask(
        {**MODELS["MiMo 7B"], "model_type": "other", "architectures": ["Other"]}, 8, 8
    )
    found.stop()
    assert "--trust-remote-code" in with_code.unseen
    assert "--trust-remote-code" in without.absent
    assert "--trust-remote-code" not in unknown.absent + unknown.unseen + unknown.error


def test_mimo_v2_lists_its_layers_and_bases() -> None:
    """The keys of MiMo V2.6 Pro, with two of its layers."""
    config = {
        "model_type": "mimo_v2",
        "hidden_size": 6144,
        "num_hidden_layers": 4,
        "max_position_embeddings": 1048576,
        "num_attention_heads": 128,
        "num_key_value_heads": 8,
        "head_dim": 192,
        "swa_num_key_value_heads": 8,
        "swa_head_dim": 192,
        "partial_rotary_factor": 0.334,
        "rope_theta": 10000000,
        "swa_rope_theta": 10000,
        "sliding_window": 128,
        "hybrid_layer_pattern": [0, 1, 1, 0],
    }
    spec = read_spec(config, detect(config))
    assert spec.layers == ("global", "local", "local", "global")
    assert spec.windows == (None, 128, 128, None)
    assert spec.rotary_dim == 64
    np.testing.assert_allclose(spec.current().inv_freq, plain(64, 1e7), rtol=1e-12)
    assert spec.local_inv_freq is not None
    np.testing.assert_allclose(spec.local_inv_freq, plain(64, 1e4), rtol=1e-12)


def test_ling_3_vl_rotates_in_every_sixth_layer_and_behind_the_last_group() -> None:
    entries = json.loads((DATA / "published_ropes.json").read_text())
    (config,) = [
        entry["config"] for entry in entries if entry["config"]["model_type"] == "bailing_moe_v3_vl"
    ]
    spec = read_spec(config, detect(config))
    rotating = [layer for layer, kind in enumerate(spec.layers) if kind == "global"]
    assert rotating == [5, 11, 17, 23, 29, 35, 41]
    assert (spec.rotary_dim, spec.layout, spec.mla) == (64, "interleaved", True)

    shorter = {**config, "text_config": {**config["text_config"], "num_hidden_layers": 8}}
    shorter["text_config"]["layer_group_size"] = 3
    spec = read_spec(shorter, detect(shorter))
    assert [layer for layer, kind in enumerate(spec.layers) if kind == "global"] == [2, 5, 6, 7]


def test_ling_2_5_has_the_type_of_ling_3_and_is_refused() -> None:
    config = {
        "model_type": "bailing_hybrid",
        "hidden_size": 2048,
        "num_hidden_layers": 20,
        "num_attention_heads": 16,
        "max_position_embeddings": 131072,
        "qk_rope_head_dim": 64,
    }
    assert detect(config).name == "bailing_hybrid"
    with pytest.raises(BadSource, match=r"Ling 2\.5"):
        detect({**config, "architectures": ["BailingMoeV2_5ForCausalLM"]})


@pytest.mark.parametrize("family", ["", "llama"])
def test_a_model_around_a_text_model_that_is_not_there_gets_no_hint(family: str) -> None:
    flat = {"model_type": "llava", "hidden_size": 4096, "num_attention_heads": 32}
    with pytest.raises(BadSource, match="reads a text model from text_config"):
        detect(flat, family)
    text = {"model_type": "llama", "hidden_size": 4096, "max_position_embeddings": 4096}
    assert detect({"model_type": "llava", "text_config": text}, family).name == "llama"
