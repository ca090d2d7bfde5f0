"""Windows of good bases, and the steps of the tables: against an enumeration made elsewhere, and term by term."""

import math
from collections.abc import Callable, Iterator
from itertools import pairwise

import numpy as np
import pytest

from ropeconv.rope.bound import bound, wide_base
from ropeconv.rope.bound.step_functions import base_steps, last_steps, wide_steps
from ropeconv.rope.bound.sums import Sums
from ropeconv.rope.bound.table import Step, look_up
from ropeconv.rope.forms import base_inv_freq

from ...support.extent import ALL, sample
from .naive import sums

# d = 128: relative width of the first window, begin of the first 1 % wide, last violating base
ENUMERATED = {
    1 << 10: (8.6e-3, 6018, 6018.3), 1 << 11: (5.4e-3, 14470, 22764), 1 << 12: (7.7e-4, 28629, 58790),
    1 << 13: (8.4e-3, 96422, 394328), 1 << 14: (3.4e-4, 360420, 1.321e6), 1 << 15: (1.6e-3, 1.507e6, 3.326e6),
    1 << 16: (5.8e-4, 4.458e6, 1.495e7), 1 << 17: (7.0e-4, 1.597e7, 4.227e7), 1 << 18: (3.8e-5, 5.428e7, 2.694e8),
    1 << 19: (4.3e-6, 3.307e8, 1.299e9), 1 << 20: (4.8e-6, 7.612e8, 3.914e9),
}  # fmt: skip


@pytest.mark.parametrize("length", ENUMERATED)
def test_windows_of_128_dimensions(length: int) -> None:
    width, wide, last = ENUMERATED[length]
    found = bound(length, 128, 128)
    assert found.known_windows
    assert found.width == pytest.approx(width, rel=2e-2)
    assert found.first_wide_window is not None
    assert found.first_wide_window[0] == pytest.approx(wide, rel=3e-4)
    assert found.last_violating_base == pytest.approx(last, rel=4e-4)


@pytest.mark.parametrize("rotary_dim", sample([64, 80, 96, 128, 256], 1))
def test_every_step_of_the_tables_is_that_of_a_search(rotary_dim: int) -> None:
    head, through = Sums(rotary_dim), 1000 if ALL else 50
    steps = {"base": base_steps(head, through), "wide": wide_steps(head, through), "last": last_steps(head, through)}
    for kind, searched in steps.items():
        for step in searched:
            known = look_up(kind, rotary_dim, step.length)
            assert known is not None
            assert (known.begin, known.end) == (
                pytest.approx(step.begin, rel=1e-9), pytest.approx(step.end, rel=1e-9),
            )  # fmt: skip


@pytest.mark.parametrize("length", [1024, 4096, 8192])
def test_the_first_wide_window_is_one(length: int) -> None:
    low, high = wide_base(length, 128, 128)
    assert high / low == pytest.approx(1.01)
    for theta in np.geomspace(low * 1.0001, high * 0.9999, 7):
        assert sums(base_inv_freq(theta, 128), 0, 1, length).min() >= 0
    assert sums(base_inv_freq(low * 0.98, 128), 0, 1, length).min() < 0


def test_a_window_and_the_next() -> None:
    first, second = wide_base(5000, 64, 64), wide_base(5000, 64, 64, skip=1)
    assert first[1] <= second[0]
    between = np.exp(np.linspace(math.log(first[0]), math.log(second[0]), 400))
    assert any(sums(base_inv_freq(theta, 64), 0, 1, 5000).min() < 0 for theta in between)


@pytest.mark.parametrize(("rotary_dim", "length"), [(72, 1000), (20, 300)])
def test_a_search_without_tables_is_right_on_both_sides_of_each_answer(rotary_dim: int, length: int) -> None:
    def lowest(base: float) -> float:
        return float(sums(base_inv_freq(base, rotary_dim), 0, 1, length).min())

    found = bound(length, rotary_dim, rotary_dim)
    begin, end = found.window
    wide, last = found.first_wide_window, found.last_violating_base
    assert end is not None
    assert wide is not None
    assert wide[1] is not None
    assert last is not None
    for edge, inside in ((begin, 1), (end, -1), (wide[0], 1), (wide[1], -1), (last, 1)):
        assert lowest(edge * (1 + inside * 1e-6)) > 0 > lowest(edge * (1 - inside * 1e-6))
    assert wide[1] / wide[0] > 1.01
    free = [*np.geomspace(begin, end, 20)[1:-1], *np.geomspace(*wide, 50)[1:-1], *np.geomspace(last, 1e9, 200)[1:]]
    assert min(map(lowest, free)) >= 0


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
def test_a_step_that_begins_at_the_last_length_is_among_them(steps: Steps) -> None:
    head = Sums(8)
    lengths = [step.length for step in steps(head, 30)]
    assert lengths == [3, 4, 5, 8, 9, 10, 11, 16, 17, 23, 29]
    for length in (3, 4, 10, 29):
        assert [step.length for step in steps(head, length)][-1] == length
        assert all(step.length < length for step in steps(head, length - 1))


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
