"""Closed forms against the installed transformers, and models whose slowest pairs stand still
(p-RoPE).
"""

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from ropeconv.rope.errors import RopeconvError
from ropeconv.rope.forms import (
    NO_ROTATION,
    Form,
    InterpolatedForm,
    Llama3,
    LongRope,
    Plain,
    Vector,
    Yarn,
    base_inv_freq,
    count_zero,
    divide,
    divisors,
    simplify_crossed,
    wavelengths,
    written_divisors,
)
from ropeconv.rope.recipe import Recipe
from ropeconv.rope.spec import Proportional, RopeSpec, recognise, share_of_pairs

from ..support.baking import recipe_of


def of_transformers(head_dim: int, **rope: Any) -> Vector:
    """What the installed transformers computes from a rope_parameters of a Llama, float64 [head_dim
    / 2].
    """
    from transformers import LlamaConfig
    from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

    config = LlamaConfig(head_dim=head_dim, max_position_embeddings=1 << 20, rope_parameters=rope)
    inv_freq, attention_factor = ROPE_INIT_FUNCTIONS[rope["rope_type"]](config)
    assert attention_factor == 1
    return inv_freq.double().numpy()


@pytest.mark.parametrize(("low", "high"), [(1.0, 1.0), (2.5, 2.5), (4.0, 1.0)])
@pytest.mark.parametrize("original", [64, 8192])
def test_llama3_without_a_ramp_is_a_step(low: float, high: float, original: int) -> None:
    """Also where the two factors are the wrong way round, which transformers warns about and
    computes.
    """
    form = Llama3(5e5, 16.0, original, low, high)
    rope = {
        "low_freq_factor": low,
        "high_freq_factor": high,
        "original_max_position_embeddings": original,
    }
    expected = of_transformers(64, rope_type="llama3", rope_theta=5e5, factor=16.0, **rope)
    np.testing.assert_allclose(form.inv_freq(64), expected, rtol=4e-6)
    turns = original * base_inv_freq(5e5, 64) / math.tau
    np.testing.assert_allclose(
        base_inv_freq(5e5, 64) / form.inv_freq(64), np.where(turns < low, 16.0, 1.0)
    )


@pytest.mark.parametrize("factor", [1.0, 4.0])
@pytest.mark.parametrize("head_dim", [64, 80, 96, 128])
def test_every_share_of_a_head_is_that_of_transformers(head_dim: int, factor: float) -> None:
    """Also where 2k / head_dim times head_dim is a little below 2k, which transformers cuts to a
    pair fewer.
    """
    for rotating in range(head_dim // 2):
        form = Proportional(1e4, factor, share_of_pairs(rotating, head_dim))
        rope = {"partial_rotary_factor": form.partial_rotary_factor, "factor": factor}
        expected = of_transformers(head_dim, rope_type="proportional", rope_theta=1e4, **rope)
        assert np.count_nonzero(expected) == rotating
        np.testing.assert_allclose(form.inv_freq(head_dim), expected, rtol=3e-7)


def prope(theta: float, pairs: int, rotating: int, factor: float = 1.0) -> Vector:
    vector = np.array([theta ** (-i / pairs) / factor for i in range(pairs)])
    vector[rotating:] = 0
    return vector


FACTOR_1 = prope(1e4, 32, 8)
FACTOR_4 = prope(1e4, 32, 8, 4.0)


@pytest.mark.parametrize(
    ("vector", "theta", "expected"),
    [
        (FACTOR_1, 1e4, Proportional(1e4, 1.0, 0.25)),
        (FACTOR_4, 1e4, Proportional(1e4, 4.0, 0.25)),
        (prope(3e6, 32, 8), 1e4, Proportional(3e6, 1.0, 0.25)),
        (np.zeros(32), 1e4, Proportional(1e4, 1.0, 0.0)),
        (FACTOR_1.astype(np.float32).astype(np.float64), 1e4, Proportional(1e4, 1.0, 0.25)),
        (FACTOR_1 + 1.1e-7 * (np.arange(32) == 0), 1e4, Proportional(1e4, 1.0, 0.25)),
        (FACTOR_1 - 1.1e-7 * (np.arange(32) == 0), 1e4, Proportional(1e4, 1.0, 0.25)),
        (
            np.array([0.25, 0.0]),
            1e4,
            Proportional(1e4, 4.0, 0.5),
        ),  # one pair says nothing of a base
        (np.array([0.5, 0.5, 0.0]), 1.0, Proportional(1.0, 2.0, share_of_pairs(2, 6))),
        (prope(1e4, 32, 32), 1e4, None),
        (np.where(np.arange(32) == 3, 0, FACTOR_1), 1e4, None),
        (FACTOR_1 * (1 + 1e-6 * (np.arange(32) == 3)), 1e4, None),
        (np.append(0, prope(1e4, 32, 32)[1:]), 1e4, None),
        (np.array([0.0, 0.5, 0.0]), 1e4, None),
        (np.append([1.0, 1e-20], np.zeros(30)), 1e4, None),
    ],
)
def test_vectors_that_are_proportional_or_not(
    vector: Vector, theta: float, expected: Proportional | None
) -> None:
    assert recognise(vector, theta) == expected


def test_divisors_of_frequencies_that_are_0() -> None:
    base = np.array([1.0, 0.5, 0.25])
    np.testing.assert_array_equal(divide(base, [2.0, 1e29, 9.9e28]), [0.5, 0, 0.25 / 9.9e28])
    np.testing.assert_array_equal(divisors(base, np.array([0.5, 0.0, 0.25])), [2.0, 1e30, 1.0])
    np.testing.assert_allclose(wavelengths(np.array([math.pi, 0.0])), [2.0, math.nan])
    assert (count_zero(np.array([0.0, 1e-300, 0.0])), count_zero(base)) == (2, 0)


def test_a_written_divisor_makes_the_frequency_exactly_0_in_float32() -> None:
    base = (np.float32(1e6) ** (np.arange(2, 512, 2, dtype=np.float32) / np.float32(512))).astype(
        np.float32
    )
    with np.errstate(over="ignore"):
        assert not (np.float32(1) / (np.float32(written_divisors([1e30])[0]) * base)).any()
        assert (np.float32(1) / (np.float32(1e30) * base)).all(), (
            "what GGUF files have is no 0 there"
        )
    assert written_divisors([2.0, 9.9e28]) == [2.0, 9.9e28]
    assert written_divisors([1e29]) == written_divisors([1e30]) == [float(np.finfo(np.float32).max)]


# YaRN whose ramp ends before it begins

BASES = (3.0, 31.6, 300.0, 1e4, 5e5, 1e7)
LENGTHS = (5, 64, 4096, 262144, 10_485_760)
BETAS = ((32.0, 1.0), (1.0, 1.0), (1e5, 1e4))


def yarn_of_transformers(form: Yarn, rotary_dim: int) -> Vector:
    """The frequencies that the installed transformers computes from the keys of a YaRN."""
    return of_transformers(
        rotary_dim,
        rope_type="yarn",
        rope_theta=form.theta,
        factor=form.factor,
        original_max_position_embeddings=form.original_context,
        beta_fast=form.beta_fast,
        beta_slow=form.beta_slow,
        truncate=form.truncate,
        attention_factor=1.0,
    )


@pytest.mark.parametrize("truncate", [True, False])
@pytest.mark.parametrize("rotary_dim", [8, 64, 128])
@pytest.mark.parametrize("betas", BETAS)
def test_yarn_keeps_fast_pairs_and_its_keys_are_what_transformers_computes(
    betas: tuple[float, float], rotary_dim: int, truncate: bool
) -> None:
    """For bases, widths and trained lengths where the ends of the ramp cross, and where not."""
    crossed = 0
    for theta in BASES:
        for length in LENGTHS:
            read = Yarn(theta, 4.0, length, *betas, truncate)
            by_transformers = yarn_of_transformers(read, rotary_dim)
            np.testing.assert_allclose(read.inv_freq(rotary_dim), by_transformers, rtol=3e-6)
            simple = simplify_crossed(read, rotary_dim).inv_freq(rotary_dim)
            np.testing.assert_allclose(simple, by_transformers, rtol=3e-6)

            # the method: no pair changes that rotates more than beta_fast times
            spec = RopeSpec(rotary_dim, rotary_dim, Plain(theta), length, length)
            schedule = recipe_of("yarn", 4.0, *betas, truncate).schedule(spec)
            base = base_inv_freq(theta, rotary_dim)
            is_fast = length * base / math.tau > betas[0] * theta ** (2 / rotary_dim)
            np.testing.assert_allclose(schedule.inv_freq[is_fast], base[is_fast], rtol=1e-12)

            # and what is written as yarn is what transformers computes
            low, high = read.ends(rotary_dim)
            crossed += low > high
            if isinstance(schedule.form, Yarn):
                written = yarn_of_transformers(schedule.form, rotary_dim)
                np.testing.assert_allclose(schedule.inv_freq, written, rtol=3e-6)
            else:
                assert schedule.form == Plain(theta)
    assert crossed > 0


def test_ends_that_cross_by_hand() -> None:
    """theta = e, L = 2 pi e^9 and r = 8: pair i rotates e^(9 - i / 4) times, the slowest, pair 3,
    e^8.25 = 3,828 times. 32 = e^3.47 rotations are those of pair 22.1, one rotation that of 36: the
    ramp would begin at 22, and ends at r - 1 = 7.
    """
    length = 2 * math.pi * math.exp(9)
    form = Yarn(math.e, 4.0, length)  # type: ignore[arg-type]
    assert form.ends(8) == (22, 7)
    assert form.ramp(8) == pytest.approx([1, 1, 1, 1])  # such as 22 / 15 for pair 0
    assert simplify_crossed(form, 8) == InterpolatedForm(math.e, 4.0)
    assert form.order_ends(8) == Plain(math.e)

    # pair 0 rotates e^-1 times: the ramp would end at pair -4, and begins at 0
    short = Yarn(math.e, 4.0, 2 * math.pi / math.e)  # type: ignore[arg-type]
    assert short.ends(8) == (0, -4)
    assert simplify_crossed(short, 8) == Plain(math.e)
    assert short.order_ends(8).inv_freq(8) == pytest.approx(
        base_inv_freq(math.e, 8) / np.array([1, 4, 4, 4])
    )


@pytest.mark.parametrize(
    ("spec", "crosses"),
    [
        (RopeSpec(128, 128, Plain(1e6), 131072, 131072), False),  # layers of Gemma 3
        (RopeSpec(128, 128, Plain(5e5), 10_485_760, 10_485_760), False),  # Llama 4 Scout
        (RopeSpec(64, 64, Plain(1e4), 163840, 163840, mla=True), False),  # DeepSeek V3
        (RopeSpec(128, 32, Plain(1e4), 131072, 131072), False),  # a quarter of the head
        (RopeSpec(128, 128, Plain(31.6), 262144, 262144), True),  # Gemma 4's pairs that rotate
        (RopeSpec(128, 128, Plain(10.0), 32768, 32768), True),
    ],
)
def test_only_a_small_base_makes_the_ends_cross(spec: RopeSpec, crosses: bool) -> None:
    """They cross for L above 64 pi theta^2."""
    form: Form | None = recipe_of("yarn", 4.0).schedule(spec).form
    assert isinstance(form, Plain) == crosses
    assert (spec.original_context > 64 * math.pi * spec.rope_theta**2) == crosses


THETA, WHOLE, ROTATING = 1e6, 512, 64  # Gemma 4: 64 of 256 pairs
GEMMA4 = RopeSpec(512, WHOLE, Proportional(THETA, 1.0, 0.25), 131072, 131072, rotating_share=0.25)
BASE = THETA ** (-np.arange(0, 2 * ROTATING, 2) / WHOLE)


def rotating(recipe: Recipe, spec: RopeSpec = GEMMA4) -> np.ndarray:
    """The frequencies of the pairs that rotate, after a look at the others."""
    inv_freq = recipe.schedule(spec).inv_freq
    assert len(inv_freq) == WHOLE // 2
    assert not inv_freq[ROTATING:].any()
    return inv_freq[:ROTATING]


@pytest.mark.parametrize("name", ["linear", "ntk", "ntk-fixed", "mixed"])
def test_the_slowest_pair_that_rotates_is_divided_by_the_factor(name: str) -> None:
    """And not by what NTK over the whole head would leave of it."""
    assert rotating(recipe_of(name, 4.0))[-1] == pytest.approx(BASE[-1] / 4, rel=1e-12)
    over_the_whole_head = THETA * 4 ** (WHOLE / (WHOLE - 2))
    assert over_the_whole_head ** (-2 * (ROTATING - 1) / WHOLE) > BASE[-1] / 1.5


def test_a_base_is_that_of_the_whole_head() -> None:
    recipe = recipe_of("theta", 5e6)
    assert recipe.schedule(GEMMA4).form == Proportional(5e6, 1.0, 0.25)
    assert (GEMMA4.scaled, GEMMA4.unscaled().form) == (False, Proportional(THETA, 1.0, 0.25))
    np.testing.assert_allclose(
        rotating(recipe), 5e6 ** (-np.arange(0, 2 * ROTATING, 2) / WHOLE), rtol=1e-12
    )
    law = recipe_of("theta-for", 1 << 20).schedule(GEMMA4)
    exponent = np.log((1 << 20) / (2 * np.pi)) / np.log(131072 / (2 * np.pi))
    assert law.form == Proportional(float(np.floor(THETA**exponent)), 1.0, 0.25)


def test_yarn_leaves_gemma_4_its_frequencies() -> None:
    """Its slowest pair that rotates turns 700 times in the trained context, and the ramp begins at
    32 turns.
    """
    schedule = recipe_of("yarn", 4.0).schedule(GEMMA4)
    assert 131072 * BASE[-1] / (2 * np.pi) > 32
    np.testing.assert_allclose(schedule.inv_freq[:ROTATING], BASE, rtol=1e-12)
    assert schedule.form == GEMMA4.form
    assert schedule.attention_factor > 1.1
    # 26B was trained with twice the length, where the ramp of the code ends before it begins
    larger = replace(GEMMA4, original_context=262144, context=262144)
    np.testing.assert_allclose(rotating(recipe_of("yarn", 4.0), larger), BASE, rtol=1e-12)
    assert recipe_of("yarn", 4.0).schedule(larger).form == GEMMA4.form
    dynamic = recipe_of("dynamic", "yarn:4", 1 << 20)
    np.testing.assert_allclose(rotating(dynamic, larger), BASE, rtol=1e-12)
    short = recipe_of("yarn", 4.0).schedule(replace(GEMMA4, original_context=64, context=64))
    assert short.form is None
    assert short.inv_freq[ROTATING - 1] == pytest.approx(BASE[-1] / 4, rel=1e-12)


def test_lists_keep_the_base_of_the_whole_head_and_its_still_pairs() -> None:
    form = recipe_of("longrope", (2.0,) * ROTATING, context=262144).schedule(GEMMA4).form
    assert isinstance(form, LongRope)
    assert (form.theta, form.long_factor[ROTATING - 1]) == (THETA, 2.0)
    assert set(form.long_factor[ROTATING:]) == {NO_ROTATION}


def test_a_given_vector_has_a_number_for_each_pair_that_rotates() -> None:
    vector = tuple((BASE / 3).tolist())
    np.testing.assert_allclose(rotating(recipe_of("inv-freq", vector)), vector)
    usual = tuple(BASE.tolist())
    assert recipe_of("inv-freq", usual).schedule(GEMMA4).form == GEMMA4.form, (
        "a formula is known again"
    )
    with pytest.raises(RopeconvError, match="this model rotates 64 pairs"):
        recipe_of("inv-freq", (*vector, 0.1)).schedule(GEMMA4)
