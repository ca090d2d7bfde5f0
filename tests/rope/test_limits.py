"""What methods take at the limits of their parameters, and pairs that stand still."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from ropeconv.rope.bound.effective import effective_length, is_worse, source_reach, worse_than_source
from ropeconv.rope.bound.reach import first_violation, reach, violations
from ropeconv.rope.errors import RecipeError
from ropeconv.rope.forms import DynamicNtk, Interpolated, Llama3, LongRope, Plain, Yarn
from ropeconv.rope.methods import REGISTRY
from ropeconv.rope.methods.method import (
    factor_or_length,
    not_negative_list,
    number,
    positive,
    positive_list,
    scale,
    share,
    switch,
    tokens,
)
from ropeconv.rope.on_top import on_top, total_factor
from ropeconv.rope.profile import profile
from ropeconv.rope.proportional import Proportional, recognise
from ropeconv.rope.proportional import share as share_of
from ropeconv.rope.recipe import Recipe
from ropeconv.rope.schedule import Schedule
from ropeconv.rope.short_list import keep_short
from ropeconv.rope.spec import RopeSpec
from ropeconv.rope.zero_frequencies import count_zero, divided, divisors, wavelengths

BASE = np.array([1.0, 0.1, 0.01, 0.001])
NEVER = (True, "1", None, math.nan, math.inf, -math.inf, [1.0])


def spec(**changes: Any) -> RopeSpec:
    given = {"head_dim": 8, "rotary_dim": 8, "form": Plain(10000.0), "original_context": 4096, "context": 4096}
    return RopeSpec(**{**given, **changes})


@pytest.mark.parametrize(
    ("check", "good", "bad"),
    [
        (positive, (1, 1e-9), (0, -1)), (scale, (1, 1.5), (0.999, 0)), (share, (0, 1, 0.5), (-0.01, 1.01)),
        (number, (0, -1.5), ()), (tokens, (1, 5), (0, -1, 1.0)), (switch, (True, False), (0, 1, "yes", None)),
        (factor_or_length, (1, 4.0, "128k", "1M"), (0.5, "128", "0k")), (positive_list, ((1.0, 2),), ((), (1, 0),
        (1, -1))),
        (not_negative_list, ((0.0, 1), (0,)), ((), (1, -1), (math.inf,))),
    ],
)  # fmt: skip
def test_checks(check: Any, good: tuple[Any, ...], bad: tuple[Any, ...]) -> None:
    assert [check(value) for value in good] == [None] * len(good)
    assert all(check(value) for value in (*bad, *(one for one in NEVER if check is not switch or one is not True)))


@pytest.mark.parametrize(
    ("method", "values", "words"),
    [
        ("theta", (1.0,), "must be above 1"), ("yarn", (4.0, 1.0, 1.0), "beta_fast must be above"),
        ("by-parts", (4.0, 32.0, 32.0), "beta must be above alpha"),
        ("llama3", (4.0, 4.0, 4.0), "high_freq_factor must"),
        ("yarn", (4.0, 32.0, 1.0, True, 1.0), "go together"), ("yarn", (0.9,), "at least 1"),
        ("mixed", (4.0, 1.1), "0 to 1"),
        ("piecewise", ("0.5@3",), "FACTOR@PAIR"), ("piecewise", ("8@0",), "FACTOR@PAIR"),
        ("piecewise", ("8",), "FACTOR@PAIR"),
        ("theta-for", (0,), "a token count"), ("longrope", ((),), "positive numbers"),
        ("inv-freq", ((-1.0,),), "not negative"),
    ],
)  # fmt: skip
def test_parameters_that_are_refused(method: str, values: tuple[Any, ...], words: str) -> None:
    with pytest.raises(RecipeError, match=words):
        REGISTRY[method](*values)


def test_parameters_just_inside() -> None:
    assert REGISTRY["theta"](1.0001).base == 1.0001  # type: ignore[attr-defined]
    assert REGISTRY["yarn"](1.0, 1.01, 1.0).factor == 1.0  # type: ignore[attr-defined]
    assert REGISTRY["piecewise"]("1@1").parts() == (1.0, 1)  # type: ignore[attr-defined]
    assert REGISTRY["piecewise"]("128k@3").length == 131072
    for name, (low, high) in {"by-parts": (1.0, 32.0), "llama3": (1.0, 4.0), "yarn": (32.0, 1.0)}.items():
        method = REGISTRY[name](4.0)
        assert tuple(vars(method).values())[1:3] == (low, high)


def test_two_bases_meet_at_a_pair() -> None:
    """s = 8 from pair 2 of 4 on: before it theta 8^(8/4) = 640,000, so that both give theta_2 / 8 at pair 2."""
    found = REGISTRY["piecewise"]("8@2").schedule(spec())
    np.testing.assert_allclose(found.inv_freq, [1, 640000.0**-0.25, 0.01 / 8, 0.001 / 8])
    assert (found.context, REGISTRY["piecewise"]("8@2").factor_over(4096)) == (32768, 8.0)
    assert REGISTRY["piecewise"]("16k@2").factor_over(4096) == 4.0
    assert REGISTRY["piecewise"]("8@2").longer(1 << 19, 4096) == "--piecewise 512k@2"


def test_lists_fit_the_pairs_of_a_model() -> None:
    lists = REGISTRY["longrope"]((1.0, 2.0, 3.0, 4.0), (1.0, 1.0, 1.0, 2.0))
    found = Recipe(lists, context=16384).schedule(spec())
    np.testing.assert_allclose(found.inv_freq, BASE / [1, 2, 3, 4])
    np.testing.assert_allclose(found.short_inv_freq, BASE / [1, 1, 1, 2])
    assert found.attention_factor == pytest.approx(math.sqrt(1 + math.log(4) / math.log(4096)))
    assert (found.context, found.original_context) == (16384, 4096)
    assert Recipe(REGISTRY["longrope"]((1.0, 2.0, 3.0, 4.0)), context=8192).schedule(spec()).short_inv_freq is None
    for short in ((1.0,) * 3, (1.0,) * 5):
        with pytest.raises(RecipeError, match=f"has {len(short)} numbers and this model rotates 4 pairs"):
            REGISTRY["longrope"](short).schedule(spec())
        with pytest.raises(
            RecipeError, match=f"--inv-freq: inv_freq has {len(short)} numbers and this model rotates 4"
        ):
            REGISTRY["inv-freq"](short).schedule(spec())
    with pytest.raises(RecipeError, match="--longrope: short_factor has 3 numbers"):
        REGISTRY["longrope"]((1.0,) * 4, (1.0,) * 3).schedule(spec())
    with pytest.raises(RecipeError, match="pair 4 is outside the 4 rotated pairs; choose 1 to 3"):
        REGISTRY["piecewise"]("8@4").schedule(spec())
    still = REGISTRY["inv-freq"]((1.0, 0.1, -0.0, 0.0)).schedule(spec(context=9999))
    assert (still.form, still.context) == (Proportional(10000.0, 1.0, 0.5), 9999)
    assert str(still.inv_freq[2]) == "0.0"


@pytest.mark.parametrize("name", ["yarn", "linear", "ntk", "theta-for", "theta-bound"])
def test_a_method_reaches_a_context(name: str) -> None:
    method = REGISTRY[name].reaching(spec(head_dim=64, rotary_dim=64), 16384)
    assert method is not None
    assert next(iter(vars(method).values())) == (16384 if name.startswith("theta") else 4.0)
    assert REGISTRY["inv-freq"].reaching(spec(), 16384) is None
    assert REGISTRY["dynamic"].reaching(spec(), 16384) is None


def test_names_of_methods_with_their_values() -> None:
    assert (REGISTRY["yarn"](4.0).command, REGISTRY["yarn"](4.0).label) == ("--yarn 4", "yarn4")
    assert (REGISTRY["yarn"]("128k").command, REGISTRY["theta"](1e6).label) == ("--yarn 128k", "theta1000000")
    assert [item.order for item in REGISTRY.values()] == sorted(item.order for item in REGISTRY.values())


# Pairs that stand still


def test_divisors_and_frequencies_that_are_0() -> None:
    base = np.array([1.0, 0.5, 0.25])
    np.testing.assert_array_equal(divided(base, [2.0, 1e29, 9.9e28]), [0.5, 0, 0.25 / 9.9e28])
    np.testing.assert_array_equal(divisors(base, np.array([0.5, 0.0, 0.25])), [2.0, 1e30, 1.0])
    np.testing.assert_allclose(wavelengths(np.array([math.pi, 0.0])), [2.0, math.nan])
    assert (count_zero(np.array([0.0, 1e-300, 0.0])), count_zero(base)) == (2, 0)


@pytest.mark.parametrize("rotating", range(5))
def test_proportional_rope_is_recognised(rotating: int) -> None:
    inv_freq = np.where(np.arange(4) < rotating, BASE, 0.0)
    found = recognise(inv_freq, 10000.0)
    if rotating == 4:
        assert found is None
        return
    assert found == Proportional(10000.0, 1.0, rotating / 4)
    np.testing.assert_array_equal(found.inv_freq(8), inv_freq)
    assert found.scaled
    if rotating > 1:
        other = recognise(inv_freq / 8, 500.0)
        assert other is not None
        assert (other.factor, other.theta) == (pytest.approx(8), pytest.approx(10000.0))
    assert recognise(np.array([1.0, 0.0, 0.01, 0.0]), 10000.0) is None
    assert recognise(np.array([1.0, 0.1, 0.02, 0.0]), 10000.0) is None


def test_shares_give_their_number_of_pairs() -> None:
    for rotary_dim in (8, 96, 128, 256):
        for rotating in range(rotary_dim // 2 + 1):
            assert int(share_of(rotating, rotary_dim) * rotary_dim // 2) == rotating
    assert not Proportional(10000.0).scaled
    assert Proportional(10000.0, 2.0).scaled
    np.testing.assert_allclose(Proportional(10000.0, 2.0, 0.5).inv_freq(8), [0.5, 0.05, 0, 0])


# Two lists


def test_the_sources_own_list_holds_up_to_its_context() -> None:
    made = Recipe(REGISTRY["linear"](4.0)).schedule(spec())
    found = keep_short(made, spec())
    assert isinstance(found.form, LongRope)
    np.testing.assert_allclose(found.form.short_factor, [1] * 4)
    np.testing.assert_allclose(found.form.long_factor, [4] * 4)
    np.testing.assert_allclose(found.short_inv_freq, BASE)
    assert (found.original_context, found.form.original_context, found.context) == (4096, 4096, 16384)
    scaled = spec(form=Interpolated(10000.0, 2.0), context=8192)
    kept = keep_short(made, scaled)
    assert kept.original_context == 8192
    np.testing.assert_allclose(kept.short_inv_freq, BASE / 2)


@pytest.mark.parametrize(
    ("made", "source", "words"),
    [
        ({"short_inv_freq": BASE}, {}, "two factor lists already, and no runtime"),
        ({"context": 4096}, {}, "leave it out, or"),
        ({}, {"form": LongRope(10000.0, (1.0,) * 4, (2.0,) * 4, 64)}, "the source has two factor lists"),
        ({"attention_factor": 1.1}, {}, "share one attention factor"),
        ({"attention_factor": 0.9}, {}, "one attention factor"),
        ({"softmax_scale": 1.1}, {}, "share one softmax scale"),
        ({"inv_freq": np.array([1.0, 0.1, 0, 0])}, {}, "that are 0"),
    ],
)  # fmt: skip
def test_two_lists_that_cannot_be(made: dict[str, Any], source: dict[str, Any], words: str) -> None:
    schedule = Schedule(
        **{"inv_freq": BASE / 4, "attention_factor": 1.0, "context": 16384, "original_context": 4096, **made}
    )
    with pytest.raises(RecipeError, match=words):
        keep_short(schedule, spec(**source))
    fine = Schedule(BASE / 4, 1.0 + 1e-10, 4097, 4096)
    assert keep_short(fine, spec()).original_context == 4096


# On top


def test_a_scaling_is_widened_by_the_product_or_multiplied() -> None:
    linear = spec(form=Interpolated(10000.0, 2.0), context=8192)
    wider = on_top(REGISTRY["linear"](4.0), linear)
    assert (wider.form, wider.context, wider.original_context) == (Interpolated(10000.0, 8.0), 32768, 4096)
    assert total_factor(REGISTRY["linear"](4.0), linear) == (2.0, 4.0)
    assert total_factor(REGISTRY["ntk"](4.0), linear) is None
    assert total_factor(REGISTRY["theta"](5e5), linear) is None
    based = on_top(REGISTRY["ntk-old"](4.0), linear)
    assert based.form == Interpolated(40000.0, 2.0)
    assert based.context == 32768
    assert on_top(REGISTRY["linear"]("32k"), linear).form == Interpolated(10000.0, 8.0)
    assert on_top(REGISTRY["linear"](4.0), linear, 20000).context == 20000
    llama3 = spec(form=Llama3(10000.0, 2.0, 4096), context=8192)
    mixed = on_top(REGISTRY["linear"](4.0), llama3)
    np.testing.assert_allclose(mixed.inv_freq, llama3.form.inv_freq(8) / 4)
    yarn = spec(form=Yarn(10000.0, 2.0, 4096), context=8192, attention_factor=1.5)
    again = on_top(REGISTRY["yarn"](4.0), yarn)
    assert again.form == Yarn(10000.0, 8.0, 4096)
    assert again.attention_factor == pytest.approx(1.5 * (0.1 * math.log(8) + 1) / (0.1 * math.log(2) + 1))
    with pytest.raises(RecipeError, match="this one has none"):
        on_top(REGISTRY["linear"](4.0), spec())
    with pytest.raises(RecipeError, match="cannot keep dynamic scaling"):
        on_top(REGISTRY["linear"](4.0), spec(form=DynamicNtk(10000.0, 2.0, 4096)))


# Profiles and reach


def test_a_profile_by_hand() -> None:
    """L = 4096 and theta 10000 over 4 pairs: 4096, 409.6 and 40.96 radians complete a period, 4.096 does not."""
    unchanged = profile(Schedule(BASE, 1.0, 4096, 4096), spec())
    assert (unchanged.critical_dimension, unchanged.outside, unchanged.largest_change) == (6, 0, 1.0)
    assert (unchanged.fast_change, unchanged.not_rotating) == (1.0, 0)
    longer = profile(Schedule(BASE, 1.0, 4097, 4096), spec())
    assert longer.outside == 2
    changed = profile(Schedule(BASE / [1, 2, 1, 0.25], 1.0, 4096, 4096), spec())
    assert (changed.largest_change, changed.largest_change_at, changed.fast_change, changed.outside) == (4.0, 3, 2.0, 2)
    still = profile(Schedule(np.array([1.0, 0.1, 0.0, 0.0]), 1.0, 4096, 4096), spec())
    assert (still.not_rotating, still.largest_change) == (2, 1.0)
    assert profile(Schedule(np.zeros(4), 1.0, 4096, 4096), spec()).largest_change_at is None
    windowed = spec(layers=("global",), windows=(32,))
    assert profile(Schedule(BASE, 1.0, 16384, 4096), windowed).outside == 0
    assert profile(Schedule(BASE, 1.0, 16384, 4096), windowed).critical_dimension == 2


def direct(inv_freq: np.ndarray, unrotated: float, length: int) -> list[int]:
    distances = np.arange(1, length)
    return [int(m) for m in distances[np.cos(np.outer(distances, inv_freq)).sum(axis=1) + unrotated < 0]]


@pytest.mark.parametrize("unrotated", [0.0, 1.0, 2.5, 4.0])
@pytest.mark.parametrize("length", [1, 2, 3, 257, 6000])
def test_violations_are_those_of_the_sum(unrotated: float, length: int) -> None:
    expected = direct(BASE, unrotated, length)
    assert [int(m) for found in violations(BASE, unrotated, length) for m in found] == expected
    assert first_violation(BASE, unrotated, length) == (expected[0] if expected else None)
    found = reach(BASE, unrotated, length)
    runs = [m for m in expected if m - 1 not in expected]
    ends = [m for m in expected if m + 1 not in expected]
    assert (found.count, found.runs) == (len(expected), len(runs))
    assert found.places == tuple(zip(runs, ends, strict=True))[:100]
    assert found.automatic is (unrotated >= 4)
    if expected:
        assert (found.first_violation, found.effective_length, found.searched) == (expected[0], expected[0] - 1, length)
    with pytest.raises(RecipeError, match="is more; choose fewer"):
        reach(BASE, 0.0, (1 << 27) + 1)


@pytest.mark.parametrize(
    ("reached", "before", "covered", "worse"),
    [
        (None, 5, 9, False), (5, None, 9, True), (5, 6, 9, True), (5, 4, 9, False), (5, 5, 5, True), (5, 5, 4, True),
        (5, 5, 6, False), (None, None, 9, False),
    ],
)  # fmt: skip
def test_what_is_worse_than_the_source(reached: int | None, before: int | None, covered: int, worse: bool) -> None:
    assert is_worse(reached, before, covered) is worse


def test_effective_lengths_of_outputs_and_sources() -> None:
    first = direct(BASE, 0.0, 4096)[0]
    same = Schedule(BASE, 1.0, 16384, 4096)
    assert effective_length(same, spec()) == source_reach(same, spec()) == first - 1
    short = Schedule(BASE, 1.0, first, 4096)
    assert effective_length(short, spec()) is None
    said = worse_than_source(same, spec(context=first - 1))
    assert f"is {first - 1:,} of 16,384 tokens; the source's is the same, for {first - 1:,} tokens" in said
    assert worse_than_source(same, spec(context=first)) == ""
    slower = Schedule(BASE * 2, 1.0, 16384, 4096)
    assert f"the source's is {first - 1:,}: beyond it" in worse_than_source(slower, spec())
    assert worse_than_source(short, spec()) == ""
