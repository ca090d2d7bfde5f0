"""Pairs of dimensions that do not rotate: their inv_freq is 0, so cos = 1 and sin = 0 at every position.

p-RoPE has them in place of the slowest pairs (Barbero et al. 2024, https://arxiv.org/abs/2410.06205), DroPE in place of
all (Gelberg et al. 2025, https://arxiv.org/abs/2512.12167). As a divisor of a frequency it is written 1e30, as
llama.cpp's converter does for Gemma 4: no float turns by an angle over that.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from .lazy import Vector, np

NO_ROTATION = 1e30
LEAST = 1e29  # divisors from here on stand for 0
LARGEST_FLOAT32 = 3.4028234663852886e38


def divided(base: Vector, divisors: Vector | Sequence[float]) -> Vector:
    """base_i / divisor_i, and 0 where the divisor is 1e29 or more.

    base: radians per token. divisors: positive. Returns radians per token; all float64 [rotary_dim / 2].
    """
    by = np.asarray(divisors, dtype=np.float64)
    return np.asarray(np.where(by < LEAST, base / by, 0.0), dtype=np.float64)


def divisors(base: Vector, inv_freq: Vector) -> Vector:
    """base_i / inv_freq_i, and 1e30 where inv_freq_i is 0: the inverse of `divided`.

    base, inv_freq: radians per token. All float64 [rotary_dim / 2].
    """
    return np.asarray(np.divide(base, inv_freq, out=np.full(len(base), NO_ROTATION), where=inv_freq > 0))


def written_divisors(divisors: Sequence[float]) -> list[float]:
    """Divisors as configs have them: the largest float32 in place of 1e29 or more.

    Times theta^(2i/r) that is infinite in float32, in which runtimes compute, so that the frequency is exactly 0.
    """
    return [float(one) if one < LEAST else LARGEST_FLOAT32 for one in divisors]


def wavelengths(inv_freq: Vector) -> Vector:
    """2 pi / inv_freq in tokens, nan for pairs that do not rotate.

    inv_freq: radians per token. Both float64 [rotary_dim / 2].
    """
    return np.asarray(np.divide(math.tau, inv_freq, out=np.full(len(inv_freq), math.nan), where=inv_freq > 0))


def count_zero(inv_freq: Vector) -> int:
    """How many pairs do not rotate. inv_freq: radians per token, float64 [rotary_dim / 2]."""
    return int(np.count_nonzero(inv_freq == 0))
