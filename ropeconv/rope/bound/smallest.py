"""The smallest base for a length, by a search over ln b that skips no base.

At ln b = t a distance m with f(m, t) < 0 rules t out, and with it everything up to the next zero of f(m, .), which a
bound on the second derivative proves. From there another distance takes over. Where none is left, t is the answer.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from decimal import Decimal, localcontext
from typing import TYPE_CHECKING

from ..lazy import np
from .sums import BLOCK, DIGITS, Blocks, Distances, Single, Sums, everything, float64_error, rough, scan, values

if TYPE_CHECKING:
    from ..forms import Vector

Proof = list[tuple[float, float, int]]
Tell = Callable[[float], None]

POOL = 512
TEAM = 16
NEAR = 1.5
SLOW = 2.5
GROUP = 4096


def _silent(log_base: float) -> None:
    pass


@dataclass
class Sweep:
    """A search from small bases to large ones for the first base at which no distance below `length` violates.

    sums: of the head. length: in tokens. proof: a list to which (from, to, m) is appended for each interval of ln b
    that distance m rules out, without gaps. tell: called often with the ln b up to which all bases are ruled out.
    pool: distances that are likely to violate at the next base too.
    """

    sums: Sums
    length: int
    proof: Proof | None = None
    tell: Tell = _silent
    pool: Distances = field(init=False)

    def __post_init__(self) -> None:
        self.pool = np.arange(1, min(self.length, POOL))
        self.error = float64_error(self.sums.rotary_dim // 2, self.length)
        self.group = 0

    def feasible_from(self, log_base: float) -> float:
        """The smallest ln b >= log_base, up to rounding, at which no distance violates."""
        while True:
            witnesses = self.witnesses(log_base)
            if not len(witnesses):
                return log_base
            begin, (log_base, distance) = log_base, self._walk(witnesses, log_base)
            self.tell(log_base)
            if self.proof is not None:
                self.proof.append((begin, log_base, distance))

    def witnesses(self, log_base: float) -> Distances:
        """Some of the distances that violate at one base, int64; empty only if no distance below `length` violates."""
        inv_freq = self.sums.inv_freq(log_base)
        found = self._of_pool(inv_freq)
        if not len(found) and self._search_slow(inv_freq):
            found = self._of_pool(inv_freq)
        if len(found):
            return found
        distances = everything(scan(inv_freq, self.sums.unrotated, 1, self.length, NEAR))
        value = values(inv_freq, self.sums.unrotated, distances)
        self._keep(distances, value)
        return distances[value < -self.error]

    def _of_pool(self, inv_freq: Vector) -> Distances:
        return self.pool[rough(inv_freq, self.sums.unrotated, self.pool) < -self.sums.sure]

    def _search_slow(self, inv_freq: Vector) -> bool:
        """Searches the 100 blocks of each group with the lowest sum over the slow pairs, nearly constant in a block."""
        slow = inv_freq[BLOCK * inv_freq < SLOW]
        blocks = self.length // BLOCK
        if blocks < 256 or not len(slow):
            return False
        kernel = Blocks(inv_freq, self.sums.unrotated)
        groups = -(-blocks // GROUP)
        for turn in range(groups):
            number = (self.group + turn) % groups
            first = 1 + BLOCK * np.arange(number * GROUP, min(blocks, (number + 1) * GROUP))
            level = rough(slow, 0.0, first + (BLOCK - 1) / 2)
            lowest = first[np.argpartition(level, 100)[:100]] if len(first) > 100 else first
            value = kernel.rotated(lowest) + np.float32(self.sums.unrotated)
            rows, columns = np.nonzero(value < NEAR)
            if value.min(initial=NEAR) < -kernel.slack - self.sums.sure:
                distances = lowest[rows] + columns
                inside = distances < self.length
                self._keep(distances[inside], value[rows, columns][inside])
                self.group = number
                return True
        return False

    def _keep(self, distances: Distances, value: Vector | Single) -> None:
        lowest = np.argpartition(value, POOL)[:POOL] if len(value) > POOL else slice(None)
        self.pool = distances[lowest]

    def _walk(self, witnesses: Distances, log_base: float) -> tuple[float, int]:
        """The ln b up to which one distance is proven to violate, and that distance.

        Each step uses f(t + h) <= f + f' h + M h^2 / 2 < 0.
        """
        distances = witnesses.astype(np.float64)
        reached = np.full(len(witnesses), log_base)
        walking = np.arange(len(witnesses))
        curvatures = self.sums.curvature(distances, log_base)
        first = True
        while len(walking):
            curvature = curvatures[walking]
            value, slope = self.sums.taylor(distances[walking], reached[walking])
            step = (np.sqrt(np.maximum(slope**2 - 2 * curvature * value, 0)) - slope) / curvature
            step[value >= 0] = 0
            reached[walking] += step
            if first:
                walking, first = walking[np.argsort(-step)[:TEAM]], False
            else:
                walking = walking[(value < -self.error) & (step > 1e-15 * log_base)]
        best = int(reached.argmax())
        return float(reached[best]), int(witnesses[best])


def settled(sweep: Sweep, log_base: float) -> tuple[Decimal, int | None]:
    """The exact smallest ln b >= log_base at which no distance violates, and the distance whose sum is zero there.

    (0, None) where every base from there on is free of violations. Newton's method in decimal arithmetic, for every
    distance whose sum is within the error of float64 of zero.
    """
    sums = sweep.sums
    while True:
        log_base = sweep.feasible_from(log_base)
        inv_freq = sums.inv_freq(log_base)
        distances = everything(scan(inv_freq, sums.unrotated, 1, sweep.length, 0.0))
        near = np.abs(values(inv_freq, sums.unrotated, distances)) < 1e3 * sweep.error
        close = [int(distance) for distance in distances[near]]
        roots = [(root, m) for m in close if (root := _root(sums, m, Decimal(log_base))) is not None]
        if not roots:
            return Decimal(0), None
        exact, distance = max(roots)
        falling = next((m for m in close if sums.exact(m, exact)[0] < Decimal("-1e-30")), None)
        if falling is None:
            return exact, distance
        begin, log_base = log_base, _proven(sums, falling, exact)
        if sweep.proof is not None:
            sweep.proof.append((begin, log_base, falling))


def _proven(sums: Sums, distance: int, log_base: Decimal) -> float:
    """The ln b up to which a distance that violates at `log_base` is proven to: f + f' h + M h^2 / 2 < 0."""
    value, slope = (float(one) for one in sums.exact(distance, log_base))
    curvature = float(sums.curvature(np.array([distance]), float(log_base))[0])
    return float(log_base) + (math.sqrt(slope**2 - 2 * curvature * value) - slope) / curvature


def _root(sums: Sums, distance: int, log_base: Decimal) -> Decimal | None:
    with localcontext(prec=DIGITS):
        for _ in range(12):
            value, slope = sums.exact(distance, log_base)
            if slope <= 0:
                return None
            step = value / slope
            log_base -= step
            if abs(step) < Decimal("1e-35"):
                return log_base
    return None


def smallest_log_base(
    sums: Sums, length: int, reached: tuple[int, float] = (1, 1.0), proof: Proof | None = None, tell: Tell = _silent
) -> tuple[Decimal, int | None]:
    """ln b* of a length, b* its smallest base, and the distance whose sum is zero there; (0, None) where any base fits.

    sums: of the head. length: in tokens. reached: a shorter length and its b*, to start from, since b* does not fall
    with the length. proof: a list to which (from, to, m) is appended for each interval of ln b that distance m rules
    out. tell: called often with the ln b up to which all bases are ruled out.

    Halves of the length are searched first: they rule out most bases with few distances.
    """
    start = math.log(reached[1]) * (1 - 1e-12)
    sizes = [length]
    while sizes[0] // 2 > max(32, reached[0]):
        sizes.insert(0, sizes[0] // 2)
    for size in sizes[:-1]:
        start = Sweep(sums, size, proof, tell).feasible_from(start)
    return settled(Sweep(sums, length, proof, tell), start)


def up(value: Decimal) -> float:
    """The smallest float64 that is not below a number."""
    near = float(value)
    return near if Decimal(near) >= value else float(np.nextafter(near, np.inf))


def exp(log_base: float) -> float:
    """The base e^log_base; infinite where it is beyond float64."""
    return math.exp(log_base) if log_base < 700 else math.inf
