"""Log-n against the published table, and the steps that stand for it."""

import json
import math

import numpy as np
import pytest

from ropeconv.rope.errors import RecipeError
from ropeconv.rope.log_n import LogN, QueryScaling, approximate_log_n, deviation

from ..conftest import DATA

ROWS = json.loads((DATA / "schedules.json").read_text())["logn"]


@pytest.mark.parametrize("row", ROWS, ids=lambda row: f"n{row['n']}-L{row['maxlen']}")
def test_log_n(row: dict) -> None:
    position, length = np.array([row["n"] - 1]), row["maxlen"]
    assert LogN("full", length).scale(position)[0] == pytest.approx(row["logn"], abs=1e-15)
    assert LogN("clamped", length).scale(position)[0] == pytest.approx(row["logn_star"], rel=1e-14)


def test_a_length_of_one_token_is_no_length() -> None:
    with pytest.raises(RecipeError, match="longer --log-n-length"):
        LogN("full", 1)


def test_clamped_steps_are_one_inside_and_right_at_the_end_of_every_step() -> None:
    formula, steps = LogN("clamped", 4096), approximate_log_n(LogN("clamped", 4096))
    assert (steps.scale(np.arange(4096)) == 1).all()
    ends = np.arange(1, 9) * 4096 - 1
    np.testing.assert_allclose(steps.scale(ends), formula.scale(ends), rtol=1e-12)
    assert (steps.scale(np.arange(8 * 4096)) >= formula.scale(np.arange(8 * 4096)) - 1e-12).all()


@pytest.mark.parametrize(("length", "times", "percent"), [(4096, 4, 8.33), (32768, 4, 6.67)])
def test_deviation_of_the_clamped_steps(length: int, times: int, percent: float) -> None:
    """It is greatest where the second step begins: ln 2 / ln L."""
    formula = LogN("clamped", length)
    found = deviation(formula, approximate_log_n(formula), times * length)
    assert found == pytest.approx(math.log(2) / math.log(length), rel=1e-3)
    assert 100 * found == pytest.approx(percent, abs=0.01)
    everywhere = np.arange(1, times * length)
    brute = np.abs(approximate_log_n(formula).scale(everywhere) / formula.scale(everywhere) - 1).max()
    assert found == pytest.approx(brute, rel=1e-12)


def test_full_steps_are_log_n_but_for_the_one_in_front() -> None:
    formula = LogN("full", 4096)
    steps = approximate_log_n(formula)
    assert (steps.length, steps.gain) == (1, 2.0**-13)
    assert steps.gain * steps.beta == pytest.approx(1 / math.log(4096))
    assert deviation(formula, steps, 1 << 20) == pytest.approx(2.0**-13, rel=1e-6)
    assert deviation(formula, approximate_log_n(formula, 20), 1 << 20) == pytest.approx(2.0**-20, rel=1e-6)
    assert deviation(formula, QueryScaling(0.1, 4096), 16384) > 0.1, "other steps are not log-n"
