"""What a plan says of its source: few warnings, repairs, and what it takes over, with the numbers
of the source.
"""

import json
import math
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ropeconv.bake.plan import Plan
from ropeconv.bake.warnings import cannot_gain, repairs
from ropeconv.errors import UnsupportedBake
from ropeconv.inspection.document import describe_layers, layer_groups
from ropeconv.inspection.inspection import ConfigInspection, inspect_source
from ropeconv.models.open import open_source
from ropeconv.models.schema import DUAL_CHUNK
from ropeconv.models.source import Source
from ropeconv.rope.forms import Plain
from ropeconv.rope.spec import RopeSpec
from ropeconv.runtimes.runtime import find, newest

from ..conftest import CONFIGS
from ..support.baking import YARN, apply, inspected, make_plan, recipe_of, validate, write_config
from ..support.corruptions import edit
from ..support.models import TRAINED

MORE = CONFIGS.parent / "more_configs"
MISTRAL = CONFIGS / "mistralai--Mistral-7B-v0.1.json"


def warned(
    path: Path, method: str, *values: Any, replace: bool = False, **modifiers: Any
) -> tuple[str, ...]:
    recipe = recipe_of(method, *values, **modifiers)
    return make_plan(path, recipe, replace=replace).warnings


def known(warnings: tuple[str, ...]) -> list[str]:
    """Those that say more than that too few questions were asked, as of YaRN at 4 times."""
    return [warning for warning in warnings if "is not decided" not in warning]


@pytest.mark.parametrize(
    "name",
    [
        "meta-llama--Llama-2-7b-hf",
        "Qwen--Qwen3-8B",
        "google--gemma-2-9b",
        "tiiuae--falcon-40b",
    ],
)
def test_an_extension_of_a_common_model_has_no_warnings(name: str) -> None:
    assert known(warned(CONFIGS / f"{name}.json", "yarn", 4.0)) == []


def test_a_trained_scaling_that_becomes_wider_is_to_be_trained() -> None:
    """gpt-oss was trained with its scaling, and nobody has measured it beyond that."""
    (warning,) = warned(CONFIGS / "openai--gpt-oss-20b.json", "yarn", 2.0, on_top=True)
    assert "Fine-tune" in warning


@pytest.mark.parametrize(
    ("path", "message"),
    [
        (
            MORE / "CohereForAI--c4ai-command-r7b-12-2024.json",
            "the 24 layers that rotate see 4,096 tokens",
        ),
        (MISTRAL, "every layer that rotates sees only 4,096 tokens"),
    ],
)
def test_layers_that_cannot_gain_come_first_and_only_of_an_extension(
    path: Path, message: str
) -> None:
    assert message in warned(path, "yarn", 4.0)[0]
    assert not any(message in warning for warning in warned(path, "as-is"))


def test_a_doubt_about_the_trained_context_is_said() -> None:
    (warning,) = known(warned(CONFIGS / "Qwen--Qwen2-7B.json", "yarn", 4.0))
    assert "32,768" in warning
    assert "--original-context 32768" in warning


def test_code_of_the_checkpoint_is_said_last() -> None:
    warnings = warned(CONFIGS / "MiniMaxAI--MiniMax-M2.5.json", "yarn", 4.0)
    assert warnings[-1].startswith("its auto_map names")


# What `inspect` offers where a runtime does not compute a checkpoint as it is


SIZES: dict[str, Any] = {
    "hidden_size": 4096,
    "num_attention_heads": 32,
    "num_hidden_layers": 4,
    "head_dim": 128,
    "rope_theta": 1e6,
    "max_position_embeddings": 131072,
}
SCALING = {
    "rope_type": "yarn",
    "type": "yarn",
    "factor": 4.0,
    "original_max_position_embeddings": 32768,
}


def offered(tmp_path: Path, config: dict[str, Any]) -> dict[str, tuple[str, str]]:
    """The message and the flags by the runtime that the flags name, or by the first word of the
    message.
    """
    (tmp_path / "config.json").write_text(json.dumps({**SIZES, **config}))
    source = open_source(str(tmp_path / "config.json"))
    inspection = inspect_source(source)
    assert isinstance(source, Source)
    assert isinstance(inspection, ConfigInspection)
    fixes = repairs(source, inspection)  # the table of `inspect` has the others
    return {
        (fix.repair.split("--runtime ")[-1] or fix.message.split()[0]): (fix.message, fix.repair)
        for fix in fixes
    }


NEW_SCHEMA = {"rope_theta": None, "rope_parameters": {**SCALING, "rope_theta": 1e6}}
LINEAR = {"rope_type": "linear", "factor": 4.0}


@pytest.mark.parametrize(
    ("config", "runtime", "words", "repair"),
    [
        (
            {"model_type": "llama", **NEW_SCHEMA},
            "mlx-lm",
            "mlx-lm 0.32.1-0.32.2: differs",
            "--as-is",
        ),
    ],
)
def test_a_runtime_gets_a_recipe_that_it_reads(
    tmp_path: Path, config: dict[str, Any], runtime: str, words: str, repair: str
) -> None:
    message, flags = offered(tmp_path, config)[runtime]
    assert words in message
    assert flags == f"{repair} --runtime {runtime}"


@pytest.mark.parametrize(
    ("model_type", "runtime"), [("qwen3_moe", "mlx-lm"), ("qwen2_vl", "mlx-vlm")]
)
def test_another_method_is_offered_only_for_weights_that_were_trained_without_scaling(
    model_type: str, runtime: str, tmp_path: Path
) -> None:
    """mlx-lm's file for Qwen 3 MoE reads only the base, which NTK changes; the receipt knows what
    was trained.
    """
    scaling = SCALING if model_type == "qwen3_moe" else LINEAR
    assert runtime not in offered(tmp_path, {"model_type": model_type, "rope_scaling": scaling})
    plain = SIZES | {"model_type": model_type, "max_position_embeddings": 32768}
    (tmp_path / "config.json").write_text(json.dumps(plain))
    recipe = recipe_of("yarn" if model_type == "qwen3_moe" else "linear", 4.0)
    out = apply(make_plan(tmp_path / "config.json", recipe, tmp_path / "out"))
    source = open_source(str(out / "config.json" if not (out / "ropeconv.json").is_file() else out))
    assert isinstance(source, Source)
    fixes = {fix.repair for fix in repairs(source, inspect_source(source))}
    assert f"--ntk 4 --replace --runtime {runtime}" in fixes


@pytest.mark.parametrize(
    ("method", "words"),
    [
        ("yarn", "it computes YaRN's ramp over 4 times the trained length"),
        ("linear", "a class that is not M-RoPE"),
    ],
)
def test_m_rope_in_vllm_is_refused_with_the_reason(method: str, words: str) -> None:
    """In a version for which no option of the server was run, and in the usual encoding."""
    config = CONFIGS / "Qwen--Qwen2.5-VL-7B-Instruct.json"
    with pytest.raises(UnsupportedBake, match=words) as refusal:
        make_plan(config, recipe_of(method, 4.0), runtimes=("vllm@0.32",), encoding="native")
    assert "(--ntk 4)" in str(refusal.value)
    base = make_plan(config, recipe_of("ntk", 4.0), runtimes=("vllm@0.32",))
    assert base.result.verdict_of(newest("vllm")).status == "exact"


def test_m_rope_in_vllm_takes_an_option_or_another_encoding() -> None:
    config = CONFIGS / "Qwen--Qwen2.5-VL-7B-Instruct.json"
    yarn = make_plan(config, recipe_of("yarn", 4.0), runtimes=("vllm",))
    verdict = yarn.result.verdict_of(newest("vllm"))
    assert verdict.status == "exact"
    assert "beta_fast" in verdict.options

    # as YaRN whose ramp ends before the first pair, which vLLM has for M-RoPE
    linear = make_plan(config, recipe_of("linear", 4.0), runtimes=("vllm",))
    verdict = linear.result.verdict_of(newest("vllm"))
    assert (verdict.status, verdict.options, linear.result.encoding) == ("exact", "", "ramp")


# What a plan takes over from its source is said in one line, with the numbers that the model's own
# class computes


YARN_80 = recipe_of("yarn", 80.0)
DEEPSEEK_V3, MINISTRAL = "deepseek-ai--DeepSeek-V3", "mistralai--Ministral-3-3B-2512"
# name, model_type at the top, mscale, mscale_all_dim
PUBLISHED = [
    ("deepseek-ai--DeepSeek-V2-Lite", "deepseek_v2", 0.707, 0.707),
    (DEEPSEEK_V3, "deepseek_v3", 1.0, 1.0),
    (
        MINISTRAL,
        "mistral3",
        1.0,
        1.0,
    ),  # as published; the transcribed file has the type of the text model there
]
SENTENCE = re.compile(
    r"mscale (\S+) and mscale_all_dim (\S+) are the model's own: attention_factor ([\d.]+)(?:,"
    r" softmax_scale ([\d.]+))?"
)


def said(plan: Plan) -> list[tuple[float, float, float, float]]:
    """The numbers of every such sentence: the pair, the attention factor, the softmax scale."""
    matches = [match for match in map(SENTENCE.fullmatch, plan.notes) if match]
    return [(float(m[1]), float(m[2]), float(m[3]), float(m[4] or 1)) for m in matches]


def published(name: str, model_type: str, folder: Path) -> Path:
    config = json.loads((CONFIGS / f"{name}.json").read_text())
    config["model_type"] = model_type
    (folder / "config.json").write_text(json.dumps(config))
    return folder / "config.json"


def computed(folder: Path) -> tuple[float, float]:
    """Attention factor and softmax scale that the installed transformers computes from a config."""
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM
    from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

    config: Any = AutoConfig.from_pretrained(folder).get_text_config()
    config.num_hidden_layers = 1
    _, attention_factor = ROPE_INIT_FUNCTIONS["yarn"](config)
    with torch.device("meta"):
        attention = AutoModelForCausalLM.from_config(config).model.layers[0].self_attn
    width = getattr(attention, "qk_head_dim", None) or attention.head_dim
    return attention_factor, attention.scaling * math.sqrt(width)


@pytest.mark.parametrize(("name", "model_type", "mscale", "everywhere"), PUBLISHED)
def test_a_published_pair(
    name: str, model_type: str, mscale: float, everywhere: float, tmp_path: Path
) -> None:
    plan = make_plan(published(name, model_type, tmp_path), YARN_80, replace=True)
    (tmp_path / "out").mkdir()
    write_config(plan, tmp_path / "out")
    expected = (mscale, everywhere, *computed(tmp_path / "out"))
    assert said(plan) == [pytest.approx(expected, rel=1e-4)]
    assert (expected[3] > 1.2) == (model_type != "mistral3")


def test_what_is_not_inherited_is_not_said() -> None:
    recipe = recipe_of("yarn", 80.0, 32.0, 1.0, True, 1.0, 1.0)
    assert said(make_plan(CONFIGS / f"{DEEPSEEK_V3}.json", recipe, replace=True)) == []


# Checkpoints with dual_chunk_attention_config, which some runtimes compute in place of a method:
# Qwen2.5-1M


CHUNKS = {"chunk_size": 32, "local_size": 8, "original_max_position_embeddings": TRAINED // 2}


@pytest.fixture
def chunked(tiny: Callable[[str], Path], tmp_path: Path) -> Path:
    """A tiny Qwen 2 as Qwen2.5-1M is published."""
    folder = tmp_path / "chunked"
    shutil.copytree(tiny("qwen2"), folder)
    edit(folder, "config.json", lambda config: config.update({DUAL_CHUNK: CHUNKS}))
    return folder


def planned(folder: Path, **options: Any) -> Any:
    return make_plan(folder, YARN, **options)


@pytest.mark.parametrize("choice", [None, "keep"])
@pytest.mark.parametrize("runtime", ["vllm", "sglang"])
def test_a_runtime_that_ignores_the_method_is_refused(
    chunked: Path, runtime: str, choice: str | None
) -> None:
    with pytest.raises(UnsupportedBake, match=f"{DUAL_CHUNK}.*pass --dual-chunk drop"):
        planned(chunked, runtimes=(runtime,), dual_chunk=choice)
    assert (
        planned(chunked, runtimes=(runtime,), dual_chunk="drop")
        .result.verdict_of(find(runtime)[-1])
        .status
        == "exact"
    )


def test_it_is_said_until_it_is_chosen(chunked: Path) -> None:
    inspection = inspected(chunked)
    message = next(
        problem.message for problem in inspection.problems if problem.code == "dual-chunk"
    )
    assert all(name in message for name in ("ignored by transformers", "vLLM", "SGLang"))
    assert inspection.spec.original_context == TRAINED // 2
    plans = {choice: planned(chunked, dual_chunk=choice) for choice in (None, "keep", "drop")}
    assert [message in plan.warnings for plan in plans.values()] == [True, False, False]
    assert [DUAL_CHUNK in plan.result.config for plan in plans.values()] == [True, True, False]
    assert plans["keep"].result.verdict_of(find("vllm")[-1]).status == "refused"


@pytest.mark.parametrize(("choice", "is_said"), [("keep", True), ("drop", False)])
def test_a_validation_says_that_no_comparison_computes_it(
    chunked: Path, choice: str, is_said: bool, tmp_path: Path
) -> None:
    result = validate(
        apply(make_plan(chunked, YARN, tmp_path / "baked", dual_chunk=choice)), chunked
    )
    assert (result.agrees, f"does not compute {DUAL_CHUNK}" in result.sentence) == (True, is_said)


# Which layers rotate and how far each of them sees, in words, and where a longer RoPE does not help

LAYERS = {
    "CohereForAI--c4ai-command-r7b-12-2024": (
        "24 rotate and see 4,096 tokens (sliding window); 8 do not rotate and see the whole context"
    ),
    "LGAI-EXAONE--EXAONE-4.0-32B": (
        "48 rotate and see 4,096 tokens (sliding window); "
        "16 do not rotate and see the whole context"
    ),
    "meta-llama--Llama-4-Scout-17B-16E-Instruct": (
        "36 rotate and see 8,192 tokens (chunks); 12 do not rotate and see the whole context"
    ),
    "google--gemma-3-4b-it": (
        "5 rotate and see the whole context; 29 rotate with theta 10000 and see 1,024 "
        "tokens (sliding window)"
    ),
    "tencent--Hunyuan-7B-Instruct": "32 rotate",
}


@pytest.mark.parametrize("name", LAYERS)
def test_layers_in_words(name: str) -> None:
    spec = inspected(MORE / f"{name}.json").spec
    assert describe_layers(spec) == LAYERS[name]
    assert sum(group.count for group in layer_groups(spec)) == len(spec.layers)


def test_a_config_without_a_number_of_layers_says_so() -> None:
    spec = RopeSpec(64, 64, Plain(10_000.0), 4096, 4096)
    assert "not stated" in describe_layers(spec)


@pytest.mark.parametrize(
    ("folder", "name", "expected"),
    [
        (
            MORE,
            "CohereForAI--c4ai-command-r7b-12-2024",
            "`--as-is --context 131072` raises the context",
        ),
        (MORE, "LGAI-EXAONE--EXAONE-4.0-32B", "the 48 layers that rotate see 4,096 tokens"),
        (MORE, "meta-llama--Llama-4-Scout-17B-16E-Instruct", "8,192 tokens (chunks)"),
        (CONFIGS, "mistralai--Mistral-7B-v0.1", "set sliding_window to null first"),
        (CONFIGS, "openai--gpt-oss-20b", ""),
        (CONFIGS, "google--gemma-2-9b", ""),
        (CONFIGS, "mistralai--Mistral-7B-Instruct-v0.3", ""),
        (MORE, "google--gemma-3-4b-it", ""),
        (CONFIGS, "HuggingFaceTB--SmolLM3-3B", ""),
    ],
)
def test_models_that_a_longer_rope_does_not_help(folder: Path, name: str, expected: str) -> None:
    reason = cannot_gain(inspected(folder / f"{name}.json").spec, 131072)
    assert expected in reason
    assert bool(reason) == bool(expected)
