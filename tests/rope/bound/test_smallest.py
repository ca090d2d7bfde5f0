"""The smallest base: published and separately computed values, its proof re-proved, and the
precision of its sums.
"""

import math
from decimal import Decimal
from itertools import pairwise

import mpmath
import numpy as np
import pytest

from ropeconv.rope.bound.answer import bound, published_bases
from ropeconv.rope.bound.smallest import Sweep, last_violating, smallest_log_base, wide_intervals
from ropeconv.rope.bound.sums import Sums, float64_error

from .naive import holds, negative_throughout, precise

# d = 128, by a sweep in C with Newton's method in multiple precision
CERTIFIED = {
    1 << 10: (4293.4375692625784, 1009),
    1 << 11: (11587.244303111071, 1788),
    1 << 12: (26952.339227857868, 4012),
    1 << 13: (83763.841015434434, 8172),
    1 << 14: (231643.64680690747, 15643),
    1 << 15: (629978.26285504400, 30704),
    1 << 16: (2090179.6740541969, 60076),
    1 << 17: (4869104.3705287808, 124837),
    1 << 18: (23662397.036966134, 227688),
    1 << 19: (58496173.802162298, 479857),
    1 << 20: (65374955.144080992, 935093),
    1 << 21: (65448220.968238161, 2093045),
    1 << 22: (905907787.61358775, 3841957),
    1 << 23: (4294962022.1937967, 7764475),
    1 << 24: (19628559571.827069, 14311428),
}
# 6 digits, by the same
OTHERS = {
    64: {
        1024: 7752.98,
        4096: 100070,
        8192: 323744,
        32768: 3.78834e6,
        131072: 7.37798e7,
        1048576: 2.85226e9,
    },
    80: {
        1024: 8837.28,
        4096: 66873.2,
        8192: 288609,
        32768: 2.40749e6,
        131072: 3.38493e7,
        1048576: 2.28782e8,
    },
    96: {
        1024: 4956.94,
        4096: 54600.2,
        8192: 103141,
        32768: 726714,
        131072: 1.67489e7,
        1048576: 8.98676e8,
    },
    256: {
        1024: 2967.51,
        4096: 17732.6,
        8192: 41307.4,
        32768: 223815,
        131072: 1.6977e6,
        1048576: 3.76893e7,
    },
}


@pytest.mark.parametrize(
    ("rotary_dim", "length", "base", "exact"),
    [(128, length, base, 1e-14) for length, (base, _) in CERTIFIED.items()]
    + [
        (width, length, base, 5e-6) for width, row in OTHERS.items() for length, base in row.items()
    ],
)
def test_bases_are_those_of_the_sweep_in_c(
    rotary_dim: int, length: int, base: float, exact: float
) -> None:
    answer = bound(length, rotary_dim, rotary_dim, windows=False)
    assert answer.base == pytest.approx(base, rel=exact)
    assert rotary_dim != 128 or answer.binding_distance == CERTIFIED[length][1]
    assert answer.binding_distance is not None
    assert precise(answer.binding_distance, mpmath.mpf(answer.base), rotary_dim, rotary_dim) >= 0, (
        "rounded up"
    )
    below = mpmath.mpf(math.nextafter(answer.base, 1))
    assert precise(answer.binding_distance, below, rotary_dim, rotary_dim) < 0


WIDTHS = (32, 64, 80, 96, 128, 256)
SEARCHED = [(width, width, length) for width in WIDTHS for length in (100, 1000)]
FAR = [(width, width, length) for width in WIDTHS for length in (5555, 20011)]
PARTIAL = [(96, 128, 3000), (80, 128, 3000), (24, 32, 3000)]


@pytest.mark.parametrize(
    ("rotary_dim", "head_dim", "length"),
    [*SEARCHED, *PARTIAL, *(pytest.param(*case, marks=pytest.mark.nightly) for case in FAR)],
)
def test_a_base_of_a_search_is_zero_at_its_distance_and_holds_on(
    rotary_dim: int, head_dim: int, length: int
) -> None:
    """To forty digits, and a billionth to either side."""
    log_base, distance = smallest_log_base(Sums(rotary_dim, head_dim), length)
    assert distance is not None
    with mpmath.workdps(45):
        base = mpmath.exp(mpmath.mpf(str(log_base)))
    assert holds(base * (1 + mpmath.mpf("1e-9")), length, rotary_dim, head_dim)
    assert precise(distance, base * (1 - mpmath.mpf("1e-9")), rotary_dim, head_dim) < 0
    assert abs(precise(distance, base, rotary_dim, head_dim)) < 1e-25
    assert (base < 100) is (rotary_dim < head_dim)


@pytest.mark.parametrize("length", [1 << 14, 1 << 17])
def test_the_search_ends_where_the_answer_is(length: int) -> None:
    """Also from a base just below, through groups of blocks; nothing violates a billionth above
    it.
    """
    base, _ = CERTIFIED[length]
    reported: list[float] = []
    sweep = Sweep(Sums(128), length, None, reported.append)
    end = sweep.feasible_from(math.log(base * (1 - 1e-3)))
    assert math.exp(end) == pytest.approx(base, rel=1e-10)
    assert reported == sorted(reported)
    assert reported[-1] == end
    assert sweep.feasible_from(end + 1e-9) == end + 1e-9


@pytest.mark.parametrize(
    ("rotary_dim", "head_dim", "length"), [(128, 128, 2000), (64, 64, 500), (96, 128, 3000)]
)
def test_the_proof_rules_out_everything_below(rotary_dim: int, head_dim: int, length: int) -> None:
    proof: list[tuple[float, float, int]] = []
    log_base, _ = smallest_log_base(Sums(rotary_dim, head_dim), length, proof=proof)
    assert proof[0][0] == 0
    assert proof[-1][1] == pytest.approx(float(log_base), abs=1e-12)
    for (_, end, _), (begin, _, _) in pairwise(proof):
        assert begin == end
    for begin, end, distance in proof:
        assert 1 <= distance < length
        assert negative_throughout(distance, begin, end - 1e-9, rotary_dim, head_dim)
    begin, end, distance = proof[len(proof) // 2]
    assert not negative_throughout(distance, begin, end + 1e-4, rotary_dim, head_dim)


def test_two_pairs_over_three_tokens_by_hand() -> None:
    """cos 2 + cos 2 b^(-1/2) is zero where 2 b^(-1/2) = pi - 2; its slope there is below 1."""
    with mpmath.workdps(45):
        expected = 2 * mpmath.log(2 / (mpmath.pi - 2))
        log_base, distance = smallest_log_base(Sums(4), 3)
        assert abs(mpmath.mpf(str(log_base)) - expected) < mpmath.mpf("1e-32")
    assert distance == 2
    assert last_violating(Sums(4), 3) == (pytest.approx(float(expected), rel=1e-12), 2)
    assert next(wide_intervals(Sums(4), 3, 0.0)) == (
        pytest.approx(float(expected), rel=1e-12),
        math.inf,
    )


def test_published_values_are_never_lower() -> None:
    """Su's row is the infimum, rounded to two digits; the paper's is above it at six of eleven
    lengths.
    """
    paper, su = (row for _, row in sorted(published_bases().items()))
    for length, value in su.items():
        assert float(f"{bound(length, 128, 128, windows=False).base:.1e}") == value
        assert paper[length] >= value
    assert sum(paper[length] > 1.02 * su[length] for length in su) == 6


HEADS = [(8, 8), (64, 64), (96, 128)]
STEP = mpmath.mpf("1e-13")
PAIRS = [(3, 1.0), (1000, 9.2), (20_011, 14.5)]


@pytest.mark.parametrize(("rotary_dim", "head_dim"), HEADS)
@pytest.mark.parametrize(("distance", "log_base"), PAIRS)
def test_values_and_slopes_to_forty_digits(
    rotary_dim: int, head_dim: int, distance: int, log_base: float
) -> None:
    sums = Sums(rotary_dim, head_dim)
    value, slope = sums.taylor(np.array([float(distance)]), np.array([log_base]))
    exact, exact_slope = sums.exact(distance, Decimal(log_base))
    with mpmath.workdps(40):
        left, expected, right = (
            precise(distance, mpmath.exp(mpmath.mpf(log_base) + step), rotary_dim, head_dim)
            for step in (-STEP, 0, STEP)
        )
        wanted_slope = (right - left) / (2 * STEP)
        assert abs(mpmath.mpf(str(exact)) - expected) < mpmath.mpf("1e-35")
        assert abs(mpmath.mpf(str(exact_slope)) - wanted_slope) < mpmath.mpf("1e-12") * distance
    assert value[0] == pytest.approx(
        float(expected), abs=float64_error(rotary_dim // 2, distance + 1)
    )
    assert slope[0] == pytest.approx(float(wanted_slope), abs=1e-10 * distance)
