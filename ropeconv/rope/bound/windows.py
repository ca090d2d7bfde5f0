"""Windows: intervals of bases on which no distance violates. The smallest base opens one, which may be very narrow.

The end of a window is found from a base where every sum is positive: a bound on the slopes leaves few distances whose
sum can reach zero within an interval of ln b, and each of those is followed.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import TYPE_CHECKING

from ..lazy import np
from .smallest import Sweep, Tell
from .sums import Distances, Sums, everything, float64_error, phases, scan

if TYPE_CHECKING:
    from ..forms import Vector

WIDTH = 0.01


def tail(sums: Sums, length: int) -> float:
    """A ln b from which on no distance below `length` (in tokens) violates.

    cos x >= g(x) = cos x up to pi and -1 beyond, which does not rise, so the sum of g at the largest distance is below
    every sum there and for larger bases.
    """

    def holds(log_base: float) -> bool:
        angle = (length - 1) * sums.inv_freq(log_base)
        return bool(sums.unrotated + np.where(angle < math.pi, np.cos(np.minimum(angle, math.pi)), -1).sum() >= 0)

    low, high = 0.0, 1.0
    while not holds(high):
        high *= 2
    for _ in range(50):
        middle = (low + high) / 2
        low, high = (low, middle) if holds(middle) else (middle, high)
    return high


class Walk:
    """A walk over intervals of ln b that looks for the first base at which a distance violates.

    sums: of the head. length: distances below it are looked at. direction: 1 towards larger bases, -1 towards smaller
    ones. tell: called often with the ln b that has been reached.
    """

    def __init__(self, sums: Sums, length: int, direction: int, tell: Tell | None = None) -> None:
        self.sums, self.direction, self.tell = sums, direction, tell
        self.shorten(length)
        self.reach = 4.0

    def shorten(self, length: int) -> None:
        """Looks only at distances below `length` from here on."""
        self.length, self.error = length, float64_error(self.sums.rotary_dim // 2, length)

    def edge(self, begin: float, end: float) -> tuple[float, int | None]:
        """The first ln b on the way from `begin` to `end` at which a distance violates, and that distance; or `end`."""
        at = begin
        while (end - at) * self.direction > 0:
            upto, found, zeros = self.piece(at, end)
            if len(found):
                first = int((zeros * self.direction).argmin())
                return float(zeros[first]), int(found[first])
            at = upto
            if self.tell is not None:
                self.tell(at)
        return end, None

    def piece(self, begin: float, end: float, start: int = 1) -> tuple[float, Distances, Vector]:
        """One interval from `begin` towards `end`: its other end, the distances that violate in it, and where.

        begin, end: ln b. start: the smallest distance to look at, in tokens. Returns the end as ln b, the distances as
        int64 [n], and for each the first ln b of the walk at which it violates, float64 [n].
        """
        edge = begin + self.direction * 0.1
        steepness = self.sums.steepness(min(begin, edge))
        size = min(self.reach / (self.length * steepness), 0.1, abs(end - begin))
        inv_freq = self.sums.inv_freq(begin)
        found = everything(scan(inv_freq, self.sums.unrotated, start, self.length, 0.0, steepness * size))
        few, many = max(32, self.length // 600), max(128, self.length // 200)
        self.reach *= 1.3 if len(found) <= few else 1 / 1.3 if len(found) > many else 1
        stop = end if size == abs(end - begin) else begin + self.direction * size
        if not len(found):
            return stop, found, np.empty(0)
        curvature = self.sums.curvature(found, min(begin, stop))
        near = lower_bounds(self.sums, found, begin, size, curvature) < self.sums.sure
        zeros = self._zeros(found[near].astype(np.float64), curvature[near], begin, stop)
        violating = (stop - zeros) * self.direction > 0
        return stop, found[near][violating], zeros[violating]

    def _zeros(self, distances: Vector, curvature: Vector, begin: float, end: float) -> Vector:
        """The ln b at which each sum turns negative, or one beyond `end`, by f(t + h) >= f + f' h - M h^2 / 2 > 0."""
        at = np.full(len(distances), begin)
        walking = np.arange(len(distances))
        while len(walking):
            value, slope = self.sums.taylor(distances[walking], at[walking])
            slope = slope * self.direction
            bound = curvature[walking]
            step = (slope + np.sqrt(slope**2 + 2 * bound * np.maximum(value, 0))) / bound
            down = (value < self.error) & ((slope <= 0) | (value < -self.error))
            step = np.where(down, 0, np.maximum(step, 1e-15 * max(begin, 1.0)))
            at[walking] += self.direction * step
            walking = walking[~down & ((end - at[walking]) * self.direction > 0)]
        return at


def lower_bounds(sums: Sums, distances: Distances, log_base: float, size: float, curvature: Vector) -> Vector:
    """f - |f'| h - M h^2 / 2 within 1e-3, float32 or float64 [n]: a lower bound on each sum within `size` of a ln b.

    sums: of the head. distances: int64 [n]. log_base: the ln b. size: h, the width of the interval in ln b. curvature:
    M, a bound on |f''| there, float64 [n].
    """
    inv_freq = sums.inv_freq(log_base)
    angle = phases(distances, inv_freq)
    value = np.cos(angle).sum(axis=1) + np.float32(sums.unrotated)
    slope = distances * (np.sin(angle) @ (sums.exponents * inv_freq).astype(np.float32))
    return np.asarray(value - np.abs(slope) * size - curvature * size**2 / 2)


def window_end(sums: Sums, length: int, log_base: float) -> float:
    """The ln b at which the window that begins at `log_base` ends; infinite where it does not end."""
    last = tail(sums, length)
    end, distance = Walk(sums, length, 1).edge(log_base, max(last, log_base))
    return math.inf if distance is None else end


def last_violating(sums: Sums, length: int, tell: Tell | None = None) -> tuple[float, int | None]:
    """The largest ln b at which some distance below `length` violates, and that distance.

    length: in tokens; beyond 2^18 this takes minutes, since every larger base is proven. tell: called often with the
    ln b down to which no distance violates.
    """
    return Walk(sums, length, -1, tell).edge(tail(sums, length), 0.0)


def wide_windows(sums: Sums, length: int, start: float) -> Iterator[tuple[float, float]]:
    """Windows that are at least 1 % wide, as (begin, end) in ln b, in rising order; the last has no end.

    sums: of the head. length: in tokens. start: ln b* of the length, or another lower bound. A window of that width
    holds a point of any grid half as wide, so only such points are tried.
    """
    reach = math.log1p(WIDTH)
    sweep, right, left = Sweep(sums, length), Walk(sums, length, 1), Walk(sums, length, -1)
    last, at = tail(sums, length), start
    while True:
        if at > last or not len(sweep.witnesses(at)):
            low, _ = left.edge(at, max(0.0, start, at - reach))
            high, distance = right.edge(at, max(last, at))
            if distance is None:
                yield low, math.inf
                return
            if high - low >= reach:
                yield low, high
            at = high
        at += reach / 2
