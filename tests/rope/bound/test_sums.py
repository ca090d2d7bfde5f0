"""The sums of the bound and their limits of error: against multiple precision, differentiated numerically."""

from __future__ import annotations

from decimal import Decimal, localcontext

import mpmath
import numpy as np
import pytest

from ropeconv.rope.bound.sums import (
    BLOCK,
    DIGITS,
    Blocks,
    Sums,
    cos_sin,
    everything,
    float64_error,
    rough,
    scan,
    values,
)
from ropeconv.rope.forms import base_inv_freq

from . import naive

HEADS = [(8, 8), (64, 64), (96, 128)]
STEP = mpmath.mpf("1e-13")
PAIRS = [(3, 1.0), (1000, 9.2), (20_011, 14.5)]


def precise(distance: int, log_base: mpmath.mpf | float, rotary_dim: int, head_dim: int) -> mpmath.mpf:
    with mpmath.workdps(40):
        base = mpmath.exp(mpmath.mpf(log_base))
    return naive.precise(distance, base, rotary_dim, head_dim)


@pytest.mark.parametrize(("rotary_dim", "head_dim"), HEADS)
@pytest.mark.parametrize(("distance", "log_base"), PAIRS)
def test_values_and_slopes_are_those_of_multiple_precision(
    rotary_dim: int, head_dim: int, distance: int, log_base: float
) -> None:
    sums = Sums(rotary_dim, head_dim)
    value, slope = sums.taylor(np.array([distance, 5.0]), np.array([log_base, 2.0]))
    exact, exact_slope = sums.exact(distance, Decimal(log_base))
    with mpmath.workdps(40):
        wanted = precise(distance, log_base, rotary_dim, head_dim)
        left, right = (precise(distance, log_base + step, rotary_dim, head_dim) for step in (-STEP, STEP))
        wanted_slope = (right - left) / (2 * STEP)
        assert abs(mpmath.mpf(str(exact)) - wanted) < mpmath.mpf("1e-35")
        assert abs(mpmath.mpf(str(exact_slope)) - wanted_slope) < mpmath.mpf("1e-12") * distance
    assert value[0] == pytest.approx(float(wanted), abs=float64_error(rotary_dim // 2, distance + 1))
    assert slope[0] == pytest.approx(float(wanted_slope), abs=1e-10 * distance)
    assert value[1] == pytest.approx(float(precise(5, 2.0, rotary_dim, head_dim)), abs=1e-12)


@pytest.mark.parametrize(("rotary_dim", "head_dim"), HEADS)
@pytest.mark.parametrize(("distance", "log_base"), PAIRS)
def test_slope_and_curvature_stay_below_their_bounds(
    rotary_dim: int, head_dim: int, distance: int, log_base: float
) -> None:
    """On the whole interval above, by differences; the bounds are those of sine and cosine at their largest."""
    sums, shares = Sums(rotary_dim, head_dim), 2 * np.arange(rotary_dim // 2) / rotary_dim
    steepness, curvature = sums.steepness(log_base), float(sums.curvature(np.array([distance]), log_base)[0])
    theta = np.exp(-shares * log_base)
    assert steepness == pytest.approx((shares * theta).sum(), rel=1e-12)
    assert curvature == pytest.approx(
        ((distance * shares * theta) ** 2 + distance * shares**2 * theta).sum(), rel=1e-12
    )
    step, at = 1e-4 / distance, np.linspace(log_base, log_base + 0.5, 200)
    _, slope = sums.taylor(np.full(200, float(distance)), at)
    _, further = sums.taylor(np.full(200, float(distance)), at + step)
    assert np.abs(slope).max() <= steepness * distance
    assert np.abs((further - slope) / step).max() <= curvature * (1 + 1e-3)


@pytest.mark.parametrize("pairs", [1, 16, 64, 128])
def test_errors_are_within_their_limits_and_these_are_small(pairs: int) -> None:
    inv_freq, distances = base_inv_freq(1e5, 2 * pairs), np.array([1, 77, 4096, 99_999, 1 << 20])
    with mpmath.workdps(40):
        exact = [mpmath.fsum(mpmath.cos(int(m) * mpmath.mpf(float(f))) for f in inv_freq) + 3 for m in distances]
    wanted = np.array([float(value) for value in exact])
    double, single = values(inv_freq, 3.0, distances), rough(inv_freq, 3.0, distances)
    for length in (1 << 10, 1 << 21):
        inside = distances < length
        assert (np.abs(double - wanted)[inside] <= float64_error(pairs, length)).all()
    assert float64_error(pairs, 1 << 10) < 1e-10
    assert float64_error(pairs, 1 << 21) < 2e-7
    assert float64_error(pairs, 1 << 21) > pairs * (1 << 21) * 2.0**-53
    assert single.dtype == np.float32
    assert (np.abs(single - wanted) <= 2e-6 * pairs).all()
    assert 1e-3 <= Sums(2 * pairs).sure < 2e-3
    assert Sums(2 * pairs).sure >= 2 * 2e-6 * pairs
    kernel = Blocks(inv_freq, 3.0)
    whole = np.arange(BLOCK) + 5000
    assert np.abs(kernel.rotated(np.array([5000]))[0] + 3.0 - values(inv_freq, 3.0, whole)).max() <= kernel.slack
    assert kernel.slack < 5e-3


@pytest.mark.parametrize("text", ["0", "0.7", "-0.7", "1.6", "3.1", "4.8", "6.2", "-5", "12345.678", "1e15", "1e29"])
def test_cosine_and_sine_in_every_quarter(text: str) -> None:
    with localcontext(prec=DIGITS):
        cosine, sine = cos_sin(Decimal(text))
    with mpmath.workdps(90):
        angle = mpmath.mpf(text)
        limit = max(abs(angle), 1) * mpmath.mpf("1e-48")
        assert abs(mpmath.mpf(str(cosine)) - mpmath.cos(angle)) < limit
        assert abs(mpmath.mpf(str(sine)) - mpmath.sin(angle)) < limit


@pytest.mark.parametrize(("limit", "rate"), [(0.0, 0.0), (1.5, 0.0), (-2.0, 0.0), (0.5, 1e-4), (-4.0, 2e-3)])
def test_a_scan_finds_all_below_a_rising_limit_and_few_others(limit: float, rate: float) -> None:
    inv_freq, start, stop = base_inv_freq(1e4, 64), 9, 6000
    plain, distances = naive.sums(inv_freq, 2.0, start, stop), np.arange(start, stop)
    found = everything(scan(inv_freq, 2.0, start, stop, limit, rate))
    below = distances[plain < limit + rate * distances]
    assert len(below) > 0
    assert set(below) <= set(found.tolist())
    assert (np.diff(found) > 0).all()
    assert (plain[found - start] < limit + rate * (found + BLOCK) + 1e-3).all()
