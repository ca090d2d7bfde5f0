"""What is said about two factor lists: which runtime takes which, and what becomes of a cache."""

from __future__ import annotations

import pytest

from ropeconv.models.registry import by_model_type
from ropeconv.runtimes.evidence import Evidence
from ropeconv.runtimes.runtime import newest
from ropeconv.runtimes.verdict import Verdict, switching

LLAMA = by_model_type()["llama"]


def verdict(name: str, status: str = "exact") -> Verdict:
    row = newest(name)
    return Verdict(row.key, row.display_name, status, "", "here", row.last, Evidence("read"))  # type: ignore[arg-type]


def rule(name: str) -> str:
    """How the newest version of a runtime takes two lists, as its row states it."""
    return newest(name).rule_set("llama").types["longrope"].lists


def test_runtimes_are_named_by_what_they_do() -> None:
    assert (rule("transformers"), rule("vllm")) == ("trained", "window")
    found = switching(LLAMA, 4096, [verdict("transformers"), verdict("vllm")])
    assert found[:2] == (
        f"With {newest('transformers').display_name}, a forward pass uses the short list if no sequence of the batch "
        "is longer than 4,096 tokens, else the long one",
        f"With {newest('vllm').display_name}, every position uses the long list if --max-model-len is above 4,096 "
        "tokens, else the short one",
    )
    assert len(found) == 3


@pytest.mark.parametrize(("status", "named"), [("rounded", True), ("differs", True), ("refused", False)])
def test_only_runtimes_that_read_the_lists_are_named(status: str, named: bool) -> None:
    found = switching(LLAMA, 4096, [verdict("vllm", status)])
    assert any("vLLM" in sentence for sentence in found) is named
    assert len(found) == 1 + named


def test_a_runtime_that_computes_a_prompt_in_chunks_is_named_with_the_option_that_avoids_it() -> None:
    assert rule("sglang") == "chunked"
    found = switching(LLAMA, 4096, [verdict("sglang", "differs")])
    assert found[0].startswith(
        f"With {newest('sglang').display_name}, a forward pass uses the short list if no position"
    )
    assert found[0].endswith("start SGLang with --chunked-prefill-size -1")
