"""What is stated about a family in a runtime, what follows where nothing is, and statements against
measurements.
"""

import json
import math
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import msgspec
import pytest

from ropeconv.convert.encoding import ENCODINGS, EncodeRequest
from ropeconv.convert.target import Target
from ropeconv.models.config import detect, sample_config
from ropeconv.models.registry import by_model_type, by_name
from ropeconv.rope.errors import RecipeError
from ropeconv.rope.recipe import parse_recipe
from ropeconv.runtimes.evidence import Evidence
from ropeconv.runtimes.read_config import read_spec
from ropeconv.runtimes.runtime import find, newest, runtimes, version_key
from ropeconv.runtimes.verdict import PlannedConfig, Verdict, judge, switch_notes

from ..conftest import CONFIGS, DATA
from ..support.baking import make_plan, recipe_of


def test_untested_versions_are_not_covered() -> None:
    assert find("vllm@0.20")[0].version == "0.20"
    for name in (
        "vllm@0.10",
        "vllm@0.34",
        "vllm@0.9",
        "transformers@5.25",
        "sglang@0.5.9",
        "tensorrt-llm@1.2.1",
    ):
        with pytest.raises(RecipeError, match="untested; tested: "):
            find(name)


def test_a_family_without_statements_is_unknown_everywhere() -> None:
    """A new family is one TOML; nothing is claimed about it before somebody looked."""
    new = msgspec.structs.replace(
        by_name()["llama"], name="brand_new", model_types=("brand_new",), since={}
    )
    config = sample_config(new)
    spec = read_spec(config, new)
    request = EncodeRequest(
        recipe_of("yarn", 4.0).schedule(spec), spec, new, config, Target(encoding="native")
    )
    result = ENCODINGS["native"].encode(request)
    assert {verdict.status for verdict in result.verdicts} == {"unknown"}
    assert result.exact_share == "exact in 0 of 0 runtime versions"
    assert {verdict.grade for verdict in result.verdicts} == {""}


def test_two_factor_lists_and_who_switches() -> None:
    family = by_name()["phi3"]
    config = {
        **sample_config(family),
        "max_position_embeddings": 16384,
        "original_max_position_embeddings": 4096,
        "rope_scaling": {"type": "longrope", "short_factor": [1.0] * 64, "long_factor": [4.0] * 64},
    }
    spec = read_spec(config, family)
    verdicts = PlannedConfig(config, family, spec.current(), spec).verdicts

    def of(name: str) -> str:
        return next(item.status for item in reversed(verdicts) if item.covers(find(name)[-1]))

    assert [of(f"transformers@{version}") for version in ("4.46", "4.49", "4.57", "5.23")] == [
        "exact"
    ] * 4
    others = (
        "vllm@0.33",
        "vllm@0.11.2",
        "vllm@0.11.0",
        "exllamav3",
        "mlx-lm@0.32",
        "mlx-lm@0.29",
        "tgi",
        "sglang",
    )
    assert [of(name) for name in (*others, "lmdeploy")] == ["differs"] * 9
    reasons = {
        name: next(item.reason for item in reversed(verdicts) if item.covers(find(name)[-1]))
        for name in others
    }
    assert "--max-model-len" in reasons["vllm@0.33"]
    assert reasons["vllm@0.33"] == reasons["vllm@0.11.2"]
    assert "both lists" in reasons["sglang"]
    assert reasons["sglang"].endswith("start it with --chunked-prefill-size -1")
    assert reasons["vllm@0.11.0"].endswith("--no-enable-chunked-prefill")


def test_a_wrapper_that_was_not_executed_is_unknown() -> None:
    """The tiny Llama was executed everywhere, and LLaVA, around it, in some runtimes."""
    family = by_name()["llama"]
    config = {
        "model_type": "brand_new_vision",
        "text_config": {**sample_config(family), "model_type": "llama"},
    }
    spec = read_spec(config, family)
    verdicts = {
        verdict.runtime: verdict
        for verdict in PlannedConfig(config, family, spec.current(), spec).verdicts
    }
    for name in ("vllm@0.33", "sglang", "mlx-lm", "exllamav3"):
        verdict = verdicts[find(name)[-1].key]
        assert (verdict.status, verdict.grade) == ("unknown", ""), name
        assert "is tested, not brand_new_vision" in verdict.reason
    assert (verdicts["transformers@5.21"].status, verdicts["transformers@5.21"].grade) == (
        "unknown",
        "",
    )


def test_every_row_says_where_it_is_from_and_follows_the_one_before() -> None:
    known = {name for name, family in by_name().items() if not family.refuse}
    for row in runtimes():
        assert row.source
        assert all(
            rule.reason or not rule.status
            for rules in row.rules.values()
            for rule in rules.types.values()
        )
        assert {name for stated in row.families for name in stated.names} <= known
        assert version_key(row.version) <= version_key(row.last), row.key
    names = [row.name for row in runtimes()]
    assert names == sorted(names, key=lambda name: (name != "transformers", name))
    for left, right in pairwise(runtimes()):
        assert left.name != right.name or version_key(left.last) < version_key(right.version), (
            right.key
        )


# What is said about two factor lists: which runtime takes which, and what becomes of a cache


LLAMA = by_model_type()["llama"]


def verdict(name: str, status: str = "exact") -> Verdict:
    row = newest(name)
    return Verdict(row.key, row.display_name, status, "", "here", row.last, Evidence("read"))  # type: ignore[arg-type]


def rule(name: str) -> str:
    """How the newest version of a runtime takes two lists, as its row states it."""
    return newest(name).rule_set("llama").types["longrope"].lists


def test_runtimes_are_named_by_what_they_do() -> None:
    assert (rule("transformers"), rule("vllm")) == ("trained", "window")
    sentences = switch_notes(LLAMA, 4096, [verdict("transformers"), verdict("vllm")])
    assert sentences[:2] == (
        (
            f"With {newest('transformers').display_name}, a forward pass uses the short list if no"
            " sequence of the batch is longer than 4,096 tokens, else the long one"
        ),
        (
            f"With {newest('vllm').display_name}, every position uses the long list if"
            " --max-model-len is above 4,096 tokens, else the short one"
        ),
    )
    assert len(sentences) == 3


@pytest.mark.parametrize(
    ("status", "named"), [("rounded", True), ("differs", True), ("refused", False)]
)
def test_only_runtimes_that_read_the_lists_are_named(status: str, named: bool) -> None:
    sentences = switch_notes(LLAMA, 4096, [verdict("vllm", status)])
    assert any("vLLM" in sentence for sentence in sentences) is named
    assert len(sentences) == 1 + named


def test_a_runtime_that_computes_a_prompt_in_chunks_is_named_with_the_option_that_avoids_it() -> (
    None
):
    assert rule("sglang") == "chunked"
    sentences = switch_notes(LLAMA, 4096, [verdict("sglang", "differs")])
    assert sentences[0].startswith(
        f"With {newest('sglang').display_name}, a forward pass uses the short list if no position"
    )
    assert sentences[0].endswith("start SGLang with --chunked-prefill-size -1")


# How runtimes read the same keys: attention factors measured by running them

CONFIG = {
    "model_type": "llama",
    "head_dim": 32,
    "max_position_embeddings": 1024,
    "rope_theta": 10000.0,
}
LISTS = {"short_factor": [1.0] * 16, "long_factor": [2.0] * 16}
LONGROPE = {
    "rope_type": "longrope",
    "original_max_position_embeddings": 256,
    "factor": 4.0,
    **LISTS,
}
YARN = {"rope_type": "yarn", "original_max_position_embeddings": 256, "factor": 4.0}
FORMULA = 0.1 * math.log(4) + 1


def attention_factor(runtime: str, rope: dict[str, Any]) -> float:
    config = {**CONFIG, "rope_scaling": rope, "rope_parameters": {**rope, "rope_theta": 10000.0}}
    return read_spec(config, by_model_type()["llama"], find(runtime)[-1]).attention_factor


@pytest.mark.parametrize(
    ("rope", "transformers", "vllm", "sglang"),
    [
        ({**LONGROPE, "attention_factor": 1.25}, 1.25, 1.118034, 1.118034),
        ({**LONGROPE, "attention_factor": 1.0}, 1.0, 1.118034, 1.118034),
        (
            {**LONGROPE, "attention_factor": 1.25, "short_mscale": 1.25, "long_mscale": 1.25},
            1.25,
            1.25,
            1.25,
        ),
        (YARN, FORMULA, FORMULA, FORMULA),
        ({**YARN, "attention_factor": 1.25}, 1.25, 1.25, FORMULA),
        ({**YARN, "attention_factor": 1.25, "attn_factor": 1.25 / FORMULA}, 1.25, 1.25, 1.25),
        ({**YARN, "mscale": 0.707, "mscale_all_dim": 1.0}, 0.964327, 0.964327, 0.964327),
    ],
)
def test_attention_factors_as_measured(
    rope: dict[str, Any], transformers: float, vllm: float, sglang: float
) -> None:
    assert attention_factor("transformers", rope) == pytest.approx(transformers, rel=1e-5)
    assert attention_factor("vllm", rope) == pytest.approx(vllm, rel=1e-5)
    assert attention_factor("sglang", rope) == pytest.approx(sglang, rel=1e-5)


def test_predictions_for_single_versions(tiny: Callable[[str], Path]) -> None:
    """SmolLM3 came in the middle of an era; a version before the tables is no ground for a
    verdict.
    """
    plan = make_plan(tiny("smollm3"), recipe_of("yarn", 4.0))
    words = [
        plan.transformers_status(version)
        for version in ("4.52.4", "4.53.0", "5.23.0", "4.30.0", "")
    ]
    assert words == ["unsupported", "exact", "exact", "unknown", "unknown"]
    llama = make_plan(tiny("llama"), recipe_of("yarn", 4.0))
    assert [llama.transformers_status(version) for version in ("4.30.0", "", "4.50.3")] == [
        "unknown",
        "unknown",
        "differs",
    ]


# mlx-vlm, whose models were built on a CPU, and DeepSpeed inference, whose source was read:
# shapes that people load and that the record of mlx-vlm 0.7.10 does not have

MORE = DATA / "more_configs"
SCALED = ("google--gemma-3-4b-it", "meta-llama--Llama-3.2-11B-Vision-Instruct")
CASES = [
    ("mlx-vlm", MORE / "Qwen--Qwen3.5-35B-A3B.json", "yarn:4", "ignored"),
    ("mlx-vlm", MORE / "google--gemma-3-4b-it.json", "linear:32:context=512k", "exact"),
    ("mlx-vlm", MORE / "google--gemma-3-4b-it.json", "theta:8000000:context=512k", "ignored"),
    ("mlx-vlm", CONFIGS / "google--gemma-2-9b.json", "yarn:4", "ignored"),
    ("mlx-vlm", MORE / "meta-llama--Llama-3.2-11B-Vision-Instruct.json", "yarn:16", "exact"),
    ("mlx-vlm", CONFIGS / "mistralai--Mistral-7B-Instruct-v0.3.json", "yarn:4", "exact"),
    ("mlx-vlm", CONFIGS / "microsoft--Phi-3-mini-4k-instruct.json", "mixed:4", "exact"),
    ("mlx-vlm", CONFIGS / "stabilityai--stablelm-3b-4e1t.json", "yarn:4", "ignored"),
    ("mlx-vlm", MORE / "tencent--Hunyuan-7B-Instruct.json", "linear:4", "refused"),
    ("mlx-vlm", CONFIGS / "tiiuae--falcon-40b.json", "theta:80000", "unsupported"),
    ("mlx-vlm", MORE / "google--gemma-4-26B-A4B.json", "linear:4", "unknown"),
    ("deepspeed", CONFIGS / "Qwen--Qwen2.5-7B-Instruct.json", "theta:8000000", "exact"),
    ("deepspeed", CONFIGS / "Qwen--Qwen2.5-7B-Instruct.json", "yarn:4", "refused"),
    ("deepspeed", CONFIGS / "Qwen--Qwen3-8B.json", "yarn:4", "unknown"),
]


@pytest.mark.parametrize(
    ("runtime", "path", "recipe", "status"), CASES, ids=lambda value: getattr(value, "stem", value)
)
def test_what_was_executed_and_read(
    runtime: str, path: Path, recipe: str, status: str, tmp_path: Path
) -> None:
    plan = make_plan(path, parse_recipe(recipe), tmp_path / "out", replace=path.stem in SCALED)
    statuses = [
        verdict.status
        for verdict in plan.result.verdicts
        if verdict.runtime.startswith(f"{runtime}@")
    ]
    assert statuses == [status]


@pytest.mark.parametrize(
    ("name", "status"),
    [
        ("meta-llama--Llama-2-7b-hf", "exact"),
        ("Qwen--Qwen2-7B", "differs"),
        ("ibm-granite--granite-3.3-8b-instruct", "refused"),
    ],
)
def test_without_a_base_the_default_of_mlx_vlm_counts(name: str, status: str) -> None:
    """Llama has the same default as transformers, Qwen 2 another one, and Granite none."""
    config = json.loads((CONFIGS / f"{name}.json").read_text())
    config.pop("rope_theta", None)
    family = detect(config)
    spec = read_spec(config, family)
    assert judge(config, family, spec.current(), spec, newest("mlx-vlm")).status == status
    config["rope_theta"] = spec.rope_theta
    assert judge(config, family, spec.current(), spec, newest("mlx-vlm")).status == "exact"
