"""What is stated about a family in a runtime, and what follows where nothing is."""

from itertools import pairwise

import msgspec
import pytest

from ropeconv.convert.encoding import ENCODINGS, EncodeRequest
from ropeconv.convert.target import Target
from ropeconv.models.config import sample_config
from ropeconv.models.registry import by_model_type, by_name
from ropeconv.rope.errors import RecipeError
from ropeconv.runtimes.evidence import Evidence
from ropeconv.runtimes.read_config import read_spec
from ropeconv.runtimes.runtime import find, newest, runtimes, version_key
from ropeconv.runtimes.verdict import Verdict, judge_all, switching

from ..support.baking import recipe_of


def test_untested_versions_are_not_covered() -> None:
    assert find("vllm@0.20")[0].version == "0.20"
    for name in ("vllm@0.10", "vllm@0.34", "vllm@0.9", "transformers@5.25", "sglang@0.5.9", "tensorrt-llm@1.2.1"):
        with pytest.raises(RecipeError, match="this version is untested; tested: "):
            find(name)


def test_a_family_without_statements_is_unknown_everywhere() -> None:
    """A new family is one TOML; nothing is claimed about it before somebody looked."""
    new = msgspec.structs.replace(by_name()["llama"], name="brand_new", model_types=("brand_new",), since={})
    config = sample_config(new)
    spec = read_spec(config, new)
    request = EncodeRequest(recipe_of("yarn", 4.0).schedule(spec), spec, new, config, Target(encoding="native"))
    result = ENCODINGS["native"].encode(request)
    assert {verdict.status for verdict in result.verdicts} == {"unknown"}
    assert result.exact_share == "exact in 0 of 0 runtimes"
    assert {verdict.grade for verdict in result.verdicts} == {""}


def test_two_factor_lists_and_who_switches() -> None:
    family = by_name()["phi3"]
    config = {
        **sample_config(family), "max_position_embeddings": 16384, "original_max_position_embeddings": 4096,
        "rope_scaling": {"type": "longrope", "short_factor": [1.0] * 64, "long_factor": [4.0] * 64},
    }  # fmt: skip
    spec = read_spec(config, family)
    verdicts = judge_all(config, family, spec.current(), spec)

    def of(name: str) -> str:
        return next(item.status for item in reversed(verdicts) if item.covers(find(name)[-1]))

    assert [of(f"transformers@{version}") for version in ("4.46", "4.49", "4.57", "5.23")] == ["exact"] * 4
    others = ("vllm@0.33", "vllm@0.11.2", "vllm@0.11.0", "exllamav3", "mlx-lm@0.32", "mlx-lm@0.29", "tgi", "sglang")
    assert [of(name) for name in (*others, "lmdeploy")] == ["differs"] * 9
    reasons = {name: next(item.reason for item in reversed(verdicts) if item.covers(find(name)[-1])) for name in others}
    assert "--max-model-len" in reasons["vllm@0.33"]
    assert reasons["vllm@0.33"] == reasons["vllm@0.11.2"]
    assert "chunked prefill mixes both lists in one long prompt" in reasons["sglang"]
    assert reasons["sglang"].endswith("start it with --chunked-prefill-size -1")
    assert reasons["vllm@0.11.0"].endswith("--no-enable-chunked-prefill")


def test_a_wrapper_that_was_not_executed_is_unknown() -> None:
    """The tiny Llama was executed everywhere, and LLaVA, around it, in some runtimes."""
    family = by_name()["llama"]
    config = {"model_type": "brand_new_vision", "text_config": {**sample_config(family), "model_type": "llama"}}
    spec = read_spec(config, family)
    verdicts = {verdict.runtime: verdict for verdict in judge_all(config, family, spec.current(), spec)}
    for name in ("vllm@0.33", "sglang", "mlx-lm", "exllamav3"):
        verdict = verdicts[find(name)[-1].key]
        assert (verdict.status, verdict.grade) == ("unknown", ""), name
        assert "is tested, not brand_new_vision" in verdict.reason
    assert (verdicts["transformers@5.21"].status, verdicts["transformers@5.21"].grade) == ("exact", "read")


def test_every_row_says_where_it_is_from_and_follows_the_one_before() -> None:
    known = {name for name, family in by_name().items() if not family.refuse}
    for row in runtimes():
        assert row.source
        assert all(rule.reason or not rule.status for rules in row.rules.values() for rule in rules.types.values())
        assert {name for stated in row.families for name in stated.names} <= known
        assert version_key(row.version) <= version_key(row.last), row.key
    names = [row.name for row in runtimes()]
    assert names == sorted(names, key=lambda name: (name != "transformers", name))
    for left, right in pairwise(runtimes()):
        assert left.name != right.name or version_key(left.last) < version_key(right.version), right.key


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
    sentences = switching(LLAMA, 4096, [verdict("transformers"), verdict("vllm")])
    assert sentences[:2] == (
        f"With {newest('transformers').display_name}, a forward pass uses the short list if no sequence of the batch "
        "is longer than 4,096 tokens, else the long one",
        f"With {newest('vllm').display_name}, every position uses the long list if --max-model-len is above 4,096 "
        "tokens, else the short one",
    )
    assert len(sentences) == 3


@pytest.mark.parametrize(("status", "named"), [("rounded", True), ("differs", True), ("refused", False)])
def test_only_runtimes_that_read_the_lists_are_named(status: str, named: bool) -> None:
    sentences = switching(LLAMA, 4096, [verdict("vllm", status)])
    assert any("vLLM" in sentence for sentence in sentences) is named
    assert len(sentences) == 1 + named


def test_a_runtime_that_computes_a_prompt_in_chunks_is_named_with_the_option_that_avoids_it() -> None:
    assert rule("sglang") == "chunked"
    sentences = switching(LLAMA, 4096, [verdict("sglang", "differs")])
    assert sentences[0].startswith(
        f"With {newest('sglang').display_name}, a forward pass uses the short list if no position"
    )
    assert sentences[0].endswith("start SGLang with --chunked-prefill-size -1")
