"""The smallest base for a length, by a search over ln b that skips no base.

Read `smallest_log_base` first. At ln b = t a distance m with f(m, t) < 0 rules t out, and with it
everything up to the next zero of f(m, .), which a bound on the second derivative proves. From there
another distance takes over. Where none is left, t is the answer.

The smallest base opens an interval on which no distance violates, and it may be very narrow. The
end of an interval is found from a base where every sum is positive: a bound on the slopes leaves
few distances whose sum can reach zero within a range of ln b, and each of those is followed.
"""

import math
from collections.abc import Callable, Iterator
from decimal import Decimal, localcontext

import numpy as np

from ..forms import Vector
from .sums import (
    BLOCK,
    DIGITS,
    Blocks,
    Distances,
    Single,
    Sums,
    float64_error,
    phases,
    rough,
    scan,
    values,
)

Proof = list[tuple[float, float, int]]
Tell = Callable[[float], None]

POOL = 512
"""Distances that are tried first at the next base."""
TEAM = 16
"""Distances that are followed to the end of a walk."""
NEAR = 1.5
"""Sums below this are kept in the pool."""
SLOW = 2.5
"""Radians within a block, up to which a pair is slow."""
GROUP = 4096
"""Blocks that are searched together."""


class Sweep:
    """A search from small bases to large ones for the first base without a violation.

    Args:
        sums: The sums of the head.
        length: In tokens; distances below it are searched.
        proof: A list to which (from, to, m) is appended for each interval of ln b that distance m
            rules out, without gaps.
        tell: Called often with the ln b up to which all bases are ruled out.

    Attributes:
        pool: Distances that are likely to violate at the next base too.
    """

    def __init__(
        self,
        sums: Sums,
        length: int,
        proof: Proof | None = None,
        tell: Tell = lambda log_base: None,
    ) -> None:
        self.sums = sums
        self.length = length
        self.proof = proof
        self.tell = tell
        self.pool = np.arange(1, min(length, POOL))
        self.error = float64_error(sums.rotary_dim // 2, length)
        self.group = 0

    def feasible_from(self, log_base: float) -> float:
        """The smallest ln b >= log_base, up to rounding, at which no distance violates."""
        while True:
            witnesses = self.witnesses(log_base)
            if not len(witnesses):
                return log_base
            begin = log_base
            log_base, distance = self._walk(witnesses, begin)
            self.tell(log_base)
            if self.proof is not None:
                self.proof.append((begin, log_base, distance))

    def witnesses(self, log_base: float) -> Distances:
        """Some of the distances that violate at one base, int64; empty only if there are none."""
        inv_freq = self.sums.inv_freq(log_base)
        witnesses = self._violating_in_pool(inv_freq)
        if not len(witnesses) and self._search_slow(inv_freq):
            witnesses = self._violating_in_pool(inv_freq)
        if len(witnesses):
            return witnesses

        distances = scan(inv_freq, self.sums.unrotated, 1, self.length, NEAR)
        value = values(inv_freq, self.sums.unrotated, distances)
        self._keep(distances, value)
        return distances[value < -self.error]

    def _violating_in_pool(self, inv_freq: Vector) -> Distances:
        return self.pool[rough(inv_freq, self.sums.unrotated, self.pool) < -self.sums.sure_margin]

    def _search_slow(self, inv_freq: Vector) -> bool:
        """Search the 100 blocks of each group with the lowest sum over the slow pairs.

        Those are nearly constant in a block.
        """
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
            lowest = first
            if len(first) > 100:
                lowest = first[np.argpartition(level, 100)[:100]]
            value = kernel.cosine_sums(lowest) + np.float32(self.sums.unrotated)
            rows, columns = np.nonzero(value < NEAR)
            if value.min(initial=NEAR) < -kernel.slack - self.sums.sure_margin:
                distances = lowest[rows] + columns
                inside = distances < self.length
                self._keep(distances[inside], value[rows, columns][inside])
                self.group = number
                return True
        return False

    def _keep(self, distances: Distances, value: Vector | Single) -> None:
        """Make the distances with the lowest sums the pool."""
        if len(value) > POOL:
            distances = distances[np.argpartition(value, POOL)[:POOL]]
        self.pool = distances

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
                walking = walking[np.argsort(-step)[:TEAM]]
                first = False
            else:
                walking = walking[(value < -self.error) & (step > 1e-15 * log_base)]

        best = int(reached.argmax())
        return float(reached[best]), int(witnesses[best])


def settle(sweep: Sweep, log_base: float) -> tuple[Decimal, int | None]:
    """The exact smallest ln b >= log_base without violation, and the distance with sum zero there.

    (0, None) where every base from there on is free of violations. Newton's method in decimal
    arithmetic, for every distance whose sum is within the error of float64 of zero.
    """
    sums = sweep.sums
    while True:
        log_base = sweep.feasible_from(log_base)
        inv_freq = sums.inv_freq(log_base)
        distances = scan(inv_freq, sums.unrotated, 1, sweep.length, 0.0)
        near = np.abs(values(inv_freq, sums.unrotated, distances)) < 1e3 * sweep.error
        close = [int(distance) for distance in distances[near]]

        roots = []
        for m in close:
            root = _root(sums, m, Decimal(log_base))
            if root is not None:
                roots.append((root, m))
        if not roots:
            return Decimal(0), None
        exact, distance = max(roots)
        falling = next((m for m in close if sums.exact(m, exact)[0] < Decimal("-1e-30")), None)
        if falling is None:
            return exact, distance

        # the ln b up to which that distance is proven to violate: f + f' h + M h^2 / 2 < 0
        value, slope = map(float, sums.exact(falling, exact))
        curvature = float(sums.curvature(np.array([falling]), float(exact))[0])
        begin = log_base
        log_base = float(exact) + (math.sqrt(slope**2 - 2 * curvature * value) - slope) / curvature
        if sweep.proof is not None:
            sweep.proof.append((begin, log_base, falling))


def _root(sums: Sums, distance: int, log_base: Decimal) -> Decimal | None:
    """The ln b near `log_base` at which the sum of a distance becomes zero; None without one."""
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
    sums: Sums,
    length: int,
    reached: tuple[int, float] = (1, 1.0),
    proof: Proof | None = None,
    tell: Tell = lambda log_base: None,
) -> tuple[Decimal, int | None]:
    """ln b* of a length, b* its smallest base, and the distance whose sum is zero there.

    (0, None) where any base fits. Halves of the length are searched first: they rule out most bases
    with few distances.

    Args:
        sums: The sums of the head.
        length: In tokens.
        reached: A shorter length and its b*, to start from, since b* does not fall with the length.
        proof: A list to which (from, to, m) is appended for each interval of ln b that distance m
            rules out.
        tell: Called often with the ln b up to which all bases are ruled out.
    """
    start = math.log(reached[1]) * (1 - 1e-12)
    sizes = [length]
    while sizes[0] // 2 > max(32, reached[0]):
        sizes.insert(0, sizes[0] // 2)
    for size in sizes[:-1]:
        start = Sweep(sums, size, proof, tell).feasible_from(start)
    return settle(Sweep(sums, length, proof, tell), start)


def up(value: Decimal) -> float:
    """The smallest float64 that is not below a number."""
    near = float(value)
    if Decimal(near) >= value:
        return near
    return float(np.nextafter(near, np.inf))


def exp(log_base: float) -> float:
    """The base e^log_base; infinite where it is beyond float64."""
    return math.exp(log_base) if log_base < 700 else math.inf


WIDTH = 0.01


def tail(sums: Sums, length: int) -> float:
    """A ln b from which on no distance below `length` (in tokens) violates.

    cos x >= g(x) = cos x up to pi and -1 beyond, which does not rise, so the sum of g at the
    largest distance is below every sum there and for larger bases.
    """

    def holds(log_base: float) -> bool:
        angle = (length - 1) * sums.inv_freq(log_base)
        below = np.where(angle < math.pi, np.cos(np.minimum(angle, math.pi)), -1)
        return bool(sums.unrotated + below.sum() >= 0)

    low = 0.0
    high = 1.0
    while not holds(high):
        high *= 2
    for _ in range(50):
        middle = (low + high) / 2
        if holds(middle):
            high = middle
        else:
            low = middle
    return high


class Walk:
    """A walk over intervals of ln b that looks for the first base at which a distance violates.

    Args:
        sums: The sums of the head.
        length: Distances below it are searched.
        direction: 1 towards larger bases, -1 towards smaller ones.
        tell: Called often with the ln b that has been reached.
    """

    def __init__(self, sums: Sums, length: int, direction: int, tell: Tell | None = None) -> None:
        self.sums = sums
        self.direction = direction
        self.tell = tell
        self.shorten(length)
        self.reach = 4.0

    def shorten(self, length: int) -> None:
        """Search only distances below `length` from here on."""
        self.length = length
        self.error = float64_error(self.sums.rotary_dim // 2, length)

    def edge(self, begin: float, end: float) -> tuple[float, int | None]:
        """The first ln b from `begin` to `end` at which a distance violates, and that distance.

        `end` and None where no distance violates on the way.
        """
        at = begin
        while (end - at) * self.direction > 0:
            stop, distances, zeros = self.piece(at, end)
            if len(distances):
                first = int((zeros * self.direction).argmin())
                return float(zeros[first]), int(distances[first])
            at = stop
            if self.tell is not None:
                self.tell(at)
        return end, None

    def piece(self, begin: float, end: float, start: int = 1) -> tuple[float, Distances, Vector]:
        """One interval from `begin` towards `end`, and the distances that violate in it.

        Args:
            begin: The ln b at which the interval begins.
            end: The ln b at which the walk ends.
            start: The smallest distance that is searched, in tokens.

        Returns:
            The other end of the interval as ln b, the distances as int64 [n], and for each the
            first ln b of the walk at which it violates, float64 [n].
        """
        edge = begin + self.direction * 0.1
        steepness = self.sums.steepness(min(begin, edge))
        size = min(self.reach / (self.length * steepness), 0.1, abs(end - begin))
        inv_freq = self.sums.inv_freq(begin)
        distances = scan(inv_freq, self.sums.unrotated, start, self.length, 0.0, steepness * size)

        self._adapt(len(distances))
        is_last = size == abs(end - begin)
        stop = end if is_last else begin + self.direction * size
        if not len(distances):
            return stop, distances, np.empty(0)

        curvature = self.sums.curvature(distances, min(begin, stop))
        lowest = lower_bounds(self.sums, distances, begin, size, curvature)
        near = lowest < self.sums.sure_margin
        zeros = self._zeros(distances[near].astype(np.float64), curvature[near], begin, stop)
        violating = (stop - zeros) * self.direction > 0
        return stop, distances[near][violating], zeros[violating]

    def _adapt(self, found: int) -> None:
        """Let the next interval be larger after few distances, and smaller after many."""
        few = max(32, self.length // 600)
        many = max(128, self.length // 200)
        if found <= few:
            self.reach *= 1.3
        elif found > many:
            self.reach *= 1 / 1.3

    def _zeros(self, distances: Vector, curvature: Vector, begin: float, end: float) -> Vector:
        """The ln b at which each sum turns negative, or one beyond `end`.

        Each step uses f(t + h) >= f + f' h - M h^2 / 2 > 0.
        """
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


def lower_bounds(
    sums: Sums, distances: Distances, log_base: float, size: float, curvature: Vector
) -> Vector:
    """f - |f'| h - M h^2 / 2 within 1e-3, float32 or float64 [n]: a lower bound on each sum.

    Args:
        sums: The sums of the head.
        distances: int64 [n].
        log_base: The ln b.
        size: h, the width of the interval in ln b.
        curvature: M, a bound on |f''| there, float64 [n].
    """
    inv_freq = sums.inv_freq(log_base)
    angle = phases(distances, inv_freq)
    value = np.cos(angle).sum(axis=1) + np.float32(sums.unrotated)
    slope = distances * (np.sin(angle) @ (sums.exponents * inv_freq).astype(np.float32))
    return np.asarray(value - np.abs(slope) * size - curvature * size**2 / 2)


def interval_end(sums: Sums, length: int, log_base: float) -> float:
    """The ln b at which the interval from `log_base` on ends; infinite where it does not end."""
    last = tail(sums, length)
    end, distance = Walk(sums, length, 1).edge(log_base, max(last, log_base))
    if distance is None:
        return math.inf
    return end


def last_violating(sums: Sums, length: int, tell: Tell | None = None) -> tuple[float, int | None]:
    """The largest ln b at which some distance below `length` violates, and that distance.

    Args:
        length: In tokens; beyond 2^18 this takes minutes, since every larger base is proven.
        tell: Called often with the ln b down to which no distance violates.
    """
    return Walk(sums, length, -1, tell).edge(tail(sums, length), 0.0)


def wide_intervals(sums: Sums, length: int, start: float) -> Iterator[tuple[float, float]]:
    """Intervals that are at least 1 % wide, as (begin, end) in ln b, in rising order.

    The last has no end. An interval of that width holds a point of any grid half as wide, so only
    such points are tried.

    Args:
        sums: The sums of the head.
        length: In tokens.
        start: ln b* of the length, or another lower bound.
    """
    reach = math.log1p(WIDTH)
    sweep = Sweep(sums, length)
    right = Walk(sums, length, 1)
    left = Walk(sums, length, -1)
    last = tail(sums, length)

    at = start
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
