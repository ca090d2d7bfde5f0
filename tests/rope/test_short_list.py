"""keep_short: which differences of the two factors are too much for one file, and which frequencies two lists hold."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from ropeconv.rope.errors import RecipeError
from ropeconv.rope.forms import Interpolated, LongRope
from ropeconv.rope.methods import REGISTRY
from ropeconv.rope.recipe import Recipe
from ropeconv.rope.schedule import Schedule
from ropeconv.rope.short_list import keep_short

from .small_head import BASE, THETA, TRAINED, spec


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
