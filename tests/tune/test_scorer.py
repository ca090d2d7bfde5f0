"""Windows are read once for each schedule; a race ends early for what is clearly worse."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest

from ropeconv.errors import NotFinite
from ropeconv.tune.scorer import Difference, Losses, Price, Scorer

from .models import SPEC, Known, window

BASE = SPEC.current()
OTHER = replace(BASE, inv_freq=BASE.inv_freq / 2)


def test_a_loss_is_that_beyond_with_the_prices_of_the_others() -> None:
    found = Losses(np.array([1.0, 3.0, 4.0, 6.0, 8.0]), beyond=2, needle=0.5)
    assert found.value(Price(inside=0.3, needle=2.0)) == pytest.approx(6 + 0.3 * 2 + 2 * 0.5)


def test_a_window_is_read_once_for_each_schedule() -> None:
    engine = Known(lambda schedule, number: number + schedule.inv_freq[0])
    scorer = Scorer(engine, [window(number) for number in range(3)], Price(0.0))
    assert scorer.values(BASE).tolist() == [1, 2, 3]
    assert scorer.values(OTHER, 2).tolist() == [0.5, 1.5]
    assert scorer.values(OTHER).tolist() == [0.5, 1.5, 2.5]
    assert engine.read == [0, 1, 2, 0, 1, 2]


@pytest.mark.parametrize(("worse", "read"), [(1.0, 4), (0.0, 12), (-1.0, 12)], ids=["clearly worse", "alike", "better"])
def test_a_race_ends_early_for_what_is_worse_beyond_its_error(worse: float, read: int) -> None:
    noise = np.random.default_rng(0).normal(0, 0.1, 12)

    def loss(schedule: object, number: int) -> float:
        return float(number) if schedule is BASE else float(number + worse + noise[number])

    found = Scorer(Known(loss), [window(number) for number in range(12)], Price(0.0)).race(OTHER, BASE)
    assert len(found.values) == read
    assert found.mean == pytest.approx(worse, abs=0.1)


@pytest.mark.parametrize(
    ("values", "error", "decided"),
    [([-1, -2, -3], 1 / math.sqrt(3), True), ([-1, -2, 1], math.sqrt(7 / 9), False), ([-5], math.inf, False)],
)
def test_the_error_is_that_of_paired_differences(values: list[float], error: float, decided: bool) -> None:
    found = Difference(np.array(values, float))
    assert (found.error, found.decided) == (pytest.approx(error), decided)


def test_losses_that_are_not_numbers_are_refused() -> None:
    scorer = Scorer(Known(lambda schedule, number: math.nan), [window(0)], Price())
    with pytest.raises(NotFinite, match="--dtype float32"):
        scorer.values(BASE)
