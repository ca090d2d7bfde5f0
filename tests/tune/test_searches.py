"""Searches on a model whose best schedule is known."""

from __future__ import annotations

import importlib.util
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from ropeconv.errors import UsageError
from ropeconv.rope.methods import REGISTRY as METHODS
from ropeconv.rope.methods.parts import YarnMethod
from ropeconv.rope.recipe import Recipe
from ropeconv.rope.schedule import Schedule
from ropeconv.tune.searches import REGISTRY, choose
from ropeconv.tune.searches.evolution import Genome
from ropeconv.tune.spaces import SPACES, recipe_of

from .models import CONTEXT, SPEC, Known, task

needs_optuna = pytest.mark.skipif(importlib.util.find_spec("optuna") is None, reason="needs optuna")
NOISE = np.random.default_rng(0).normal(0, 0.02, 64)


def towards(best: Schedule, noise: float = 1.0) -> Any:
    """A loss that grows with the squared distance of log frequencies and log attention factor to a schedule, with
    noise that depends on window and schedule."""

    def loss(schedule: Schedule, number: int) -> float:
        away = np.log(schedule.inv_freq / best.inv_freq)
        factor = np.log(schedule.attention_factor / best.attention_factor)
        drawn = NOISE[(number * 7 + int(1e6 * schedule.inv_freq[9])) % len(NOISE)]
        return float(1 + (away**2).mean() + factor**2 + number + noise * drawn)

    return Known(loss)


@needs_optuna
def test_parameters_of_yarn_are_found() -> None:
    best = Recipe(YarnMethod(6.0, beta_fast=12.0, beta_slow=0.5), context=CONTEXT, attention_factor=1.1).schedule(SPEC)
    work = task(towards(best, noise=0.1), over="yarn")
    found = REGISTRY["tpe"].run(work)
    assert found.name == "tuned yarn"
    assert found.schedule.context == CONTEXT
    gain = work.gain(found)
    assert gain.decided
    assert gain.mean < 0.6 * work.gain(replace(found, schedule=best)).mean < 0
    values = vars(found.recipe.method) if found.recipe else {}
    assert 3 < values["factor"] < 12
    again = REGISTRY["tpe"].run(task(towards(best, noise=0.1), over="yarn"))
    assert again.recipe == found.recipe, "the same seed gives the same"
    other = REGISTRY["tpe"].run(task(towards(best, noise=0.1), over="yarn", seed=1))
    assert other.recipe != found.recipe


@needs_optuna
def test_a_search_ends_where_nothing_better_is_found() -> None:
    work = task(towards(task(Known(lambda *given: 1.0)).start.formula("ntk").schedule, noise=0.0), over="linear")
    found = REGISTRY["tpe"].run(work)
    assert found is work.first
    assert found.method == "ntk"
    assert work.trace == [0.0] * 21, "20 trials after the first"


def test_factors_are_found_by_evolution() -> None:
    divisors = np.linspace(1, 5.5, 32) ** 1.1
    best = replace(SPEC.current(), inv_freq=SPEC.current().inv_freq / divisors, context=CONTEXT)
    work = task(towards(best, noise=0.1))
    found = REGISTRY["evolution"].run(work)
    gain, most = work.gain(found), work.gain(replace(found, schedule=best))
    assert gain.decided
    assert gain.mean < 0.5 * most.mean < 0
    lists = vars(found.recipe.method)["long_factor"] if found.recipe else ()
    assert (np.diff(lists) >= 0).all(), "they never fall from pair to pair"
    assert max(lists) <= 6.0 + 1e-6
    fixed = REGISTRY["evolution"].run(task(towards(best, noise=0.1), attention_factor=1.0, steps=2))
    assert fixed.schedule.attention_factor == 1.0


def test_pairs_before_the_critical_one_take_another_base() -> None:
    found = Genome(4, np.array([9.0, 9.0, 9.0, 9.0, 4.0, 6.0, 5.0, 8.0]), 1.0).expressed()
    assert found[:5] == pytest.approx([1, 4**0.25, 4**0.5, 4**0.75, 4])
    assert found[5:].tolist() == [6, 6, 8]


def test_spaces_name_parameters_of_methods() -> None:
    for name, space in SPACES.items():
        ends = [one.ends(task(Known(lambda *given: 1.0)).start) for one in space]
        for side in (0, 1):
            values = {one.name: pair[side] for one, pair in zip(space, ends, strict=True)}
            recipe = recipe_of(name, values, CONTEXT, 1.1)
            assert isinstance(recipe.method, METHODS[name])
            assert recipe.schedule(SPEC).context == CONTEXT
            assert recipe.attention_factor == 1.1


def test_what_is_searched_and_how_go_together() -> None:
    assert choose("factors", "", tuple(SPACES)).name == "gradient"
    assert choose("factors", "evolution", tuple(SPACES)).name == "evolution"
    assert choose("yarn", "", tuple(SPACES)).name == "tpe"
    for over, by in (("yarn", "gradient"), ("factors", "tpe"), ("piecewise", ""), ("factors", "sgd")):
        with pytest.raises(UsageError, match="choose"):
            choose(over, by, tuple(SPACES))
