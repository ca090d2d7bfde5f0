"""What is kept of a scaling: a method on top of it (--on-top), and its own list up to its length
(--keep-short).
"""

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from ropeconv.rope.errors import RecipeError
from ropeconv.rope.forms import DynamicNtk, Form, InterpolatedForm, Llama3, LongRope, Plain, Yarn
from ropeconv.rope.methods.method import REGISTRY
from ropeconv.rope.recipe import Recipe, keep_short, total_factor
from ropeconv.rope.schedule import Schedule
from ropeconv.rope.spec import RopeSpec

from ..support.baking import recipe_of
from .small_head import BASE, THETA, TRAINED, spec

LLAMA_3_1 = RopeSpec(128, 128, Llama3(500000.0, 8.0, 8192), 8192, 131072)
QWEN = RopeSpec(
    128, 128, Yarn(1e6, 4.0, 32768), 32768, 131072, attention_factor=0.1 * math.log(4) + 1
)
ALPACA = RopeSpec(128, 128, InterpolatedForm(10000.0, 4.0), 4096, 16384)


def on_top(
    spec: RopeSpec, method: str, value: object, settings: dict[str, Any] | None = None, **more: Any
) -> Schedule:
    recipe = Recipe(REGISTRY[method](value, **(settings or {})), on_top=True, **more)
    assert recipe.start(spec) is spec
    return recipe.schedule(spec)


def law(factor: float) -> float:
    return 0.1 * math.log(factor) + 1


CROSSED = replace(QWEN, form=Yarn(1e6, 4.0, 32768, 1e-20, 1e-20), attention_factor=1.0)
"""Linear scaling as the encoding `ramp` writes it: the ramp ends before it begins."""
NARROW = replace(QWEN, form=Yarn(1e6, 4.0, 32768, 16.0, 2.0, False))
OFF = replace(QWEN, attention_factor=1.0)
HOT = replace(ALPACA, attention_factor=1.1)
PLAIN = replace(ALPACA, form=Plain(10000.0), attention_factor=1.2)
DEEPSEEK = RopeSpec(
    64, 64, Yarn(1e4, 40.0, 4096), 4096, 163840, softmax_scale=law(40) ** 2, mla=True
)
MLA = replace(ALPACA, softmax_scale=1.5, mla=True)
PAIR = {"mscale": 1.0, "mscale_all_dim": 1.0}
RAMP = Llama3(500000.0, 8.0, 8192, 1.0, 32.0)
THROUGH = math.floor(10000 ** (math.log(16384 / math.tau) / math.log(4096 / math.tau)))


@pytest.mark.parametrize(
    ("spec", "method", "value", "settings", "form", "context", "attention_factor", "softmax_scale"),
    [
        # the same method multiplies its factor; a factor and the length that it reaches are the
        # same
        (LLAMA_3_1, "llama3", 4.0, {}, Llama3(500000.0, 32.0, 8192), 524288, 1, 1),
        (LLAMA_3_1, "llama3", "512k", {}, Llama3(500000.0, 32.0, 8192), 524288, 1, 1),
        (QWEN, "yarn", 4.0, {}, Yarn(1e6, 16.0, 32768), 524288, law(16), 1),
        (QWEN, "yarn", "512k", {}, Yarn(1e6, 16.0, 32768), 524288, law(16), 1),
        (ALPACA, "linear", 2.0, {}, InterpolatedForm(10000.0, 8.0), 32768, 1, 1),
        (PLAIN, "linear", 2.0, {}, InterpolatedForm(10000.0, 2.0), 32768, 1.2, 1),
        (
            replace(LLAMA_3_1, form=RAMP),
            "by-parts",
            2.0,
            {},
            replace(RAMP, factor=16.0),
            262144,
            1,
            1,
        ),
        (LLAMA_3_1, "by-parts", 2.0, {}, None, 262144, 1, 1),
        # a YaRN that divides every frequency is linear scaling
        (CROSSED, "linear", 2.0, {}, InterpolatedForm(1e6, 8.0), 262144, 1, 1),
        (CROSSED, "yarn", 2.0, {}, None, 262144, law(2), 1),
        (CROSSED, "theta", 8e6, {}, InterpolatedForm(8e6, 4.0), 131072, 1, 1),
        # settings follow the scaling unless they are given
        (NARROW, "yarn", 2.0, {}, Yarn(1e6, 8.0, 32768, 16.0, 2.0, False), 262144, law(8), 1),
        (
            NARROW,
            "yarn",
            2.0,
            {"beta_fast": 24.0},
            Yarn(1e6, 8.0, 32768, 24.0, 2.0, False),
            262144,
            law(8),
            1,
        ),
        # DeepSeek's pair gives 1 at any factor; a source that switched its factor off keeps the
        # ratio of the law
        (DEEPSEEK, "yarn", 2.0, PAIR, Yarn(1e4, 80.0, 4096), 327680, 1, law(80) ** 2),
        (OFF, "yarn", 2.0, {}, Yarn(1e6, 8.0, 32768), 262144, law(8) / law(4), 1),
        # attention factors and softmax scales of different methods multiply
        (QWEN, "llama3", 2.0, {}, None, 262144, QWEN.attention_factor, 1),
        (LLAMA_3_1, "yarn", 2.0, {}, None, 262144, law(2), 1),
        (HOT, "yarn", 2.0, {}, None, 32768, 1.1 * law(2), 1),
        (MLA, "yarn", 2.0, PAIR, None, 32768, 1, 1.5 * law(2) ** 2),
        # 64k on linear 4 is 16k to the base, which was trained at 4,096
        (ALPACA, "theta-for", 65536, {}, InterpolatedForm(float(THROUGH), 4.0), 65536, 1, 1),
    ],
)
def test_a_method_on_top_of_a_scaling(
    spec: RopeSpec,
    method: str,
    value: object,
    settings: dict[str, Any],
    form: Form | None,
    context: int,
    attention_factor: float,
    softmax_scale: float,
) -> None:
    schedule = on_top(spec, method, value, settings)
    assert (schedule.form, schedule.context) == (form, context)
    assert schedule.attention_factor == pytest.approx(attention_factor)
    assert schedule.softmax_scale == pytest.approx(softmax_scale)


@pytest.mark.parametrize("spec", [LLAMA_3_1, QWEN, ALPACA], ids=lambda spec: spec.form.kind)
@pytest.mark.parametrize(
    ("method", "value", "grows", "context"),
    [
        ("theta", 8e6, None, 1),
        ("ntk", 4.0, lambda b: b * 4 ** (128 / 126), 4),
        ("ntk-old", 4.0, lambda b: 4 * b, 4),
    ],
)
def test_a_new_base_keeps_the_scaling(
    spec: RopeSpec, method: str, value: float, grows: object, context: int
) -> None:
    """The formula of the scaling, evaluated with another base: what a hand edit of rope_theta
    gives.
    """
    schedule = on_top(spec, method, value)
    theta = value if grows is None else grows(spec.rope_theta)  # type: ignore[operator]
    assert schedule.form is not None
    assert schedule.form.theta == pytest.approx(theta)
    assert schedule.form == replace(spec.form, theta=schedule.form.theta)
    assert schedule.context == context * spec.context
    assert schedule.attention_factor == spec.attention_factor


def test_another_method_multiplies_the_divisors() -> None:
    """mixed 4 over Llama 3.1: the frequencies of llama3, divided by exp(a (i+1)^0.625) with the
    last pair by 4.
    """
    schedule = on_top(LLAMA_3_1, "mixed", 4.0)
    divisors = [math.exp(math.log(4) * ((i + 1) / 64) ** 0.625) for i in range(64)]
    np.testing.assert_allclose(
        schedule.inv_freq, LLAMA_3_1.form.inv_freq(128) / divisors, rtol=1e-13
    )
    assert (schedule.form, schedule.context, schedule.attention_factor) == (None, 524288, 1.0)


def test_the_list_inside_the_trained_length_is_divided_too() -> None:
    lists = LongRope(10000.0, (1.0,) * 64, (2.0,) * 64, 4096)
    schedule = on_top(replace(ALPACA, form=lists), "mixed", 4.0)
    base = Plain(10000.0).inv_freq(128)
    divisors = base / recipe_of("mixed", 4.0).schedule(PLAIN).inv_freq
    np.testing.assert_allclose(schedule.short_inv_freq, base / divisors, rtol=1e-13)
    np.testing.assert_allclose(schedule.inv_freq, base / divisors / 2, rtol=1e-13)
    assert isinstance(schedule.form, LongRope)
    np.testing.assert_allclose(
        [schedule.form.short_factor[63], schedule.form.long_factor[63]], [4, 8], rtol=1e-13
    )
    assert schedule.form.original_context == schedule.original_context == 4096


@pytest.mark.parametrize(
    ("spec", "method", "value", "factors"),
    [
        (QWEN, "yarn", 2.0, (4.0, 2.0)),
        (QWEN, "yarn", "256k", (4.0, 2.0)),
        (LLAMA_3_1, "llama3", 4.0, (8.0, 4.0)),
        (QWEN, "llama3", 2.0, None),
        (PLAIN, "yarn", 2.0, None),
        (LLAMA_3_1, "theta", 8e6, None),
    ],
)
def test_the_factors_whose_product_is_written(
    spec: RopeSpec, method: str, value: object, factors: tuple[float, float] | None
) -> None:
    assert total_factor(REGISTRY[method](value), spec) == factors


@pytest.mark.parametrize(
    ("spec", "method", "value", "words"),
    [
        (LLAMA_3_1.unscaled(), "yarn", 4.0, "this one has none; leave it out"),
        (
            replace(ALPACA, form=DynamicNtk(1e4, 2.0, 4096)),
            "yarn",
            4.0,
            "--dynamic ntk:2 --at TOKENS --replace",
        ),
        (LLAMA_3_1, "dynamic", "yarn:2", "say with --at TOKENS at which length to freeze it"),
        (LLAMA_3_1, "yarn", "128k", "--yarn 128k is within the declared 131,072 tokens"),
    ],
)
def test_what_cannot_be_had(spec: RopeSpec, method: str, value: object, words: str) -> None:
    with pytest.raises(RecipeError, match=words):
        recipe_of(method, value, on_top=True).schedule(spec)


def test_the_bound_is_checked_under_the_scaling_that_stays() -> None:
    schedule = on_top(ALPACA, "theta-bound", 32768)
    assert isinstance(schedule.form, InterpolatedForm)
    cosines = np.cos(np.arange(32768)[:, None] * schedule.inv_freq).sum(axis=1)
    assert cosines.min() >= 0


def made(
    attention_factor: float = 1.0, softmax_scale: float = 1.0, context: int = 2 * TRAINED
) -> Schedule:
    return Schedule(
        np.array(BASE) / 4, attention_factor, context, TRAINED, softmax_scale=softmax_scale
    )


@pytest.mark.parametrize(
    ("changed", "source", "words"),
    [
        ({"short_inv_freq": np.array(BASE)}, {}, "two factor lists already, and no runtime"),
        (
            {},
            {"form": LongRope(THETA, (1.0,) * 4, (2.0,) * 4, 64)},
            "the source has two factor lists",
        ),
        ({"inv_freq": np.array([1.0, 0.1, 0, 0])}, {}, "cannot hold frequencies that are 0"),
        (
            {},
            {"form": LongRope(THETA, (1.0, 1.0, 1.0, 1e30), (1.0, 1.0, 1.0, 1e30), 64)},
            "frequencies that are 0",
        ),
    ],
)
def test_two_lists_that_cannot_be(
    changed: dict[str, Any], source: dict[str, Any], words: str
) -> None:
    with pytest.raises(RecipeError, match=words):
        keep_short(replace(made(), **changed), spec(**source))


def test_the_short_list_is_that_of_the_checkpoint_and_not_of_the_unscaled_model() -> None:
    scaled = spec(form=InterpolatedForm(THETA, 2.0), context=2 * TRAINED)
    recipe = recipe_of("linear", 8.0, keep_short=True)
    schedule = recipe.schedule(scaled.unscaled(), scaled)
    bare = recipe.schedule(spec())
    np.testing.assert_allclose(schedule.short_inv_freq, np.array(BASE) / 2)
    np.testing.assert_allclose(bare.short_inv_freq, BASE)
    assert bare.form == LongRope(
        THETA, pytest.approx((1.0,) * 4), pytest.approx((8.0,) * 4), TRAINED
    )  # type: ignore[arg-type]
    assert (schedule.original_context, bare.original_context) == (2 * TRAINED, TRAINED)
    np.testing.assert_allclose(schedule.inv_freq, bare.inv_freq)
