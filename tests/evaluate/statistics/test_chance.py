"""How often three errors are passed by chance: against mpmath, and by drawing."""

from __future__ import annotations

import math

import mpmath
import numpy as np
import pytest

from ropeconv.evaluate.statistics.chance import beyond


@pytest.mark.parametrize("freedom", [1, 2, 3, 7, 30, 231])
def test_it_is_students_t(freedom: int) -> None:
    wanted = mpmath.betainc(freedom / 2, 0.5, 0, freedom / (freedom + 9), regularized=True)
    assert beyond(freedom) == pytest.approx(float(wanted), rel=1e-4)


def test_many_units_are_a_normal_distribution() -> None:
    assert beyond(math.inf) == pytest.approx(0.0026998, abs=1e-7)
    assert beyond(1e5) == pytest.approx(beyond(math.inf), rel=1e-2)


def test_it_is_how_often_eight_windows_without_a_difference_pass() -> None:
    drawn = np.random.default_rng(6).normal(0, 1, (40_000, 8))
    passed = np.abs(drawn.mean(1)) > 3 * drawn.std(1, ddof=1) / math.sqrt(8)
    assert beyond(7) == pytest.approx(passed.mean(), rel=0.12)
    assert beyond(math.inf) < passed.mean() / 5, "eight windows are not a normal distribution"
