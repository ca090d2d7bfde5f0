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
from ropeconv.rope.recipe import Recipe
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
ROTARY_PROGRAM = """
import json, sys, types
from unittest import mock
sys.path.insert(0, sys.argv[1])
import ask_vllm
import torch
import vllm.model_executor.models.mimo_v2 as mimo
import vllm.model_executor.models.qwen3_next as qwen3_next
from vllm.config import VllmConfig, set_current_vllm_config
from vllm.models.deepseek_v41.common.rope import build_deepseek_v4_rope
from vllm.transformers_utils.configs.deepseek_v41 import DeepseekV41Config

class NoKernel(torch.nn.Module):
    def __init__(self, *args, **kwargs):
        super().__init__()

def measure(rotary):
    row = rotary.cos_sin_cache[1].double()
    cos, sin = row.chunk(2)
    return {
        "inv_freq": torch.atan2(sin, cos).tolist(),
        "factor": float((cos**2 + sin**2).sqrt().mean()),
        "half": bool(rotary.is_neox_style),
    }

def deepseek_v41(config):
    config = DeepseekV41Config(**config)
    for ratio in config.compress_ratios:
        yield build_deepseek_v4_rope(
            config,
            head_dim=config.head_dim,
            rope_head_dim=config.qk_rope_head_dim,
            max_position_embeddings=config.max_position_embeddings,
            compress_ratio=ratio,
        )

def mimo_v2(config):
    config = types.SimpleNamespace(**config)
    model = types.SimpleNamespace(hf_text_config=config)
    cache = types.SimpleNamespace(sliding_window=None)
    whole = types.SimpleNamespace(model_config=model, quant_config=None, cache_config=cache)
    for layer in range(config.num_hidden_layers):
        yield mimo.MiMoV2FlashDecoderLayer(whole, f"model.layers.{layer}").self_attn.rotary_emb

def alice_ai(config):
    # vllm/model_executor/models/alice_ai.py:140-150 (0.33.0) sets these, and takes this class
    own = {"attn_output_gate": True, "qkv_bias": False, "is_causal": True}
    config = types.SimpleNamespace(**config, **own, dual_chunk_attention_config=None)
    yield qwen3_next.Qwen3NextAttention(config, prefix="model.layers.3.self_attn").rotary_emb

ask_vllm.prepare()
read = {"deepseek_v41": deepseek_v41, "mimo_v2": mimo_v2, "alice_ai": alice_ai}
kernels = [(mimo, "Attention"), (mimo, "MiMoV2MLP"), (qwen3_next, "Attention")]
for module, name in kernels:
    mock.patch.object(module, name, NoKernel).start()
with set_current_vllm_config(VllmConfig()):
    ask_vllm.start_world(False)
    answers = []
    for config in json.load(sys.stdin):
        answers.append([measure(rotary) for rotary in read[config["model_type"]](config)])
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


def ask_python_of_vllm(program: str, question: list[Any]) -> Any:
    """The answers of a program that is run by the Python with vLLM."""
    python = os.environ.get("ROPECONV_VLLM_PYTHON")
    if not python:
        pytest.skip("vLLM is not installed; name the Python that has it in ROPECONV_VLLM_PYTHON")
    done = subprocess.run(
        [python, "-c", program, str(PROGRAMS)],
        input=json.dumps(question),
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert "ANSWERS" in done.stdout, done.stderr[-2000:]
    return json.loads(done.stdout.split("ANSWERS")[1])


def test_vllm_computes_the_same_before_and_after_a_bake(tmp_path: Path) -> None:
    questions = []
    for name, config in MODELS.items():
        questions.append({"config": config, "trained": 32768, "context": 32768})
        path = tmp_path / f"{name}.json"
        path.write_text(json.dumps(config))
        plan = make_plan(path, recipe_of("yarn", 4.0))
        baked = plan.result.config
        questions.append({"config": baked, "trained": 32768, "context": 131072})
    answers = ask_python_of_vllm(PROGRAM, questions)

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


# Classes whose kernels need a GPU: their rotary embeddings alone

MIMO_V2: dict[str, Any] = {
    **SIZES,
    "model_type": "mimo_v2",
    "num_hidden_layers": 4,
    "max_position_embeddings": 1048576,
    "head_dim": 192,
    "v_head_dim": 192,
    "swa_num_attention_heads": 4,
    "swa_num_key_value_heads": 2,
    "swa_head_dim": 192,
    "partial_rotary_factor": 0.334,
    "rope_theta": 10000000,
    "swa_rope_theta": 10000,
    "sliding_window": 128,
    "sliding_window_size": 128,
    "hybrid_layer_pattern": [0, 1, 1, 0],
    "attention_bias": False,
    "layernorm_epsilon": 1e-6,
    "moe_layer_freq": [0, 0, 0, 0],
}
"""The RoPE keys of MiMo V2.6 Pro, with four small layers."""
ALICE_AI: dict[str, Any] = {
    **SIZES,
    "model_type": "alice_ai",
    "num_hidden_layers": 8,
    "max_position_embeddings": 262144,
    "head_dim": 256,
    "full_attention_interval": 4,
    "rope_parameters": {
        "rope_type": "default",
        "rope_theta": 1000000.0,
        "partial_rotary_factor": 0.25,
    },
}
DEEPSEEK_V41: dict[str, Any] = {
    "model_type": "deepseek_v41",
    "text_config": {
        "model_type": "deepseek_v41_text",
        "hidden_size": 5120,
        "num_hidden_layers": 4,
        "num_attention_heads": 64,
        "num_key_value_heads": 1,
        "head_dim": 512,
        "qk_rope_head_dim": 64,
        "max_position_embeddings": 1048576,
        "rope_theta": 10000,
        "rope_scaling": {
            "rope_type": "yarn",
            "factor": 16,
            "beta_fast": 32,
            "beta_slow": 1,
            "original_max_position_embeddings": 65536,
        },
        "sliding_window": 128,
        "compress_ratios": [0, 2, 1, 0],
        "compress_rope_theta": 160000,
    },
    "vision_config": {"model_type": "deepseek_v41_vision", "rope_theta": 10000},
}


def yarn(size: int, base: float, factor: float, original: int) -> np.ndarray[Any, Any]:
    """The frequencies of YaRN with its usual ramp, between whole dimensions."""
    ends = [
        size * np.log(original / (2 * np.pi * beta)) / (2 * np.log(base)) for beta in (32.0, 1.0)
    ]
    low = max(np.floor(ends[0]), 0)
    high = min(np.ceil(ends[1]), size - 1)
    ramp = np.clip((np.arange(size // 2) - low) / (high - low), 0, 1)
    return plain(size, base) * (1 - ramp + ramp / factor)


def bake(config: dict[str, Any], folder: Path, recipe: Recipe) -> Any:
    path = folder / "config.json"
    path.write_text(json.dumps(config))
    return make_plan(path, recipe, allow_untested=True)


def test_mimo_v2_lists_its_layers_and_bases() -> None:
    spec = read_spec(MIMO_V2, detect(MIMO_V2))
    assert spec.layers == ("global", "local", "local", "global")
    assert spec.windows == (None, 128, 128, None)
    assert spec.rotary_dim == 64
    np.testing.assert_allclose(spec.current().inv_freq, plain(64, 1e7), rtol=1e-12)
    assert spec.local_inv_freq is not None
    np.testing.assert_allclose(spec.local_inv_freq, plain(64, 1e4), rtol=1e-12)


def test_alice_rotates_a_quarter_of_the_head_in_every_fourth_layer() -> None:
    spec = read_spec(ALICE_AI, detect(ALICE_AI))
    assert spec.layers == (("none",) * 3 + ("global",)) * 2
    assert (spec.rotary_dim, spec.layout) == (64, "half")
    np.testing.assert_allclose(spec.current().inv_freq, plain(64, 1e6), rtol=1e-12)


def test_deepseek_v41_scales_the_layers_that_compress_keys(tmp_path: Path) -> None:
    """A ratio of 1 counts as one, and no layer has an attention factor."""
    spec = read_spec(DEEPSEEK_V41, detect(DEEPSEEK_V41))
    assert spec.layers == ("local", "global", "global", "local")
    assert (spec.rotary_dim, spec.layout, spec.attention_factor) == (64, "interleaved", 1.0)
    expected = yarn(64, 160000.0, 16, 65536)
    np.testing.assert_allclose(spec.current().inv_freq, expected, rtol=1e-12)
    plan = bake(DEEPSEEK_V41, tmp_path, recipe_of("yarn", 2.0, on_top=True))
    doubled = yarn(64, 160000.0, 32, 65536)
    np.testing.assert_allclose(plan.schedule.inv_freq, doubled, rtol=1e-12)
    assert plan.schedule.attention_factor == 1.0


def test_vllm_builds_these_rotary_embeddings_before_and_after_a_bake(tmp_path: Path) -> None:
    plans = {
        "mimo_v2": bake(MIMO_V2, tmp_path, recipe_of("theta", 4e7, context=2097152)),
        "alice_ai": bake(ALICE_AI, tmp_path, recipe_of("yarn", 4.0)),
        "deepseek_v41": bake(DEEPSEEK_V41, tmp_path, recipe_of("yarn", 2.0, on_top=True)),
    }
    question = [MIMO_V2, ALICE_AI, DEEPSEEK_V41]
    question += [plan.result.config for plan in plans.values()]
    mimo, alice, deepseek, *baked = ask_python_of_vllm(ROTARY_PROGRAM, question)

    globals_of_mimo = [mimo[0], mimo[3]]
    for rotary, base in ((mimo[0], 1e7), (mimo[1], 1e4), (mimo[2], 1e4), (mimo[3], 1e7)):
        np.testing.assert_allclose(rotary["inv_freq"], plain(64, base), rtol=2e-6)
    np.testing.assert_allclose(alice[0]["inv_freq"], plain(64, 1e6), rtol=2e-6)
    scaled = yarn(64, 160000.0, 16, 65536)
    for rotary, expected in zip(
        deepseek, (plain(64, 1e4), scaled, scaled, plain(64, 1e4)), strict=True
    ):
        np.testing.assert_allclose(rotary["inv_freq"], expected, rtol=2e-6)
        assert rotary["factor"] == pytest.approx(1, abs=1e-6)
    assert not any(rotary["half"] for rotary in deepseek)
    assert all(rotary["half"] for rotary in (*globals_of_mimo, *alice))

    # after the bake: the schedules, and the layers beside them as they were
    for rotary, name in ((baked[0][0], "mimo_v2"), (baked[1][0], "alice_ai")):
        schedule = plans[name].schedule
        np.testing.assert_allclose(rotary["inv_freq"], schedule.inv_freq, rtol=2e-6)
        assert rotary["factor"] == pytest.approx(schedule.attention_factor, rel=1e-6)
    assert baked[0][1] == mimo[1]
    doubled = yarn(64, 160000.0, 32, 65536)
    for layer in (1, 2):
        np.testing.assert_allclose(baked[2][layer]["inv_freq"], doubled, rtol=2e-6)
        assert baked[2][layer]["factor"] == pytest.approx(1, abs=1e-6)
    assert baked[2][0] == deepseek[0]
    assert not np.allclose(doubled, scaled, rtol=1e-3)


# Read only: no runtime here has its class

GIGACHAT: dict[str, Any] = {
    "model_type": "gigachat3_5",
    "hidden_size": 7168,
    "num_hidden_layers": 8,
    "num_attention_heads": 64,
    "kv_lora_rank": 512,
    "q_lora_rank": 1536,
    "qk_rope_head_dim": 64,
    "qk_nope_head_dim": 128,
    "v_head_dim": 128,
    "max_position_embeddings": 131072,
    "rope_theta": 100000.0,
    "rope_scaling": None,
    "full_attention_layers": [3, 7],
    "linear_attention_type": "Qwen3NextGatedDeltaNet",
}


@pytest.mark.parametrize(
    ("changes", "rotating"),
    [
        ({}, [3, 7]),
        ({"full_attention_layers": None, "layer_types": ["full_attention"] * 8}, list(range(8))),
        ({"linear_attention_type": None}, list(range(8))),
    ],
)
def test_gigachat_numbers_the_layers_that_rotate(
    changes: dict[str, Any], rotating: list[int]
) -> None:
    config = {**GIGACHAT, **changes}
    spec = read_spec(config, detect(config))
    assert [layer for layer, kind in enumerate(spec.layers) if kind == "global"] == rotating
    assert (spec.rotary_dim, spec.layout, spec.mla) == (64, "interleaved", True)
    np.testing.assert_allclose(spec.current().inv_freq, plain(64, 1e5), rtol=1e-12)


def test_gigachat_with_other_pairs_is_refused() -> None:
    with pytest.raises(BadSource, match="rope_interleave"):
        detect({**GIGACHAT, "rope_interleave": False})


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
