"""What a schedule changes for a trained model, counted by hand."""

import math

import numpy as np
import pytest

from ropeconv.rope.bound.reach import profile, reach
from ropeconv.rope.forms import Llama3, Plain, base_inv_freq
from ropeconv.rope.methods.method import REGISTRY
from ropeconv.rope.recipe import Recipe
from ropeconv.rope.schedule import Schedule
from ropeconv.rope.spec import RopeSpec

from ..support.baking import recipe_of
from .small_head import BASE, spec

LLAMA_2 = RopeSpec(128, 128, Plain(1e4), 4096, 4096)
SMALL = np.array(BASE)


@pytest.mark.parametrize(
    ("recipe", "outside", "largest", "fastest", "first_violation"),
    [
        (
            recipe_of("linear", 8.0),
            0,
            8,
            8,
            13649,
        ),  # every angle is one of training, every frequency changed
        (recipe_of("theta", 1e4, context=32768), 128 - 92, 1, 1, 1707),
        (
            recipe_of("ntk", 8.0),
            128 - 92 - 2,
            8,
            8 ** (45 / 63),
            5732,
        ),  # by the factor in the last pair only
    ],
)
def test_profiles_of_methods(
    recipe: Recipe, outside: int, largest: float, fastest: float, first_violation: int
) -> None:
    result = profile(recipe.schedule(LLAMA_2), LLAMA_2)
    assert (result.critical_dimension, result.outside, result.reach.first_violation) == (
        92,
        outside,
        first_violation,
    )
    assert result.to_dict() == result.reach.to_dict() | {
        "critical_dimension": 92,
        "outside": outside,
        "largest_change": pytest.approx(largest),
        "not_rotating": 0,
        "largest_change_at": result.largest_change_at,
        "fast_change": pytest.approx(fastest),
    }


@pytest.mark.parametrize(
    "name", [name for name, kind in REGISTRY.items() if kind.for_context(LLAMA_2, 32768)]
)
def test_methods_reach_what_they_say(name: str) -> None:
    method = REGISTRY[name].for_context(LLAMA_2, 32768)
    assert method is not None
    schedule = Recipe(method).schedule(LLAMA_2)
    assert schedule.context == 32768
    assert method.finetuning_note
    assert method.command.startswith(f"--{name} ")
    angles = 4096 * base_inv_freq(1e4, 128)
    by_hand = (32768 * schedule.inv_freq > angles * (1 + 1e-9)) & (angles < 2 * math.pi)
    assert profile(schedule, LLAMA_2).outside == 2 * by_hand.sum()


def test_pairs_that_do_not_rotate_are_counted_and_change_no_number() -> None:
    vector = base_inv_freq(1e4, 128)
    vector[60:] = 0
    vector[10] /= 3
    result = profile(recipe_of("inv-freq", tuple(vector), context=32768).schedule(LLAMA_2), LLAMA_2)
    assert result.not_rotating == 4
    assert (result.largest_change, result.largest_change_at) == (pytest.approx(3), 10)
    assert result.fast_change == pytest.approx(3)
    assert result.outside == 128 - 92 - 8  # an angle of 0 was seen in training
    nothing = profile(recipe_of("inv-freq", (0.0,) * 64, context=32768).schedule(LLAMA_2), LLAMA_2)
    assert (nothing.not_rotating, nothing.outside, nothing.largest_change_at) == (64, 0, None)
    assert nothing.reach.first_violation is None  # the sum is 64 at every distance
    assert profile(LLAMA_2.current(), LLAMA_2).not_rotating == 0
    first = base_inv_freq(1e4, 128)
    first[0] = 0
    unchanged = profile(recipe_of("inv-freq", tuple(first)).schedule(LLAMA_2), LLAMA_2)
    assert (unchanged.largest_change, unchanged.largest_change_at) == (
        1,
        1,
    ), "the first pair that rotates"


def test_a_profile_by_hand() -> None:
    """L = 4096 and theta 10000 over 4 pairs: 4096, 409.6 and 40.96 radians complete a period, 4.096
    does not.
    """
    unchanged = profile(Schedule(SMALL, 1.0, 4096, 4096), spec())
    assert (unchanged.critical_dimension, unchanged.outside, unchanged.largest_change) == (
        6,
        0,
        1.0,
    )
    assert (unchanged.fast_change, unchanged.not_rotating) == (1.0, 0)
    assert profile(Schedule(SMALL, 1.0, 4097, 4096), spec()).outside == 2
    changed = profile(Schedule(SMALL / [1, 2, 1, 0.25], 1.0, 4096, 4096), spec())
    assert (
        changed.largest_change,
        changed.largest_change_at,
        changed.fast_change,
        changed.outside,
    ) == (4.0, 3, 2.0, 2)
    windowed = profile(Schedule(SMALL, 1.0, 16384, 4096), spec(layers=("global",), windows=(32,)))
    assert (windowed.outside, windowed.critical_dimension) == (0, 2)


def test_a_trained_scaling_is_what_a_profile_compares_with() -> None:
    """Llama 3.1 was trained with its frequencies and 131,072 tokens: nothing is new there, and a
    longer context is.
    """
    llama = RopeSpec(128, 128, Llama3(5e5, 8.0, 8192), 8192, 131072)
    unchanged = profile(llama.current(), llama)
    assert (unchanged.outside, unchanged.largest_change, unchanged.fast_change) == (0, 1.0, 1.0)
    by_hand = 131072 * llama.current().inv_freq >= math.tau
    unscaled = profile(llama.current(), llama.unscaled())
    assert unchanged.critical_dimension == 2 * by_hand.sum() > unscaled.critical_dimension
    longer = recipe_of("theta", 5e5, context=262144, on_top=True).schedule(llama)
    assert profile(longer, llama).outside == 128 - unchanged.critical_dimension


@pytest.mark.parametrize("still", [0, 40, 64, 100])
def test_pairs_that_stand_still_are_counted_beside_the_others(still: int) -> None:
    """A frequency of 0 adds 1 at every distance, so that its pair may as well be a dimension that
    does not rotate.
    """
    inv_freq = np.where(np.arange(128) < 128 - still, base_inv_freq(1e3, 256), 0.0)
    known = reach(inv_freq, 0.0, 20_000)
    same = reach(inv_freq[: 128 - still], float(still), 20_000)
    assert (known.first_violation, known.count, known.automatic) == (
        same.first_violation,
        same.count,
        still >= 64,
    )
    sums = np.cos(np.multiply.outer(np.arange(1, 20_000), inv_freq)).sum(axis=1)
    assert known.count == np.count_nonzero(sums < 0)
