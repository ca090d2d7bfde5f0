"""The effective length of an output beside its source's: only what a change makes worse is a warning."""

from __future__ import annotations

from dataclasses import replace

import pytest

from ropeconv.rope.bound import effective, effective_length, worse_than_source
from ropeconv.rope.bound.effective import is_worse
from ropeconv.rope.forms import Llama3, Plain, Yarn
from ropeconv.rope.methods import REGISTRY
from ropeconv.rope.recipe import Recipe
from ropeconv.rope.spec import RopeSpec

LLAMA_2 = RopeSpec(128, 128, Plain(1e4), 4096, 4096)
LLAMA_3 = RopeSpec(128, 128, Plain(5e5), 8192, 8192)
QWEN_3 = RopeSpec(128, 128, Plain(1e6), 32768, 40960)
QWEN_3_YARN = RopeSpec(128, 128, Yarn(1e6, 4.0, 32768), 32768, 131072, attention_factor=1.1386)


@pytest.mark.parametrize(
    ("spec", "published"),
    [
        (LLAMA_2, 1706),  # the first violation of theta 10000 is at 1,707
        (LLAMA_3, None),
        (QWEN_3, 27114),
        (QWEN_3_YARN, 66233),
        (RopeSpec(128, 128, Llama3(5e5, 8.0, 8192), 8192, 131072), 85132),  # Llama 3.1
        (RopeSpec(64, 64, Plain(1e4), 4096, 163840, mla=True), None),
    ],
)
def test_models_as_they_are(spec: RopeSpec, published: int | None) -> None:
    assert effective_length(spec.current(), spec) == published
    assert worse_than_source(spec.current(), spec) == ""


@pytest.mark.parametrize(
    ("spec", "method", "value", "said"),
    [
        (LLAMA_2, "yarn", 16.0, ""),  # 1,706 became more
        (QWEN_3, "yarn", 4.0, ""),  # 27,114 became 66,233
        (QWEN_3, "theta", 5e5, "the source's is 27,114"),
        (LLAMA_3, "linear", 16.0, ""),
        (LLAMA_3, "theta", 1e4, "the effective length is 1,706 of 8,192 tokens; the source's"),
    ],
)
def test_only_what_becomes_worse_is_said(spec: RopeSpec, method: str, value: float, said: str) -> None:
    found = worse_than_source(Recipe(REGISTRY[method](value)).schedule(spec), spec)  # type: ignore[call-arg]
    assert said in found
    assert bool(found) == bool(said)


@pytest.mark.parametrize(
    ("reached", "before", "covered", "worse"),
    [
        (None, 5, 9, False), (5, None, 9, True), (5, 6, 9, True), (5, 4, 9, False), (5, 5, 5, True), (5, 5, 4, True),
        (5, 5, 6, False), (None, None, 9, False),
    ],
)  # fmt: skip
def test_what_is_worse_than_the_source(reached: int | None, before: int | None, covered: int, worse: bool) -> None:
    assert is_worse(reached, before, covered) is worse


@pytest.mark.parametrize(
    ("context", "source_context", "said"),
    [
        (16384, 1706, "is 1,706 of 16,384 tokens; the source's is the same, for 1,706 tokens"),
        (16384, 1707, ""), (1707, 1706, ""),
    ],
)  # fmt: skip
def test_a_context_that_has_outgrown_the_same_frequencies(context: int, source_context: int, said: str) -> None:
    source = replace(LLAMA_2, context=source_context)
    found = worse_than_source(replace(source.current(), context=context), source)
    assert said in found
    assert bool(found) == bool(said)


def test_a_context_that_the_frequencies_do_not_cover() -> None:
    """The source covers its own 8,192 tokens, and the same frequencies do not cover what is declared."""
    declared = replace(LLAMA_3.current(), context=1 << 20)
    assert "of 1,048,576 tokens; the source's is" in worse_than_source(declared, LLAMA_3)


def test_only_distances_that_a_layer_sees_count() -> None:
    windowed = replace(LLAMA_2, layers=("global", "none"), windows=(1024, None))
    assert windowed.visible(4096) == 1024
    assert effective_length(windowed.current(), windowed) is None
    one_sees_all = replace(windowed, layers=("global", "global"))
    assert effective_length(one_sees_all.current(), one_sees_all) == 1706


def test_a_context_that_a_config_only_claims_costs_no_minutes(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[int] = []
    monkeypatch.setattr(effective, "first_violation", lambda inv_freq, unrotated, length: asked.append(length))
    for width in (128, 2048):
        spec = RopeSpec(width, width, Plain(1e20), 4096, (1 << 31) - 1)
        effective.effective_length(spec.current(), spec)
    assert asked == [1 << 22, 1 << 18]
    spec = RopeSpec(128, 128, Plain(1e6), 4096, 1 << 20)
    effective.effective_length(spec.current(), spec)
    assert asked[2] == 1 << 20
