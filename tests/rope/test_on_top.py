"""What is kept of a scaling: a method on top of it (--on-top), and its own list up to its length (--keep-short)."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from ropeconv.rope.errors import RecipeError
from ropeconv.rope.forms import DynamicNtk, Form, Interpolated, Llama3, LongRope, Plain, Yarn
from ropeconv.rope.methods import REGISTRY
from ropeconv.rope.recipe import Recipe
from ropeconv.rope.schedule import Schedule
from ropeconv.rope.short_list import keep_short
from ropeconv.rope.spec import RopeSpec

from .small_head import BASE, THETA, TRAINED, spec

LLAMA_3_1 = RopeSpec(128, 128, Llama3(500000.0, 8.0, 8192), 8192, 131072)
QWEN = RopeSpec(128, 128, Yarn(1e6, 4.0, 32768), 32768, 131072, attention_factor=0.1 * math.log(4) + 1)
RAMP_OF_PAPER = Llama3(500000.0, 8.0, 8192, 1.0, 32.0)
ALPACA = RopeSpec(128, 128, Interpolated(10000.0, 4.0), 4096, 16384)


def on_top(spec: RopeSpec, method: str, *values: object, **more: object) -> Schedule:
    recipe = Recipe(REGISTRY[method](*values), on_top=True, **more)
    assert recipe.start(spec) is spec
    return recipe.schedule(spec)


@pytest.mark.parametrize("value", [4.0, "512k"])
def test_the_same_method_multiplies_its_factor(value: float | str) -> None:
    """A factor and the length that it reaches are the same: 512k is 4 times what each of the two declares."""
    llama = on_top(LLAMA_3_1, "llama3", value)
    assert (llama.form, llama.context, llama.attention_factor) == (Llama3(500000.0, 32.0, 8192), 524288, 1.0)
    qwen = on_top(QWEN, "yarn", value)
    assert (qwen.form, qwen.context) == (Yarn(1e6, 16.0, 32768), 524288)
    assert qwen.attention_factor == pytest.approx(0.1 * math.log(16) + 1)
    assert qwen.attention_factor != pytest.approx((0.1 * math.log(4) + 1) ** 2)


def test_settings_follow_the_scaling_unless_they_are_given() -> None:
    narrow = replace(QWEN, form=Yarn(1e6, 4.0, 32768, 16.0, 2.0, False))
    assert on_top(narrow, "yarn", 2.0).form == Yarn(1e6, 8.0, 32768, 16.0, 2.0, False)
    given = Recipe(REGISTRY["yarn"](2.0, beta_fast=24.0), on_top=True).schedule(narrow)
    assert given.form == Yarn(1e6, 8.0, 32768, 24.0, 2.0, False)


def test_an_attention_factor_of_its_own_grows_by_the_law() -> None:
    """DeepSeek's pair 1, 1 gives 1 at any factor; a source that switched the factor off keeps the ratio of the law."""
    pair = Recipe(REGISTRY["yarn"](2.0, mscale=1.0, mscale_all_dim=1.0), on_top=True)
    deepseek = RopeSpec(
        64, 64, Yarn(1e4, 40.0, 4096), 4096, 163840, softmax_scale=(0.1 * math.log(40) + 1) ** 2, mla=True
    )
    found = pair.schedule(deepseek)
    assert (found.form, found.attention_factor) == (Yarn(1e4, 80.0, 4096), 1.0)
    assert found.softmax_scale == pytest.approx((0.1 * math.log(80) + 1) ** 2)
    off = on_top(replace(QWEN, attention_factor=1.0), "yarn", 2.0)
    assert off.attention_factor == pytest.approx((0.1 * math.log(8) + 1) / (0.1 * math.log(4) + 1))


@pytest.mark.parametrize("spec", [LLAMA_3_1, QWEN, ALPACA], ids=lambda spec: spec.form.kind)
@pytest.mark.parametrize(
    ("method", "value", "grows", "context"),
    [("theta", 8e6, None, 1), ("ntk", 4.0, lambda b: b * 4 ** (128 / 126), 4), ("ntk-old", 4.0, lambda b: 4 * b, 4)],
)
def test_a_new_base_keeps_the_scaling(spec: RopeSpec, method: str, value: float, grows: object, context: int) -> None:
    """The formula of the scaling, evaluated with another base: what a hand edit of rope_theta gives."""
    found = on_top(spec, method, value)
    theta = value if grows is None else grows(spec.rope_theta)  # type: ignore[operator]
    assert found.form is not None
    assert found.form.theta == pytest.approx(theta)
    assert found.form == replace(spec.form, theta=found.form.theta)
    assert found.context == context * spec.context
    assert found.attention_factor == spec.attention_factor


def test_theta_for_sees_lengths_through_the_scaling() -> None:
    """64k on linear 4 is 16k to the base, trained at 4,096: the critical pair turns once in 64k after the division."""
    found = on_top(ALPACA, "theta-for", 65536)
    law = 10000 ** (math.log(16384 / (2 * math.pi)) / math.log(4096 / (2 * math.pi)))
    assert found.form == Interpolated(float(math.floor(law)), 4.0)
    assert found.context == 65536
    pair = 64 * math.log(4096 / (2 * math.pi)) / math.log(10000)
    assert 2 * math.pi * found.form.theta ** (2 * pair / 128) * 4 == pytest.approx(65536, rel=1e-3)


def by_parts(theta: float, factor: float, low: float, high: float, length: int) -> np.ndarray:
    """NTK-by-parts for 64 pairs, written here once more."""
    turns = [length * theta ** (-i / 64) / (2 * math.pi) for i in range(64)]
    keep = [min(max((turn - low) / (high - low), 0), 1) for turn in turns]
    return np.array([theta ** (-i / 64) * (k + (1 - k) / factor) for i, k in enumerate(keep)])


def test_another_method_multiplies_the_divisors() -> None:
    """mixed 4 over Llama 3.1: the frequencies of llama3, divided by exp(a (i+1)^0.625) with the last pair by 4."""
    found = on_top(LLAMA_3_1, "mixed", 4.0)
    slope = math.log(4) / 64**0.625
    divisors = [math.exp(slope * (i + 1) ** 0.625) for i in range(64)]
    expected = by_parts(500000.0, 8.0, 1.0, 4.0, 8192) / divisors
    np.testing.assert_allclose(found.inv_freq, expected, rtol=1e-13)
    assert (found.form, found.context, found.attention_factor) == (None, 524288, 1.0)
    replaced = Recipe(REGISTRY["mixed"](4.0)).schedule(LLAMA_3_1.unscaled())
    assert not np.allclose(found.inv_freq, replaced.inv_freq)


LAW_2 = 0.1 * math.log(2) + 1


@pytest.mark.parametrize(
    ("spec", "method", "form", "attention_factor"),
    [
        (ALPACA, "linear", Interpolated(10000.0, 8.0), 1.0),
        (replace(ALPACA, form=Plain(10000.0), attention_factor=1.2), "linear", Interpolated(10000.0, 2.0), 1.2),
        (QWEN, "llama3", None, QWEN.attention_factor),
        (LLAMA_3_1, "yarn", None, LAW_2),
        (replace(ALPACA, attention_factor=1.1), "yarn", None, 1.1 * LAW_2),
        (replace(LLAMA_3_1, form=RAMP_OF_PAPER), "by-parts", replace(RAMP_OF_PAPER, factor=16.0), 1.0),
        (LLAMA_3_1, "by-parts", None, 1.0),
    ],
)
def test_twice_the_context_of_a_scaling(
    spec: RopeSpec, method: str, form: Form | None, attention_factor: float
) -> None:
    """The same formula is widened, another one multiplied with it; attention factors multiply."""
    found = on_top(spec, method, 2.0)
    assert (found.form, found.context) == (form, 2 * spec.context)
    assert found.attention_factor == pytest.approx(attention_factor)
    if method == "linear":
        np.testing.assert_allclose(found.inv_freq, spec.form.inv_freq(128) / 2, rtol=1e-14)


def test_softmax_scales_multiply() -> None:
    mla = replace(ALPACA, softmax_scale=1.5, mla=True)
    pair = on_top(mla, "yarn", 2.0, 32.0, 1.0, True, 1.0, 1.0)
    assert (pair.softmax_scale, pair.attention_factor) == (pytest.approx(1.5 * LAW_2**2), 1.0)


def test_both_lists_are_divided() -> None:
    short, long = tuple([1.0] * 32), tuple(float(2 + i) for i in range(32))
    phi = RopeSpec(64, 64, LongRope(10000.0, short, long, 4096), 4096, 131072, attention_factor=1.19)
    found = on_top(phi, "linear", 2.0)
    assert isinstance(found.form, LongRope)
    np.testing.assert_allclose(found.form.short_factor, [2.0] * 32, rtol=1e-14)
    np.testing.assert_allclose(found.form.long_factor, [2 * value for value in long], rtol=1e-14)
    base = np.array([10000 ** (-i / 32) for i in range(32)])
    np.testing.assert_allclose(found.short_inv_freq, base / 2, rtol=1e-14)
    assert (found.original_context, found.context, found.attention_factor) == (4096, 262144, 1.19)
    still = on_top(replace(phi, form=LongRope(10000.0, short, (*long[:31], 1e30), 4096)), "linear", 2.0)
    assert still.inv_freq[-1] == 0, "as the source has it"


def test_a_temperature_is_that_of_both_scalings() -> None:
    """a ln s + b with s the declared context over the one before any scaling, 8 here, and not the method's own 2."""
    found = on_top(ALPACA, "linear", 2.0, temperature_slope=0.2)
    assert found.attention_factor == pytest.approx(0.2 * math.log(8) + 1)


def test_lists_on_top_of_one_frequency_vector() -> None:
    """They change where the source ends, and LongRoPE's attention factor is of the context given over the declared."""
    small = RopeSpec(8, 8, Interpolated(10000.0, 2.0), 4096, 8192)
    lists = REGISTRY["longrope"]((1.0, 2.0, 3.0, 4.0), (1.0, 1.0, 1.0, 2.0))
    found = Recipe(lists, on_top=True, context=32768).schedule(small)
    assert isinstance(found.form, LongRope)
    np.testing.assert_allclose(found.form.long_factor, [2, 4, 6, 8])
    np.testing.assert_allclose(found.form.short_factor, [2, 2, 2, 4])
    assert (found.context, found.original_context, found.form.original_context) == (32768, 8192, 8192)
    assert found.attention_factor == pytest.approx(math.sqrt(1 + math.log(4) / math.log(4096)))


@pytest.mark.parametrize(
    ("spec", "method", "value", "words"),
    [
        (RopeSpec(64, 64, Plain(1e4), 4096, 4096), "yarn", 4.0, "this one has none; leave it out"),
        (
            RopeSpec(64, 64, DynamicNtk(1e4, 2.0, 4096), 4096, 4096),
            "yarn",
            4.0,
            "--dynamic ntk:2 --at TOKENS --replace",
        ),
        (LLAMA_3_1, "yarn", "128k", "--yarn 128k is within the declared 131,072 tokens"),
    ],
)
def test_what_cannot_be_had(spec: RopeSpec, method: str, value: object, words: str) -> None:
    with pytest.raises(RecipeError, match=words):
        Recipe(REGISTRY[method](value), on_top=True).schedule(spec)


def test_the_bound_is_checked_under_the_scaling_that_stays() -> None:
    found = on_top(ALPACA, "theta-bound", 32768)
    assert isinstance(found.form, Interpolated)
    cosines = np.cos(np.arange(32768)[:, None] * found.inv_freq).sum(axis=1)
    assert cosines.min() >= 0


def made(attention_factor: float = 1.0, softmax_scale: float = 1.0, context: int = 2 * TRAINED) -> Schedule:
    return Schedule(np.array(BASE) / 4, attention_factor, context, TRAINED, softmax_scale=softmax_scale)


@pytest.mark.parametrize("own", [0.25, 1.0, 4.0])
def test_factors_are_the_same_to_a_billionth_of_themselves(own: float) -> None:
    """Of the attention factor and of the softmax scale alike, above and below."""
    for near in (own * (1 + 5e-10), own * (1 - 5e-10)):
        assert keep_short(made(near), spec(attention_factor=own)).attention_factor == near
        assert keep_short(made(softmax_scale=near), spec(softmax_scale=own)).softmax_scale == near
    for far in (own * (1 + 2e-9), own * (1 - 2e-9)):
        with pytest.raises(RecipeError, match=f"the source has {own:.6g} and this method .*--attention-factor {own:g}"):
            keep_short(made(far, context=1 << 20), spec(attention_factor=own))
        with pytest.raises(RecipeError, match=f"the source has {own:.6g} and this method .*; leave it out"):
            keep_short(made(softmax_scale=far), spec(softmax_scale=own))


@pytest.mark.parametrize(
    ("changed", "source", "words"),
    [
        ({"short_inv_freq": np.array(BASE)}, {}, "two factor lists already, and no runtime"),
        ({}, {"form": LongRope(THETA, (1.0,) * 4, (2.0,) * 4, 64)}, "the source has two factor lists"),
        ({"inv_freq": np.array([1.0, 0.1, 0, 0])}, {}, "cannot hold frequencies that are 0"),
        ({}, {"form": LongRope(THETA, (1.0, 1.0, 1.0, 1e30), (1.0, 1.0, 1.0, 1e30), 64)}, "frequencies that are 0"),
    ],
)
def test_two_lists_that_cannot_be(changed: dict[str, Any], source: dict[str, Any], words: str) -> None:
    with pytest.raises(RecipeError, match=words):
        keep_short(replace(made(), **changed), spec(**source))


def test_the_context_goes_beyond_the_length_of_the_short_list() -> None:
    assert keep_short(made(context=TRAINED + 1), spec()).original_context == TRAINED
    declared = spec(context=2 * TRAINED)
    assert keep_short(made(context=TRAINED + 1), declared).original_context == TRAINED, "what it was trained for"
    with pytest.raises(RecipeError, match="changes lists at 4,096 tokens, and the context is 4,096; leave it out"):
        keep_short(made(context=TRAINED), spec())


def test_the_short_list_is_that_of_the_checkpoint_and_not_of_the_unscaled_model() -> None:
    scaled = spec(form=Interpolated(THETA, 2.0), context=2 * TRAINED)
    recipe = Recipe(REGISTRY["linear"](8.0), keep_short=True)
    found, bare = recipe.schedule(scaled.unscaled(), scaled), recipe.schedule(spec())
    np.testing.assert_allclose(found.short_inv_freq, np.array(BASE) / 2)
    np.testing.assert_allclose(bare.short_inv_freq, BASE)
    assert (found.original_context, bare.original_context) == (2 * TRAINED, TRAINED)
    np.testing.assert_allclose(found.inv_freq, bare.inv_freq)


def test_two_equal_lists_of_the_source_are_one_which_a_third_may_join() -> None:
    one = LongRope(THETA, (2.0,) * 4, (2.0,) * 4, TRAINED)
    found = keep_short(made(context=1 << 20), spec(form=one, context=2 * TRAINED))
    np.testing.assert_allclose(found.short_inv_freq, np.array(BASE) / 2)
    assert found.original_context == 2 * TRAINED


def test_the_lists_are_divisors_of_the_models_base() -> None:
    found = keep_short(made(), spec())
    assert isinstance(found.form, LongRope)
    np.testing.assert_allclose(found.form.short_factor, [1] * 4)
    np.testing.assert_allclose(found.form.long_factor, [4] * 4)
    assert (found.form.theta, found.form.original_context) == (THETA, TRAINED)
