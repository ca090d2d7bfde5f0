"""Log-n against the published table, and the steps that stand for it."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest

from ropeconv.rope.errors import RecipeError
from ropeconv.rope.log_n import LogN, QueryScaling, approximate_log_n, deviation, effective_scaling

from ..conftest import DATA

ROWS = json.loads((DATA / "schedules.json").read_text())["logn"]


@pytest.mark.parametrize("row", ROWS, ids=lambda row: f"n{row['n']}-L{row['maxlen']}")
def test_log_n_is_that_of_the_table(row: dict[str, float]) -> None:
    position, length = np.array([row["n"] - 1]), int(row["maxlen"])
    assert LogN("full", length).scale(position)[0] == pytest.approx(row["logn"], abs=1e-15)
    assert LogN("clamped", length).scale(position)[0] == pytest.approx(row["logn_star"], rel=1e-14)


def test_scales_by_hand() -> None:
    positions = np.array([0.0, 9.0, 99.0, 999.0])
    np.testing.assert_allclose(LogN("full", 100).scale(positions), [0, 0.5, 1, 1.5], atol=1e-15)
    np.testing.assert_allclose(LogN("clamped", 100).scale(positions), [1, 1, 1, 1.5])
    np.testing.assert_allclose(QueryScaling(2.0, 10, 3.0).scale(positions), 3 * (1 + 2 * np.log([1, 1, 10, 100])))
    assert LogN("full", 2).length == 2
    with pytest.raises(RecipeError, match="log-n over 1 token.*longer --log-n-length"):
        LogN("full", 1)


def test_clamped_steps_are_one_inside_and_right_at_the_end_of_every_step() -> None:
    formula, steps = LogN("clamped", 4096), approximate_log_n(LogN("clamped", 4096))
    assert (steps.scale(np.arange(4096)) == 1).all()
    ends = np.arange(1, 9) * 4096 - 1
    np.testing.assert_allclose(steps.scale(ends), formula.scale(ends), rtol=1e-12)
    assert (steps.scale(np.arange(8 * 4096)) >= formula.scale(np.arange(8 * 4096)) - 1e-12).all()


@pytest.mark.parametrize(("length", "times", "percent"), [(64, 16, 16.23), (4096, 4, 8.33), (32768, 4, 6.67)])
def test_the_deviation_of_clamped_steps_is_greatest_where_the_second_begins(
    length: int, times: int, percent: float
) -> None:
    """ln 2L / ln (L + 1) - 1, and as large as at all positions one by one; within the length it is 0."""
    formula = LogN("clamped", length)
    steps, everywhere = approximate_log_n(formula), np.arange(1, times * length)
    found = deviation(formula, steps, times * length)
    assert found == pytest.approx(math.log(2 * length) / math.log(length + 1) - 1, rel=1e-9)
    assert 100 * found == pytest.approx(percent, abs=0.01)
    assert found == pytest.approx(np.abs(steps.scale(everywhere) / formula.scale(everywhere) - 1).max(), rel=1e-12)
    assert deviation(formula, steps, length) == pytest.approx(0)


def test_the_deviation_of_other_steps_is_greatest_at_the_last_position() -> None:
    constant = QueryScaling(0.0, 64)
    expected = 1 - math.log(64) / math.log(1000)
    assert deviation(LogN("clamped", 64), constant, 1000) == pytest.approx(expected)
    assert deviation(LogN("full", 4096), QueryScaling(0.1, 4096), 16384) > 0.1


def test_full_steps_are_log_n_but_for_the_one_in_front() -> None:
    formula = LogN("full", 4096)
    steps = approximate_log_n(formula)
    assert (steps.length, steps.gain) == (1, 2.0**-13)
    assert steps.gain * steps.beta == pytest.approx(1 / math.log(4096))
    assert deviation(formula, steps, 1 << 20) == pytest.approx(2.0**-13, rel=1e-6)
    assert deviation(formula, approximate_log_n(formula, 20), 1 << 20) == pytest.approx(2.0**-20, rel=1e-6)


def test_an_approximation_counts_where_it_differs_by_more_than_bfloat16_rounds() -> None:
    log_n, steps = LogN("full", 64), QueryScaling(1.0, 1)
    assert effective_scaling(log_n, steps, 1e-3) is log_n
    assert effective_scaling(log_n, steps, 1.01e-3) is steps
    assert effective_scaling(log_n, None, 1.0) is log_n
    assert effective_scaling(None, None, 0.0) is None
