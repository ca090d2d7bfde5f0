"""Models whose slowest pairs stand still by architecture (p-RoPE): what each method is there."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from ropeconv.errors import RopeconvError
from ropeconv.rope.forms import LongRope
from ropeconv.rope.methods import REGISTRY
from ropeconv.rope.proportional import Proportional
from ropeconv.rope.recipe import Recipe
from ropeconv.rope.spec import RopeSpec
from ropeconv.rope.zero_frequencies import written_divisors

THETA, WHOLE, ROTATING = 1e6, 512, 64  # Gemma 4: 64 of 256 pairs
GEMMA4 = RopeSpec(512, WHOLE, Proportional(THETA, 1.0, 0.25), 131072, 131072, rotating_share=0.25)
BASE = THETA ** (-np.arange(0, 2 * ROTATING, 2) / WHOLE)


def rotating(recipe: Recipe, spec: RopeSpec = GEMMA4) -> np.ndarray:
    """The frequencies of the pairs that rotate, after a look at the others."""
    inv_freq = recipe.schedule(spec).inv_freq
    assert len(inv_freq) == WHOLE // 2
    assert not inv_freq[ROTATING:].any()
    return inv_freq[:ROTATING]


def test_such_a_model_is_not_scaled() -> None:
    assert not GEMMA4.scaled
    assert replace(GEMMA4, form=Proportional(THETA, 4.0, 0.25)).scaled
    assert replace(GEMMA4, rotating_share=1.0).scaled, "a rotation that was taken away is a scaling"
    assert replace(GEMMA4, form=Proportional(THETA, 4.0, 0.25)).unscaled().form == GEMMA4.form


@pytest.mark.parametrize("name", ["linear", "ntk", "ntk-fixed", "mixed"])
def test_the_slowest_pair_that_rotates_is_divided_by_the_factor(name: str) -> None:
    found = rotating(Recipe(REGISTRY[name](4.0)))
    assert found[-1] == pytest.approx(BASE[-1] / 4, rel=1e-12)
    over_the_whole_head = THETA * 4 ** (WHOLE / (WHOLE - 2))
    assert over_the_whole_head ** (-2 * (ROTATING - 1) / WHOLE) > BASE[-1] / 1.5, "the control"


def test_a_base_is_that_of_the_whole_head() -> None:
    recipe = Recipe(REGISTRY["theta"](5e6))
    assert recipe.schedule(GEMMA4).form == Proportional(5e6, 1.0, 0.25)
    np.testing.assert_allclose(rotating(recipe), 5e6 ** (-np.arange(0, 2 * ROTATING, 2) / WHOLE), rtol=1e-12)
    law = Recipe(REGISTRY["theta-for"](1 << 20)).schedule(GEMMA4)
    exponent = np.log((1 << 20) / (2 * np.pi)) / np.log(131072 / (2 * np.pi))
    assert law.form == Proportional(float(np.floor(THETA**exponent)), 1.0, 0.25)


def test_yarn_leaves_gemma_4_its_frequencies() -> None:
    """Its slowest pair that rotates turns 700 times in the trained context, and the ramp begins at 32 turns."""
    made = Recipe(REGISTRY["yarn"](4.0)).schedule(GEMMA4)
    assert 131072 * BASE[-1] / (2 * np.pi) > 32
    np.testing.assert_allclose(made.inv_freq[:ROTATING], BASE, rtol=1e-12)
    assert made.form == GEMMA4.form
    assert made.attention_factor > 1.1
    short = Recipe(REGISTRY["yarn"](4.0)).schedule(replace(GEMMA4, original_context=64, context=64))
    assert short.form is None
    assert short.inv_freq[ROTATING - 1] == pytest.approx(BASE[-1] / 4, rel=1e-12)


def test_a_scaling_goes_on_top_of_another() -> None:
    spec = replace(GEMMA4, form=Proportional(THETA, 2.0, 0.25), context=262144)
    found = rotating(Recipe(REGISTRY["linear"](4.0), on_top=True), spec)
    np.testing.assert_allclose(found, BASE / 8, rtol=1e-12)
    again = Recipe(REGISTRY["theta"](5e6), on_top=True).schedule(spec)
    assert again.form == Proportional(5e6, 2.0, 0.25)


def test_two_lists_keep_the_pairs_that_stand_still() -> None:
    made = Recipe(REGISTRY["linear"](4.0), keep_short=True).schedule(GEMMA4)
    assert made.short_inv_freq is not None
    np.testing.assert_allclose(made.short_inv_freq[:ROTATING], BASE, rtol=1e-12)
    assert not made.short_inv_freq[ROTATING:].any()
    assert made.form is not None
    np.testing.assert_allclose(made.form.inv_freq(WHOLE), made.inv_freq, rtol=1e-12)


def test_a_given_vector_has_a_number_for_each_pair_that_rotates() -> None:
    vector = tuple((BASE / 3).tolist())
    np.testing.assert_allclose(rotating(Recipe(REGISTRY["inv-freq"](vector))), vector)
    with pytest.raises(RopeconvError, match="this model rotates 64 pairs"):
        Recipe(REGISTRY["inv-freq"]((*vector, 0.1))).schedule(GEMMA4)


@pytest.mark.parametrize("theta", [10.0, 12.3456785, 1234.567891])
@pytest.mark.parametrize("name", ["linear", "ntk", "ntk-fixed"])
def test_a_base_is_rounded_where_rounding_repairs_a_power_alone(name: str, theta: float) -> None:
    """The base goes through a power and back; rounded to six decimals it may be its own, or another."""
    spec = replace(GEMMA4, form=Proportional(theta, 1.0, 0.25))
    made = Recipe(REGISTRY[name](4.0)).schedule(spec)
    assert made.form is not None
    np.testing.assert_allclose(made.form.inv_freq(WHOLE), made.inv_freq, rtol=4e-12)
    if name == "linear" and theta != 12.3456785:
        assert made.form.theta == theta


def test_lists_hold_the_divisors_of_the_pairs_that_rotate() -> None:
    """The others are written as 1e30 in both lists."""
    long, short = tuple(np.linspace(2, 9, ROTATING).tolist()), (1.5,) * ROTATING
    made = Recipe(REGISTRY["longrope"](long, short), context=262144).schedule(GEMMA4)
    assert isinstance(made.form, LongRope)
    still = (1e30,) * (WHOLE // 2 - ROTATING)
    assert (made.form.long_factor, made.form.short_factor) == ((*long, *still), (*short, *still))
    assert made.form.theta == THETA
    np.testing.assert_allclose(made.inv_freq[:ROTATING], BASE / long, rtol=1e-12)
    assert made.short_inv_freq is not None
    np.testing.assert_allclose(made.short_inv_freq[:ROTATING], BASE / 1.5, rtol=1e-12)
    assert not made.short_inv_freq[ROTATING:].any()


def test_more_pairs_may_stand_still() -> None:
    """The half of those that rotate, by a given vector: the share becomes an eighth of the head."""
    vector = BASE.copy()
    vector[ROTATING // 2 :] = 0
    made = Recipe(REGISTRY["inv-freq"](tuple(vector.tolist()))).schedule(GEMMA4)
    assert made.form == Proportional(pytest.approx(THETA, rel=1e-9), 1.0, 0.125)  # type: ignore[arg-type]
    assert np.count_nonzero(made.inv_freq) == ROTATING // 2


def test_a_written_divisor_makes_the_frequency_exactly_0_in_float32() -> None:
    base = (np.float32(THETA) ** (np.arange(2, WHOLE, 2, dtype=np.float32) / np.float32(WHOLE))).astype(np.float32)
    with np.errstate(over="ignore"):
        assert not (np.float32(1) / (np.float32(written_divisors([1e30])[0]) * base)).any()
        assert (np.float32(1) / (np.float32(1e30) * base)).all(), "what GGUF files have is no 0 there"
    assert written_divisors([2.0, 9.9e28]) == [2.0, 9.9e28]
    assert written_divisors([1e29]) == written_divisors([1e30]) == [float(np.finfo(np.float32).max)]


@pytest.mark.parametrize("name", ["linear", "ntk", "ntk-fixed", "theta", "by-parts"])
def test_a_form_that_is_named_computes_the_frequencies(name: str) -> None:
    made = Recipe(REGISTRY[name](4.0)).schedule(GEMMA4)
    assert made.form is not None
    np.testing.assert_allclose(made.form.inv_freq(WHOLE), made.inv_freq, rtol=1e-9)
    if name == "linear":
        assert made.form == Proportional(THETA, 4.0, 0.25)
