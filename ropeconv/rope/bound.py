"""The lower bound on the base: sum_i cos(m theta_i) + (d - r)/2 >= 0 for every distance m below a length.

Men et al. 2024, https://arxiv.org/abs/2405.14591; Su 2024, https://kexue.fm/archives/10122. Where the sum is
negative, a token like the query counts for less, on average, than a random one at that distance.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from itertools import pairwise
from typing import TYPE_CHECKING

from .errors import RecipeError
from .forms import base_inv_freq
from .lazy import np

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from .forms import Vector

WIDTH = 0.01
RESOLUTION = 1e-7
BLOCK = 256


def margins(inv_freq: Vector, unrotated: float, start: int, stop: int) -> Vector:
    """`unrotated + sum_i cos(m inv_freq_i)` for m = start .. stop - 1, float64, shape [stop - start].

    By the sum formula over blocks of 256 distances, so most of the work is two matrix products.
    """
    blocks = -(-(stop - start) // BLOCK)
    far = np.multiply.outer(start + BLOCK * np.arange(blocks, dtype=np.float64), inv_freq)
    near = np.multiply.outer(inv_freq, np.arange(BLOCK, dtype=np.float64))
    total = np.cos(far) @ np.cos(near) - np.sin(far) @ np.sin(near)
    return np.asarray(total.reshape(-1)[: stop - start] + unrotated, dtype=np.float64)


def first_violation(inv_freq: Vector, length: int, head_dim: int) -> int | None:
    """The smallest distance 1 <= m < length whose sum is negative, or None."""
    unrotated = (head_dim - 2 * len(inv_freq)) / 2
    if unrotated >= len(inv_freq):
        return None
    start, size = 1, BLOCK
    while start < length:
        stop = min(length, start + size)
        bad = np.flatnonzero(margins(inv_freq, unrotated, start, stop) < 0)
        if len(bad):
            return int(start + bad[0])
        start, size = stop, min(size * 4, 1 << 18)
    return None


def wide_window(length: int, rotary_dim: int, head_dim: int, width: float = WIDTH) -> tuple[float, float]:
    """The first interval of bases, at least `width` wide (relative), on which the bound holds up to `length`.

    b runs over b > 1. The result is proven between its ends up to float64 rounding, by bounds on the slope of every
    sum, and its middle holds for float32 frequencies as well. Raises RecipeError where every base satisfies the
    bound (rotary_dim <= head_dim / 2) and beyond 2^20 tokens, where the search takes too long.
    """
    if rotary_dim <= head_dim / 2:
        raise RecipeError(
            f"only {rotary_dim} of {head_dim} dimensions rotate, so every base will do; choose one with --theta"
        )
    if length > 1 << 20:
        raise RecipeError(f"--theta-bound goes up to 1M tokens, and {length} is more; choose a base with --theta-for")
    reach = math.log1p(width)
    for log_theta in _grid(reach / 2):
        if first_violation(base_inv_freq(math.exp(log_theta), rotary_dim), length, head_dim) is not None:
            continue
        search = _Window(length, rotary_dim, head_dim, log_theta)
        high = search.edge(log_theta, log_theta + reach)
        low = search.edge(log_theta, log_theta - reach)
        if high - low < reach:
            continue
        middle = base_inv_freq(math.exp((low + high) / 2), rotary_dim).astype(np.float32).astype(np.float64)
        if first_violation(middle, length, head_dim) is None:
            return math.exp(low), math.exp(high)
    raise RecipeError(f"no base below 1e17 keeps the bound for {length} tokens; choose one with --theta")


def _grid(step: float) -> Iterator[float]:
    for index in range(1, int(40 / step)):
        yield index * step


class _Window:
    """Walks from a good base to the first one that cannot be proven good.

    With t = ln b the sum f(m, t) has |df/dt| <= sum_i c_i x_i min(x_i, 1), x_i = m theta_i, c_i = 2i/r, largest
    at the smallest t. So f(m, t) >= 0 on a whole interval when its middle is above slope times half-width.
    """

    def __init__(self, length: int, rotary_dim: int, head_dim: int, log_theta: float) -> None:
        self.exponent = 2.0 * np.arange(rotary_dim // 2, dtype=np.float64) / rotary_dim
        self.unrotated = (head_dim - rotary_dim) / 2
        self.distances = np.arange(1, length, dtype=np.float64)
        fastest = np.exp(-self.exponent * (log_theta - 2 * WIDTH))
        self.slope = np.empty(length - 1)
        for start in range(0, length - 1, 1 << 16):
            angle = np.multiply.outer(self.distances[start : start + (1 << 16)], fastest)
            self.slope[start : start + (1 << 16)] = (angle * np.minimum(angle, 1.0)) @ self.exponent
        self.piece = 32.0 / length

    def edge(self, start: float, stop: float) -> float:
        """The point nearest to `start`, on the way to `stop`, from which nothing is proven; or `stop`."""
        count = math.ceil(abs(stop - start) / self.piece)
        points = np.linspace(start, stop, count + 1)
        for near, far in pairwise(points):
            stuck = self._first_unproven(float(near), float(far), None)
            if stuck is not None:
                return stuck
        return stop

    def _first_unproven(self, near: float, far: float, rows: NDArray[np.intp] | None) -> float | None:
        middle, half = (near + far) / 2, abs(far - near) / 2
        inv_freq = np.exp(-self.exponent * middle)
        if rows is None:
            value = margins(inv_freq, self.unrotated, 1, len(self.distances) + 1)
            open_rows = np.flatnonzero(value <= self.slope * half)
        else:
            value = np.cos(np.multiply.outer(self.distances[rows], inv_freq)).sum(axis=1) + self.unrotated
            open_rows = rows[value <= self.slope[rows] * half]
        if not len(open_rows):
            return None
        if half < RESOLUTION:
            return near
        first = self._first_unproven(near, middle, open_rows)
        return first if first is not None else self._first_unproven(middle, far, open_rows)
