"""What is said about two factor lists: which runtime takes which, and what becomes of a cache."""

from __future__ import annotations

import pytest

from ropeconv.families import by_model_type
from ropeconv.runtimes import newest, runtimes, two_lists
from ropeconv.runtimes.evidence import Evidence
from ropeconv.runtimes.two_lists import SWITCHES, switching
from ropeconv.runtimes.verdict import Verdict

LLAMA, PHI_3 = by_model_type()["llama"], by_model_type()["phi3"]


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
        f"{newest('transformers').display_name}: the short list in forward passes in which no sequence of the batch is "
        "longer than 4,096 tokens, else the long one for every sequence",
        f"{newest('vllm').display_name}: the long list for every position where it is started with a window above "
        "4,096 tokens, else the short one",
    )
    assert len(found) == 3


def test_one_sentence_names_all_that_do_the_same() -> None:
    names = [name for name in dict.fromkeys(row.name for row in runtimes()) if newest(name).statement("llama")]
    found = switching(LLAMA, 64, [verdict(name) for name in names])
    own = [sentence.partition(": ") for sentence in found[:-1]]
    for name in names:
        reading = newest(name).rule_set("llama")
        longrope = reading.types.get("longrope")
        taken = longrope is not None and not (reading.status or longrope.status or longrope.read_as)
        said = [f": {words}" for runtimes_named, _, words in own if newest(name).display_name in runtimes_named]
        assert said == ([SWITCHES[longrope.lists].format(names="", length=64)] if longrope and taken else []), name
    assert len({words for _, _, words in own}) == len(own) > 1


@pytest.mark.parametrize(("status", "named"), [("rounded", True), ("differs", True), ("refused", False)])
def test_only_runtimes_that_read_the_lists_are_named(status: str, named: bool) -> None:
    found = switching(LLAMA, 4096, [verdict("vllm", status)])
    assert any("vLLM" in sentence for sentence in found) is named
    assert len(found) == 1 + named


def test_a_cache_that_grows_past_the_length() -> None:
    assert switching(LLAMA, 4096, []) == (
        "a sequence that grows past 4,096 tokens keeps keys in its cache that were rotated with the short list, under "
        "queries of the long one, and what follows is wrong: transformers' generate does not compute the cache anew, "
        "so give such a prompt whole",
    )
    assert switching(PHI_3, 64, [])[0].endswith(
        "wrong; transformers computes the cache of this family anew there, servers do not"
    )
    assert {"phi3"} == two_lists.RECOMPUTED
