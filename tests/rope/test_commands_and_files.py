"""Names and flags of methods, what they take from files, and what they refuse: each by its words."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pytest

from ropeconv.rope import on_top as rope_on_top
from ropeconv.rope.bound import Reach
from ropeconv.rope.errors import RecipeError
from ropeconv.rope.forms import DynamicNtk, Interpolated, Plain, Yarn, base_inv_freq
from ropeconv.rope.methods import REGISTRY, bases
from ropeconv.rope.methods.vectors import from_file
from ropeconv.rope.profile import profile
from ropeconv.rope.recipe import Recipe
from ropeconv.rope.spec import RopeSpec

from .small_head import BASE, made, spec

VALUES = {
    "theta": (1e6,), "theta-for": (8192,), "theta-bound": (8192,), "dynamic": ("ntk:2", 8192),
    "piecewise": ("4@2",), "longrope": ((1.0, 2.0, 3.0, 4.0),), "inv-freq": ((1.0, 0.5, 0.2, 0.1),), "as-is": (),
}  # fmt: skip
LABELS = {
    "theta": "theta1000000", "theta-for": "theta-for8192", "theta-bound": "theta-bound8192", "dynamic": "dynamic-ntk2",
    "piecewise": "piecewise4-2", "longrope": "longrope", "inv-freq": "inv-freq", "as-is": "as-is",
}  # fmt: skip
LONGER = {
    "theta": "", "longrope": "", "inv-freq": "", "as-is": "", "theta-for": "--theta-for 512k",
    "theta-bound": "--theta-bound 512k", "dynamic": "--dynamic ntk:2 --at 512k", "piecewise": "--piecewise 512k@2",
}  # fmt: skip


@pytest.mark.parametrize("name", REGISTRY)
def test_a_method_names_a_folder_and_the_flags_that_reach_further(name: str) -> None:
    method = REGISTRY[name](*VALUES.get(name, (4.0,)))
    assert method.label == LABELS.get(name, f"{name}4")
    assert method.longer(1 << 19, 4096) == LONGER.get(name, f"--{name} 512k")


def test_a_dynamic_method_reaches_further_with_a_larger_factor_unless_it_is_ntk() -> None:
    for kind, said in (
        ("yarn:8", "yarn:128"),
        ("yarn:200", "yarn:200"),
        ("linear:1", "linear:128"),
        ("ntk:8", "ntk:8"),
    ):
        assert REGISTRY["dynamic"](kind, 8192).longer(1 << 19, 4096) == f"--dynamic {said} --at 512k"
    assert REGISTRY["dynamic"]("yarn:2", 8192).longer(10_000, 4096) == "--dynamic yarn:3 --at 10000"


def test_a_dynamic_base_grows_from_the_trained_context_on() -> None:
    """transformers' formula: theta (S n / L - (S - 1))^(r / (r - 2))."""
    for at, growth in ((1024, 1.0), (4096, 1.0), (8192, 2 * 2.0 - 1), (16384, 2 * 4.0 - 1)):
        found = made("dynamic", "ntk:2", at)
        assert found.form == Plain(pytest.approx(10000.0 * growth ** (8 / 6)))  # type: ignore[arg-type]
        assert (found.context, found.original_context, found.attention_factor) == (at, 4096, 1.0)
    yarn = made("dynamic", "yarn:4", 8192)
    np.testing.assert_array_equal(yarn.inv_freq, made("yarn", 2.0).inv_freq)
    assert (yarn.attention_factor, yarn.context) == (made("yarn", 2.0).attention_factor, 8192)
    assert made("dynamic", "linear:4", 16384).inv_freq == pytest.approx([value / 4 for value in BASE])
    with pytest.raises(RecipeError, match="--at 16385 is beyond 4 x 4096; choose up to 16384"):
        made("dynamic", "linear:4", 16385)
    with pytest.raises(RecipeError, match="say with --at TOKENS at which length to freeze it"):
        made("dynamic", "linear:4")


@pytest.mark.parametrize("kind", ["ntk", "ntk:", "ntk:0.5", "cubic:2", "ntk:2:3", "yarn:-1", "ntk:1e3", ""])
def test_other_spellings_of_a_dynamic_method(kind: str) -> None:
    with pytest.raises(RecipeError, match="--dynamic takes METHOD:S with METHOD one of linear, ntk, by-parts, yarn"):
        REGISTRY["dynamic"](kind, 8192)


def test_dynamic_scaling_is_not_kept_as_it_is() -> None:
    dynamic = spec(form=DynamicNtk(10000.0, 2.0, 4096))
    assert dynamic.scaled
    assert dynamic.form.inv_freq(8) == pytest.approx(BASE)
    with pytest.raises(RecipeError, match=r"freeze it with --dynamic ntk:2 --at TOKENS --replace"):
        Recipe(REGISTRY["as-is"]()).schedule(dynamic)
    linear = spec(form=Interpolated(10000.0, 2.0))
    assert Recipe(REGISTRY["as-is"]()).schedule(linear).inv_freq == pytest.approx([value / 2 for value in BASE])


def test_a_split_on_top_is_over_the_declared_context() -> None:
    """Four times the declared 8,192 tokens, written as a length or as a factor."""
    for given in ("32k@2", "4@2"):
        assert REGISTRY["piecewise"](given).relative(8192, 4096) == REGISTRY["piecewise"]("4@2")
    with pytest.raises(RecipeError, match="within the declared 8,192 tokens"):
        REGISTRY["piecewise"]("8k@2").relative(8192, 4096)


def test_lists_of_a_file_are_taken_by_name() -> None:
    long, short = [4.0, 5.0], [1.0, 2.0]
    of = {"long_factor": long, "short_factor": short, "inv_freq": [1.0], "more": [7.0]}
    longrope, vector = REGISTRY["longrope"], REGISTRY["inv-freq"]
    assert from_file(longrope, of) == longrope(tuple(long), tuple(short))
    assert from_file(longrope, {"long_factor": long}) == longrope(tuple(long))
    assert from_file(longrope, {"short_factor": short}) == longrope(tuple(short), tuple(short))
    assert from_file(vector, of) == vector((1.0,))
    with pytest.raises(RecipeError, match="--inv-freq: the file holds no 'inv_freq' list; it has long_factor, more"):
        from_file(vector, {"long_factor": long, "more": [7.0]})
    with pytest.raises(RecipeError, match="--longrope: the file holds no 'long_factor' list; it has nothing"):
        from_file(longrope, {})
    with pytest.raises(RecipeError, match="no 'inv_freq' list; it has short_factor"):
        from_file(vector, {"short_factor": short})


def test_a_base_for_a_length_is_looked_for_where_it_is_needed_and_takes_seconds(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    bound = REGISTRY["theta-bound"]
    llama = RopeSpec(128, 128, Plain(1e4), 4096, 4096)
    assert bound.reaching(llama, 32768) == bound(32768)
    with pytest.raises(RecipeError, match="theta 10000 keeps the bound up to 1707 tokens already"):
        bound.reaching(llama, 1707)  # its first violation is at 1,707
    assert bound.reaching(llama, 1708) == bound(1708)
    with pytest.raises(RecipeError, match="takes minutes at 2097153 tokens; --theta-bound 2097153 does it"):
        bound.reaching(llama, (1 << 21) + 1)
    odd = replace(llama, head_dim=72, rotary_dim=72)
    with pytest.raises(RecipeError, match="takes minutes at 262145 tokens"):
        bound.reaching(odd, (1 << 18) + 1)
    assert bound.reaching(odd, 1 << 18) == bound(1 << 18)
    monkeypatch.setattr(bases, "first_violation", lambda *given: None)
    for context, words in ((1 << 21, "keeps the bound up to 2097152"), ((1 << 21) + 1, "takes minutes at 2097153")):
        with pytest.raises(RecipeError, match=words):
            bound.reaching(llama, context)


def test_long_searches_are_announced() -> None:
    for tokens, long in ((1 << 20, False), ((1 << 20) + 1, True), (1 << 27, True), ((1 << 27) + 1, False)):
        assert REGISTRY["theta-bound"](tokens).slow_note.startswith("Searching for a base: a minute") is long
    assert REGISTRY["yarn"](4.0).slow_note == ""


def test_what_a_piecewise_split_and_the_law_of_bases_need() -> None:
    """A pair on either side of the split, and a trained context of more than 2 pi tokens."""
    piecewise = REGISTRY["piecewise"]
    assert piecewise.reaching(spec(original_context=6), 64) is None, "no pair completes a period"
    assert piecewise.reaching(spec(original_context=1 << 20), 1 << 21) is None, "all of them do"
    assert piecewise.reaching(spec(original_context=7), 28) == piecewise("4@1")
    assert piecewise.reaching(spec(original_context=700), 2800) == piecewise("4@3")
    law = REGISTRY["theta-for"](64)
    with pytest.raises(RecipeError, match="needs a trained context above 6 tokens; pass --original-context"):
        law.schedule(spec(original_context=6))
    expected = math.floor(10000 ** (math.log(64 / math.tau) / math.log(7 / math.tau)))
    assert law.schedule(spec(original_context=7)).form == Plain(float(expected))
    assert law.relative(1 << 20, 4096) == REGISTRY["theta-for"](1), "not below a token"
    assert law.relative(4096, 1024) == REGISTRY["theta-for"](16)


def test_deepseeks_pair_counts_where_neither_is_0_and_its_softmax_scale_for_mla() -> None:
    """As transformers has it: `if mscale and mscale_all_dim`."""
    law = 0.1 * math.log(4) + 1
    for pair in ((0.0, 1.0), (1.0, 0.0), (0.0, 0.0)):
        found = made("yarn", 4.0, 32.0, 1.0, True, *pair, of=spec(mla=True))
        assert (found.attention_factor, found.softmax_scale) == (pytest.approx(law), 1.0)
    both = [made("yarn", 4.0, 32.0, 1.0, True, 2.0, 1.0, of=spec(mla=mla)) for mla in (False, True)]
    assert [one.attention_factor for one in both] == [pytest.approx((2 * law - 1) / law)] * 2
    assert [one.softmax_scale for one in both] == [1.0, pytest.approx(law**2)]


def test_heads_that_rotate_half_need_no_base_for_a_length() -> None:
    with pytest.raises(RecipeError, match="of 16 dimensions 8 rotate, so every base will do; choose one with --theta"):
        made("theta-bound", 8192, of=spec(head_dim=16))
    assert made("theta-bound", 500, of=spec(head_dim=14)).context == 500


@pytest.fixture
def no_base_is_kept() -> Iterator[None]:
    """Nothing of an earlier search, and nothing for a later one."""
    bases._surviving_base.cache_clear()
    yield
    bases._surviving_base.cache_clear()


@pytest.mark.usefixtures("no_base_is_kept")
def test_a_base_is_searched_for_once_for_a_length_and_a_head(monkeypatch: pytest.MonkeyPatch) -> None:
    """A plan makes its schedule several times; another length or head is another search."""
    asked: list[tuple[int, int, int]] = []

    def window(length: int, rotary_dim: int, head_dim: int, number: int) -> tuple[float, float]:
        asked.append((length, rotary_dim, head_dim))
        return 100.0, 144.0

    monkeypatch.setattr(bases, "wide_base", window)
    monkeypatch.setattr(bases, "first_violation", lambda *given: None)
    found = [made("theta-bound", 8192).form, made("theta-bound", 8192).form]
    assert found == [Plain(120.0), Plain(120.0)]
    made("theta-bound", 4096)
    made("theta-bound", 4096, of=spec(head_dim=12))
    assert asked == [(8192, 8, 8), (4096, 8, 8), (4096, 8, 12)]


@pytest.mark.usefixtures("no_base_is_kept")
def test_a_base_that_float32_does_not_survive_is_passed_over(monkeypatch: pytest.MonkeyPatch) -> None:
    """The middle of each window, until the stored frequencies keep the bound; after a hundred of them it is refused."""
    asked: list[int] = []

    def window(length: int, rotary_dim: int, head_dim: int, number: int) -> tuple[float, float]:
        assert (length, rotary_dim, head_dim) == (8192, 8, 8)
        asked.append(number)
        return 100.0 * (number + 1), 144.0 * (number + 1)

    monkeypatch.setattr(bases, "wide_base", window)
    monkeypatch.setattr(bases, "first_violation", lambda inv_freq, *given: None if len(asked) == 3 else 7)
    assert made("theta-bound", 8192).form == Plain(360.0)
    asked.clear()
    bases._surviving_base.cache_clear()
    monkeypatch.setattr(bases, "first_violation", lambda *given: 7)
    with pytest.raises(
        RecipeError, match="no base keeps the bound for 8192 tokens in float32; choose one with --theta"
    ):
        made("theta-bound", 8192)
    assert asked == list(range(100))
    bases._surviving_base.cache_clear()
    monkeypatch.setattr(bases, "wide_base", lambda *given: (math.inf, math.inf) if given[3] else window(*given))
    with pytest.raises(
        RecipeError, match="no base keeps the bound for 8192 tokens in float32; choose one with --theta"
    ):
        made("theta-bound", 8192)


def test_a_scaling_that_stays_may_break_the_bound_of_a_base(monkeypatch: pytest.MonkeyPatch) -> None:
    yarn = RopeSpec(64, 64, Yarn(1e4, 8.0, 1024), 1024, 8192)
    recipe = Recipe(REGISTRY["theta-bound"](1 << 14), on_top=True)
    made_alone, asked = recipe.schedule(yarn), []

    def violated(inv_freq: np.ndarray, unrotated: float, length: int) -> int:
        asked.append((inv_freq.tolist(), unrotated, length))
        return 12_345

    monkeypatch.setattr(rope_on_top, "first_violation", violated)
    with pytest.raises(RecipeError, match="--theta-bound 16k: with .* --on-top keeps, .* negative at distance 12,345;"):
        recipe.schedule(yarn)
    assert asked == [(made_alone.inv_freq.tolist(), 0.0, 1 << 14)]


def test_a_method_that_makes_frequencies_of_zero_is_refused() -> None:
    with pytest.raises(RecipeError, match="--longrope gives frequencies that are 0; check its parameters"):
        made("longrope", (1.0, 2.0, 3.0, 1e29))
    assert made("longrope", (1.0, 2.0, 3.0, 0.9e29)).inv_freq[3] > 0
    assert made("inv-freq", (1.0, 0.5, 0.0, 0.0)).inv_freq.tolist() == [1.0, 0.5, 0.0, 0.0]


def test_a_profile_as_data() -> None:
    llama = RopeSpec(128, 128, Plain(1e4), 4096, 4096)
    found = profile(made("linear", 8.0, of=llama), llama)
    data = found.to_dict()
    assert isinstance(found.reach, Reach)
    assert {key: data.pop(key) for key in found.reach.to_dict()} == found.reach.to_dict()
    assert data == {
        "critical_dimension": 92, "outside": 0, "largest_change": pytest.approx(8), "not_rotating": 0,
        "largest_change_at": found.largest_change_at, "fast_change": pytest.approx(8),
    }  # fmt: skip


def test_another_base_on_top_of_an_attention_factor_alone() -> None:
    """A plain base whose cos and sin are scaled is a scaling too, and the method's own formula goes on top of it."""
    hot = spec(attention_factor=1.2, context=8192)
    found = Recipe(REGISTRY["linear"](2.0), on_top=True).schedule(hot)
    assert found.form == Interpolated(10000.0, 2.0)
    assert found.attention_factor == pytest.approx(1.2)
    assert found.inv_freq == pytest.approx(base_inv_freq(10000.0, 8) / 2)
    assert found.context == 16384
    assert math.isclose(found.softmax_scale, 1.0)
