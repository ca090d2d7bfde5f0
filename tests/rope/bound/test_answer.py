"""What is said of bounds besides a base, and of effective lengths: only what a change makes worse is a warning."""

from __future__ import annotations

import json
import math
from dataclasses import replace

import pytest

from ropeconv.rope.bound import bound, effective, effective_length, reach, smallest_base, wide_base, worse_than_source
from ropeconv.rope.bound.answer import is_quick
from ropeconv.rope.bound.table import DATA, look_up
from ropeconv.rope.errors import RecipeError
from ropeconv.rope.forms import Llama3, Plain, Yarn, base_inv_freq
from ropeconv.rope.methods import REGISTRY
from ropeconv.rope.recipe import Recipe
from ropeconv.rope.spec import RopeSpec

PUBLISHED = {source: row["4096"] for source, row in json.loads((DATA / "published.json").read_text()).items()}


def test_a_bound_as_data() -> None:
    found = bound(4096, 128, 128)
    data = json.loads(json.dumps(found.to_dict()))
    assert data == {
        "length": 4096, "rotary_dim": 128, "head_dim": 128, "base": pytest.approx(26952.339227857868),
        "binding_distance": 4012, "window": [found.base, found.base * (1 + (found.width or 0))],
        "first_wide_window": list(found.first_wide_window or ()), "published": PUBLISHED,
        "last_violating_base": pytest.approx(58790, rel=1e-3), "known_windows": True,
        "asymptotic": pytest.approx(4096 / 0.6165, rel=1e-4),
    }  # fmt: skip
    assert len(PUBLISHED) == 2
    assert data["first_wide_window"][0] == pytest.approx(28629, rel=1e-3)
    assert bound(4096, 64, 64).published == {}
    assert bound(4096, 96, 128).to_dict()["published"] == {}
    assert bound(4097, 128, 128).published == {}


def test_windows_that_nobody_asked_for_are_said_to_be_unknown() -> None:
    """No table has heads of 72 dimensions."""
    without, reported = bound(300, 72, 72, windows=False), list[str]()
    assert (without.first_wide_window, without.last_violating_base, without.known_windows) == (None, None, False)
    assert without.to_dict()["first_wide_window"] is None
    for windows in (None, True):
        found = bound(300, 72, 72, windows, tell=reported.append)
        assert found.known_windows
        assert found.first_wide_window is not None
        assert found.base == without.base
        assert found.base * (1 - 1e-12) <= found.first_wide_window[0] < (found.last_violating_base or 0)
    assert reported[0].startswith("ruled out: all bases up to ")
    assert "looking for the first window that is 1 % wide" in reported
    assert any(one.startswith("proven: no base above ") for one in reported)


def test_a_proof_is_computed_where_the_tables_have_the_base() -> None:
    proof: list[tuple[float, float, int]] = []
    assert bound(500, 128, 128, windows=False, proof=proof).base == bound(500, 128, 128, windows=False).base
    assert proof[0][0] == 0
    assert math.exp(proof[-1][1]) == pytest.approx(bound(500, 128, 128).base)


def test_heads_that_rotate_half_need_no_base() -> None:
    found = bound(1 << 20, 64, 128)
    assert (found.base, found.binding_distance, found.last_violating_base) == (1.0, None, None)
    assert (found.window, found.width, found.first_wide_window) == ((1.0, None), None, (1.0, None))
    assert found.known_windows


@pytest.mark.parametrize(("length", "rotary_dim"), [(1, 128), (2, 128), (1, 72), (2, 72)])
def test_two_tokens_need_no_base_by_the_tables_and_by_the_search(length: int, rotary_dim: int) -> None:
    found = bound(length, rotary_dim, rotary_dim)
    assert (found.base, found.binding_distance, found.window) == (1.0, None, (1.0, None))


@pytest.mark.parametrize("rotary_dim", [64, 80, 96, 128, 256])
def test_what_the_tables_know_at_once(rotary_dim: int) -> None:
    assert [smallest_base(length, rotary_dim, rotary_dim) is None for length in (1, 1 << 24, 1 << 40)] == [0, 0, 1]
    assert smallest_base(4096, rotary_dim, 2 * rotary_dim) is None
    assert all(look_up(kind, rotary_dim, 1 << 18) for kind in ("wide", "last"))


@pytest.mark.parametrize(
    ("length", "rotary_dim", "quick"), [(0, 72, True), (1, 72, False), (1, 128, True), (1, 96, False)]
)
def test_which_searches_are_quick(length: int, rotary_dim: int, quick: bool) -> None:
    assert is_quick((1 << 18) + length, rotary_dim, 72 if rotary_dim == 72 else 128) is quick


@pytest.mark.parametrize(
    ("length", "rotary_dim", "words"),
    [
        (256, 2, "a single pair has the frequency 1 at every base"),
        ((1 << 27) + 1, 64, "computed up to 134217728 tokens, and 134217729 is more"),
    ],
)
def test_bases_that_cannot_be_computed(length: int, rotary_dim: int, words: str) -> None:
    for ask in (bound, wide_base):
        with pytest.raises(RecipeError, match=words):
            ask(length, rotary_dim, rotary_dim)
    assert bound(1 << 27, 64, 128).base == 1.0


def test_a_reach_as_data() -> None:
    found = reach(base_inv_freq(1e4, 128), 0.0, 1720)
    places = [list(place) for place in found.places]
    assert json.loads(json.dumps(found.to_dict())) == {
        "effective_length": 1706, "first_violation": 1707, "searched": 1720, "automatic": False,
        "violations": {"below": 1720, "count": found.count, "runs": len(places), "places": places},
    }  # fmt: skip
    assert places[0][0] == 1707
    none = reach(base_inv_freq(1e4, 32), 16.0, 100)
    assert none.to_dict()["effective_length"] is None
    assert none.to_dict()["automatic"] is True


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
    ("spec", "made", "said"),
    [
        (LLAMA_2, ("yarn", 16.0), ""),  # 1,706 became more
        (QWEN_3, ("yarn", 4.0), ""),  # 27,114 became 66,233
        (QWEN_3, ("theta", 5e5), "the source's is 27,114"),
        (LLAMA_3, ("linear", 16.0), ""),
        (LLAMA_3, ("theta", 1e4), "the effective length is 1,706 of 8,192 tokens; the source's covers 8,192 tokens"),
        (LLAMA_3, 1 << 20, "of 1,048,576 tokens; the source's is"),  # which covers its own 8,192 tokens
        # contexts that outgrow the same frequencies
        (replace(LLAMA_2, context=1706), 16384, "1,706 of 16,384 tokens; the source's is the same, for 1,706 tokens"),
        (replace(LLAMA_2, context=1707), 16384, ""),
        (replace(LLAMA_2, context=1706), 1707, ""),
    ],
)
def test_only_what_becomes_worse_is_said(spec: RopeSpec, made: tuple[str, float] | int, said: str) -> None:
    """By a method, or by a context that is declared with the frequencies as they are."""
    declared = replace(spec.current(), context=made) if isinstance(made, int) else None
    found = worse_than_source(declared or Recipe(REGISTRY[made[0]](made[1])).schedule(spec), spec)
    assert said in found
    assert bool(found) == bool(said)


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
