"""The same sums another way: no blocks, no reductions, mpmath where digits matter."""

import mpmath
import numpy as np


def sums(inv_freq: np.ndarray, unrotated: float, start: int, stop: int) -> np.ndarray:
    """B(m) for start <= m < stop, term by term in float64."""
    parts = []
    for first in range(start, stop, 1 << 15):
        distances = np.arange(first, min(first + (1 << 15), stop), dtype=np.float64)
        parts.append(np.cos(np.multiply.outer(distances, inv_freq)).sum(axis=1))
    return np.concatenate(parts) + unrotated


def precise(distance: int, base: mpmath.mpf, rotary_dim: int, head_dim: int) -> mpmath.mpf:
    """B at one distance for a base, to 40 digits."""
    with mpmath.workdps(40):
        angles = (
            distance * base ** (-mpmath.mpf(2 * pair) / rotary_dim)
            for pair in range(rotary_dim // 2)
        )
        return mpmath.mpf(head_dim - rotary_dim) / 2 + mpmath.fsum(
            mpmath.cos(angle) for angle in angles
        )


def holds(base: mpmath.mpf, length: int, rotary_dim: int, head_dim: int) -> bool:
    """Whether no distance below `length` violates: those that float64 puts near zero are evaluated
    to 40 digits.
    """
    inv_freq = np.array(
        [float(base ** (-mpmath.mpf(2 * pair) / rotary_dim)) for pair in range(rotary_dim // 2)]
    )
    value = sums(inv_freq, (head_dim - rotary_dim) / 2, 1, length)
    if (value < -1e-4).any():
        return False
    near = 1 + np.flatnonzero(value < 1e-4)
    return all(precise(int(m), base, rotary_dim, head_dim) >= 0 for m in near)


def negative_throughout(
    distance: int, begin: float, end: float, rotary_dim: int, head_dim: int
) -> bool:
    """Proves B(m, t) < 0 for begin <= t <= end, t = ln b, by halving: |dB/dt| <= m sum c_i
    theta_i.
    """
    exponents = 2 * np.arange(rotary_dim // 2) / rotary_dim
    lows = np.array([begin])
    highs = np.array([end])
    for _ in range(60):
        middle = (lows + highs) / 2
        half = (highs - lows) / 2
        value = (
            np.cos(distance * np.exp(-np.outer(middle, exponents))).sum(axis=1)
            + (head_dim - rotary_dim) / 2
        )
        slope = distance * (np.exp(-np.outer(lows, exponents)) @ exponents)
        if (value >= 0).any():
            return False
        open_ = value + slope * half >= -1e-12
        if not open_.any():
            return True
        lows = lows[open_]
        highs = highs[open_]
        middle = middle[open_]
        lows = np.concatenate([lows, middle])
        highs = np.concatenate([middle, highs])
    return False
