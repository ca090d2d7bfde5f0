"""The steps of the tables: each lasts until the first distance that violates somewhere in its window, term by term."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import pairwise

import numpy as np
import pytest

from ropeconv.rope.bound.step_functions import base_steps, last_steps, next_violation, wide_steps
from ropeconv.rope.bound.sums import Sums
from ropeconv.rope.bound.table import Step

Steps = Callable[[Sums, int], Iterator[Step]]
BOTH = pytest.mark.parametrize("steps", [base_steps, wide_steps])


def lowest(rotary_dim: int, distance: int, begin: float, end: float) -> float:
    """The lowest sum of cosines of one distance over 4,000 bases inside a window."""
    bases = np.geomspace(begin, min(end, 1e3 * begin), 4001)[1:-1]
    return float(sum(np.cos(distance * bases ** (-2 * pair / rotary_dim)) for pair in range(rotary_dim // 2)).min())


@BOTH
@pytest.mark.parametrize("rotary_dim", [8, pytest.param(16, marks=pytest.mark.nightly)])
def test_a_step_lasts_until_a_further_distance_violates_in_its_window(steps: Steps, rotary_dim: int) -> None:
    found = list(steps(Sums(rotary_dim), 105))
    assert len(found) > 15
    for step, following in pairwise(found):
        new = following.length - 1
        assert lowest(rotary_dim, new, step.begin, step.end) < 0
        assert all(lowest(rotary_dim, known, step.begin, step.end) > 0 for known in range(1, new))


@BOTH
def test_steps_go_on_from_any_of_them(steps: Callable[..., Iterator[Step]]) -> None:
    found = list(steps(Sums(8), 30))
    for place, step in enumerate(found):
        again = list(steps(Sums(8), 30, step))
        assert [one.length for one in again] == [one.length for one in found[place:]]
        np.testing.assert_allclose([one.begin for one in again], [one.begin for one in found[place:]], rtol=1e-12)


@BOTH
def test_a_step_that_begins_at_the_last_length_is_among_them(steps: Steps) -> None:
    head = Sums(8)
    lengths = [step.length for step in steps(head, 30)]
    assert lengths == [3, 4, 5, 8, 9, 10, 11, 16, 17, 23, 29]
    for length in (3, 4, 10, 29):
        assert [step.length for step in steps(head, length)][-1] == length
        assert all(step.length < length for step in steps(head, length - 1))


def test_the_next_violation_may_be_the_last_distance_that_is_looked_at() -> None:
    """Of 8 dimensions with base 12 the sums at 1 to 7 are 3.35, 1.85, 0.51, 0.018, 0.23, 0.40 and -0.029."""
    begin = float(np.log(12.0))
    assert next_violation(Sums(8), 1, begin, np.inf, 7) == (7, np.inf)  # looks at distances below 7
    assert next_violation(Sums(8), 1, begin, np.inf, 8) == (7, begin)
    assert next_violation(Sums(8), 8, begin, np.inf, 8) == (8, np.inf)


def test_the_last_violating_base_falls_with_the_length_down_to_a_distance_of_three() -> None:
    """Between two steps no shorter length has another, and a little above each base nothing violates."""
    head = Sums(8)
    found = list(last_steps(head, 30))
    assert [step.length for step in found] == sorted((step.length for step in found), reverse=True)
    for step, shorter in pairwise([*found, None]):
        assert step is not None
        assert step.distance == step.length - 1
        assert lowest(8, step.distance, step.begin * (1 - 1e-3), step.begin) < 0
        for distance in range(1, step.distance + 1):
            assert lowest(8, distance, step.begin * (1 + 1e-9), 1e3 * step.begin) > 0
        if shorter is not None:
            assert shorter.begin < step.begin
    assert found[-1].length == 4
    assert [step.length for step in last_steps(head, 30, 4)] == [step.length for step in found[:-1]]
    further = list(last_steps(head, 30, 2))
    assert further[:-1] == found
    assert (further[-1].length, further[-1].distance) == (3, 2)
    assert further == list(last_steps(head, 30, 1)), "at a distance of one token every base keeps the sum above 0"
