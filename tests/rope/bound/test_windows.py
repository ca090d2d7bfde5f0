"""Windows of good bases, and the tables of steps: against an enumeration made elsewhere, and against each other."""

import math
from pathlib import Path

import mpmath
import numpy as np
import pytest

from ropeconv.rope.bound import bound, wide_base
from ropeconv.rope.bound.smallest import smallest_log_base
from ropeconv.rope.bound.step_functions import base_steps, last_steps, wide_steps
from ropeconv.rope.bound.sums import Sums, float64_error
from ropeconv.rope.bound.table import DATA, look_up
from ropeconv.rope.bound.windows import Walk, last_violating, lower_bounds, tail, wide_windows, window_end
from ropeconv.rope.forms import base_inv_freq

from .naive import sums

# d = 128: relative width of the first window, begin of the first 1 % wide, last violating base
ENUMERATED = {
    1 << 10: (8.6e-3, 6018, 6018.3), 1 << 11: (5.4e-3, 14470, 22764), 1 << 12: (7.7e-4, 28629, 58790),
    1 << 13: (8.4e-3, 96422, 394328), 1 << 14: (3.4e-4, 360420, 1.321e6), 1 << 15: (1.6e-3, 1.507e6, 3.326e6),
    1 << 16: (5.8e-4, 4.458e6, 1.495e7), 1 << 17: (7.0e-4, 1.597e7, 4.227e7), 1 << 18: (3.8e-5, 5.428e7, 2.694e8),
    1 << 19: (4.3e-6, 3.307e8, 1.299e9), 1 << 20: (4.8e-6, 7.612e8, 3.914e9),
}  # fmt: skip
HEADS = [64, 80, 96, 128, 256]


@pytest.mark.parametrize("length", ENUMERATED)
def test_windows_of_128_dimensions(length: int) -> None:
    width, wide, last = ENUMERATED[length]
    found = bound(length, 128, 128)
    assert found.known_windows
    assert found.width == pytest.approx(width, rel=2e-2)
    assert found.first_wide_window is not None
    assert found.first_wide_window[0] == pytest.approx(wide, rel=3e-4)
    assert found.last_violating_base == pytest.approx(last, rel=4e-4)


@pytest.mark.parametrize(
    ("rotary_dim", "length", "last"), [(64, 8192, 1.916e6), (256, 8192, 93140), (256, 32768, 599467)]
)
def test_last_violations_of_other_heads(rotary_dim: int, length: int, last: float) -> None:
    assert bound(length, rotary_dim, rotary_dim).last_violating_base == pytest.approx(last, rel=4e-4)


@pytest.mark.parametrize("rotary_dim", HEADS)
@pytest.mark.parametrize("length", [700, 2500, 6000])
def test_tables_say_what_a_computation_says(rotary_dim: int, length: int) -> None:
    head = Sums(rotary_dim)
    log_base, distance = smallest_log_base(head, length)
    base, wide, last = (look_up(kind, rotary_dim, length) for kind in ("base", "wide", "last"))
    assert base is not None
    assert wide is not None
    assert last is not None
    assert (base.begin, base.distance) == (pytest.approx(math.exp(log_base), rel=1e-14), distance)
    assert base.end == pytest.approx(math.exp(window_end(head, length, float(log_base))), rel=1e-9)
    low, high = next(wide_windows(head, length, float(log_base)))
    assert wide.begin == pytest.approx(math.exp(low), rel=1e-9)
    assert wide.end == pytest.approx(math.exp(min(high, 700)) if math.isfinite(high) else math.inf, rel=1e-9)
    at, distance = last_violating(head, length)
    assert (last.begin, last.distance) == (pytest.approx(math.exp(at), rel=1e-9), distance)


@pytest.mark.parametrize("rotary_dim", HEADS)
def test_every_step_of_the_tables_to_a_thousand(rotary_dim: int) -> None:
    head = Sums(rotary_dim)
    for kind, steps in (("base", base_steps(head, 1000)), ("wide", wide_steps(head, 1000))):
        for step in steps:
            known = look_up(kind, rotary_dim, step.length)
            assert known is not None
            assert known.begin == pytest.approx(step.begin, rel=1e-9)
            assert known.end == pytest.approx(step.end, rel=1e-9)
    for step in last_steps(head, 1000):
        known = look_up("last", rotary_dim, step.length)
        assert known is not None
        assert known.begin == pytest.approx(step.begin, rel=1e-9)


@pytest.mark.parametrize("rotary_dim", HEADS)
def test_the_tables_reach_what_people_ask(rotary_dim: int) -> None:
    assert look_up("base", rotary_dim, 1 << 24) is not None
    assert look_up("wide", rotary_dim, 1 << 18) is not None
    assert look_up("last", rotary_dim, 1 << 18) is not None
    assert look_up("base", rotary_dim, 1 << 40) is None
    assert Path(DATA / "published.json").exists()


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


def test_above_the_last_violation_everything_holds() -> None:
    last = bound(3000, 96, 96).last_violating_base
    assert last is not None
    assert sums(base_inv_freq(last * (1 - 1e-6), 96), 0, 1, 3000).min() < 0
    for theta in np.geomspace(last * (1 + 1e-6), 1e9, 200):
        assert sums(base_inv_freq(theta, 96), 0, 1, 3000).min() >= 0


def test_beyond_the_tail_nothing_violates() -> None:
    """The sum of cosines at the largest distance, with -1 for angles beyond half a turn, is zero where it begins.

    Two tokens and two pairs: cos 1 + cos b^(-1/2) is positive at every base. Three tokens: cos 2 + cos 2 b^(-1/2) is
    zero where 2 b^(-1/2) = pi - 2. Five tokens and three pairs: the first angle is 4, beyond half a turn.
    """
    assert tail(Sums(4), 2) < 1e-12
    assert tail(Sums(4), 3) == pytest.approx(2 * math.log(2 / (math.pi - 2)), rel=1e-12)
    root = mpmath.findroot(
        lambda at: mpmath.cos(4 * mpmath.exp(-at / 3)) + mpmath.cos(4 * mpmath.exp(-2 * at / 3)) - 1, 4
    )
    assert tail(Sums(6), 5) == pytest.approx(float(root), rel=1e-12)
    for length in (300, 5000):
        begin = tail(Sums(64), length)
        assert begin >= last_violating(Sums(64), length)[0]
        assert sums(base_inv_freq(math.exp(begin), 64), 0, 1, length).min() >= 0


@pytest.mark.parametrize("head_dim", [16, 24])
def test_a_lower_bound_is_the_sum_itself_at_no_width_and_below_it_on_an_interval(head_dim: int) -> None:
    """The sum is that of 16 dimensions, and half of what does not rotate."""
    head, distances, log_base, size = Sums(16, head_dim), np.arange(1, 200), 9.0, 0.01
    inside = np.array(
        [
            sums(base_inv_freq(math.exp(at), 16), (head_dim - 16) / 2, 1, 200)
            for at in np.linspace(log_base, log_base + size, 41)
        ]
    )
    curvature = head.curvature(distances, log_base)
    np.testing.assert_allclose(lower_bounds(head, distances, log_base, 0.0, curvature), inside[0], atol=1e-3)
    bounds = lower_bounds(head, distances, log_base, size, curvature)
    assert (bounds < inside.min(axis=0) + 1e-3).all()
    assert (bounds > inside.min(axis=0) - 1.0).mean() > 0.5


def test_a_walk_knows_the_error_of_its_sums() -> None:
    """It is of as many terms as pairs rotate, at the largest distance."""
    walk = Walk(Sums(64), 5000, 1)
    assert walk.error == float64_error(32, 5000)
    walk.shorten(300)
    assert (walk.length, walk.error) == (300, float64_error(32, 300))
    assert float64_error(32, 300) > float64_error(21, 300)
