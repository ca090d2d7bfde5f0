"""The smallest base for a length, by a search over ln b that skips no base.

Read `smallest_log_base` first. Every base b (`rope_theta`) is given as its logarithm, `log_base`,
and f(m, ln b) is the sum of `Sums` at a distance of m tokens. In this module

- a distance *violates* at a base where its sum is negative there;
- a base *fits* a length where no distance below the length violates;
- a *witness* against a base is a distance that violates at it.

For heads of 128 dimensions and 4,096 tokens: no base below 26,952 fits. Those up to 26,973 do, then
come gaps and further intervals, and from 58,790 on every base fits.

`Sweep` finds the smallest base that fits. A witness against ln b = t rules out t, and with it
everything up to the next zero of f(m, .), which a bound on the second derivative proves. From there
another witness takes over. Where none is left, t is the answer.

`Walk` starts at a base that fits, where every sum is positive, and finds the end of its interval. A
bound on the slopes leaves few distances whose sum can reach zero within a range of ln b, and each
of those is followed.
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
    scan,
    sums_in_float32,
    sums_in_float64,
)

Proof = list[tuple[float, float, int]]
Tell = Callable[[float], None]

MOST_IN_POOL = 512
"""Distances that are tried first at the next base."""
MOST_WALKING = 16
"""Distances that are followed to the end of a walk."""
LOW_SUM = 1.5
"""Sums below this are kept in the pool."""
SLOW = 2.5
"""Radians within a block, up to which a pair is slow."""
GROUP = 4096
"""Blocks that are searched together."""
LOWEST_BLOCKS = 100
"""Blocks of a group that are computed: those with the lowest sum over the slow pairs."""
FEW_BLOCKS = 256
"""Lengths of fewer blocks are scanned as a whole."""
SMALLEST_STEP = 1e-15
"""The smallest step of a walk over ln b, relative: a few ulp of float64."""


class Sweep:
    """A search from small bases to large ones for the first base without a violation.

    Args:
        sums: The sums of the head.
        length: In tokens; distances below it are searched.
        proof: A list to which (from, to, m) is appended for each interval of ln b that distance m
            rules out, without gaps.
        tell: Called often with the ln b up to which all bases are ruled out.

    Attributes:
        pool: Distances that are likely to violate at the next base too: those with low sums at an
            earlier one.
    """

    def __init__(
        self,
        sums: Sums,
        length: int,
        proof: Proof | None = None,
        tell: Tell = lambda log_base: None,
    ) -> None:
        """Prepare a search for the first base at which no distance below `length` violates.

        A distance violates where its sum is negative. `proof` collects the intervals of bases that
        are ruled out, and `tell` is called with the ln b up to which they are.
        """
        self.sums = sums
        self.length = length
        self.proof = proof
        self.tell = tell

        # the distances that are tried first at each base
        self.pool = np.arange(1, min(length, MOST_IN_POOL))
        # the largest error of a sum in float64
        self.error = float64_error(sums.rotary_dim // 2, length)
        # Distances are searched in groups of 4096 blocks of 256. A violation at the next base is
        # often in the group of the last one: its number, from 0.
        self.last_violating_group = 0

    def feasible_from(self, log_base: float) -> float:
        """The smallest ln b >= log_base, up to rounding, at which no distance violates."""
        # each round jumps over the bases that one distance rules out
        while True:
            witnesses = self.find_witnesses(log_base)
            if not len(witnesses):
                return log_base
            begin = log_base
            log_base, distance = self._walk(witnesses, begin)
            self.tell(log_base)
            if self.proof is not None:
                self.proof.append((begin, log_base, distance))

    def find_witnesses(self, log_base: float) -> Distances:
        """Some of the distances that violate at one base, int64; empty only if the base fits.

        A distance violates where its sum is negative. Cheap searches come before complete ones.
        Each search puts the distances with the lowest sums into the pool, which is tried first at
        the next base.
        """
        # 1. the pool: distances that had low sums at an earlier base
        inv_freq = self.sums.inv_freq(log_base)
        violating = self._violating_in_pool(inv_freq)
        if len(violating):
            return violating

        # 2. the likeliest blocks of 256 distances, which fill the pool if one of them violates
        if self._search_likely_blocks(inv_freq):
            violating = self._violating_in_pool(inv_freq)
            if len(violating):
                return violating

        # 3. all distances: those with a sum below 1.5 go to the pool
        distances = scan(inv_freq, self.sums.unrotated, 1, self.length, LOW_SUM)
        sums = sums_in_float64(inv_freq, self.sums.unrotated, distances)
        self._fill_pool(distances, sums)
        return distances[sums < -self.error]

    def _violating_in_pool(self, inv_freq: Vector) -> Distances:
        """The distances of the pool whose sums are surely negative, by sums in float32."""
        sums = sums_in_float32(inv_freq, self.sums.unrotated, self.pool)
        return self.pool[sums < -self.sums.float32_margin]

    def _search_likely_blocks(self, inv_freq: Vector) -> bool:
        """Look for distances with a negative sum where they are likely, and put them in the pool.

        A block is 256 consecutive distances. A slow pair rotates by less than 2.5 radians within a
        block, so its cosine in the middle is near those of the whole block. In each group of 4096
        blocks, the 100 whose slow pairs have the lowest sum of cosines are computed completely.

        Args:
            inv_freq: The frequencies of a base, float64 [rotary_dim / 2].

        Returns:
            Whether a sum is surely negative. Then all distances with low sums of the blocks that
            were computed together are in the pool, since they may violate at the next base too.
        """
        slow_pairs = inv_freq[BLOCK * inv_freq < SLOW]
        blocks = self.length // BLOCK
        is_short = blocks < FEW_BLOCKS  # a complete search is quick
        if is_short or not len(slow_pairs):
            return False

        # a sum in float32 below this is negative, whatever its rounding error is
        block_sums = Blocks(inv_freq, self.sums.unrotated)
        surely_negative = -block_sums.largest_error - self.sums.float32_margin

        # the group of 4096 blocks with the last violation comes first, and the others follow it
        groups = math.ceil(blocks / GROUP)
        for step in range(groups):
            group = (self.last_violating_group + step) % groups
            blocks_of_group = np.arange(group * GROUP, min(blocks, (group + 1) * GROUP))
            first_distances = _lowest_blocks(1 + BLOCK * blocks_of_group, slow_pairs)

            # the sums of whole blocks, [blocks, 256]
            sums = block_sums.cosine_sums(first_distances) + np.float32(self.sums.unrotated)
            if sums.min(initial=LOW_SUM) >= surely_negative:
                continue

            rows, columns = np.nonzero(sums < LOW_SUM)
            distances = first_distances[rows] + columns
            is_below_length = distances < self.length  # the last block may end beyond it
            self._fill_pool(distances[is_below_length], sums[rows, columns][is_below_length])
            self.last_violating_group = group
            return True
        return False

    def _fill_pool(self, distances: Distances, sums: Vector | Single) -> None:
        """Replace the pool by those of some distances that have the lowest sums, at most 512."""
        if len(sums) > MOST_IN_POOL:
            distances = distances[np.argpartition(sums, MOST_IN_POOL)[:MOST_IN_POOL]]
        self.pool = distances

    def _walk(self, witnesses: Distances, log_base: float) -> tuple[float, int]:
        """Return how far the search can jump from a base, and the distance that proves it.

        A witness is a distance at which the sum of cosines is negative for a base, so that the base
        does not fit. Its sum stays negative for some larger bases too, which then do not fit
        either: the search continues where the sum of the best witness may no longer be negative.

        Args:
            witnesses: Distances with a negative sum at `log_base`, int64 [n].
            log_base: The logarithm of the base, ln b, to start from.

        Returns:
            The ln b up to which the sum of one witness is surely negative, and this witness.
        """
        # A step is safe by a bound on the second derivative of the sum. The bound falls as the base
        # grows, so that of the start holds for the whole walk.
        distances = witnesses.astype(np.float64)
        log_bases = np.full(len(witnesses), log_base)
        curvatures = self.sums.curvature(distances, log_base)

        # all witnesses take one step, and the 16 that get furthest walk on, each until its sum is
        # no longer surely negative
        first_steps, _ = self._steps(distances, log_bases, curvatures)
        log_bases += first_steps
        walking = np.argsort(-first_steps)[:MOST_WALKING]
        while len(walking):
            steps, value = self._steps(distances[walking], log_bases[walking], curvatures[walking])
            log_bases[walking] += steps
            is_surely_negative = value < -self.error
            gets_further = steps > SMALLEST_STEP * log_base  # by more than the rounding of ln b
            walking = walking[is_surely_negative & gets_further]

        best = int(log_bases.argmax())
        return float(log_bases[best]), int(witnesses[best])

    def _steps(
        self, distances: Vector, log_bases: Vector, curvature: Vector
    ) -> tuple[Vector, Vector]:
        """How far each negative sum surely stays negative, as a step h of ln b, and its value now.

        Let f be the sum of a distance as a function of ln b, and |f''| <= M. By Taylor's theorem
        f(ln b + h) <= f + f' h + M h^2 / 2, and the step ends where this upper bound becomes zero:
        for f = -2, f' = 0 and M = 4 after 1. It is 0 where the sum is not negative.

        Args:
            distances: The distances of the sums, float64 [n].
            log_bases: The ln b at which each sum is taken, float64 [n].
            curvature: M, a bound on |f''| of each, float64 [n].

        Returns:
            The steps and the sums f, both float64 [n].
        """
        # the larger root of the quadratic is h = (sqrt(f'^2 - 2 M f) - f') / M; for sums that are
        # not negative, the root may not exist and is not used
        value, slope = self.sums.taylor(distances, log_bases)
        discriminant = slope**2 - 2 * curvature * value
        steps = (np.sqrt(np.maximum(discriminant, 0)) - slope) / curvature
        steps[value >= 0] = 0
        return steps, value


def _lowest_blocks(first_distances: Distances, slow: Vector) -> Distances:
    """The blocks with the lowest sum over the slow pairs, by their first distances."""
    if len(first_distances) <= LOWEST_BLOCKS:
        return first_distances
    in_the_middle = sums_in_float32(slow, 0.0, first_distances + (BLOCK - 1) / 2)
    lowest = np.argpartition(in_the_middle, LOWEST_BLOCKS)[:LOWEST_BLOCKS]
    return first_distances[lowest]


CLOSE = 1e3
"""How many errors of float64 a sum may be from zero, for its sign to be decided in decimals."""
NEGATIVE = Decimal("-1e-30")
"""Sums below it are negative, in decimal arithmetic of 50 digits."""


def exact_smallest(sweep: Sweep, log_base: float) -> tuple[Decimal, int | None]:
    """The exact smallest ln b at which no sum is negative, and the distance whose sum is 0 there.

    The search in float64 (`feasible_from`) comes within rounding of it. Newton's method in decimal
    arithmetic then finds the ln b at which the sum of each distance that is close to zero becomes
    zero (its root). Below its root a sum is negative, so the answer is the largest root, unless
    another sum is still negative there.

    Args:
        sweep: The search in float64, for a head and a length.
        log_base: The ln b from which on it searches.

    Returns:
        The ln b and the distance in tokens; (0, None) where every base from there on is free of
        violations.
    """
    sums = sweep.sums
    while True:
        log_base = sweep.feasible_from(log_base)
        close = _distances_near_zero(sweep, log_base)

        # the distances whose sums rise through zero here, each with the ln b at which it is zero
        roots = []
        for distance in close:
            root = _root(sums, distance, Decimal(log_base))
            if root is not None:
                roots.append((root, distance))
        if not roots:
            return Decimal(0), None

        largest_root, its_distance = max(roots)
        violating = []
        for distance in close:
            value, _ = sums.exact(distance, largest_root)
            if value < NEGATIVE:
                violating.append(distance)
        if not violating:
            return largest_root, its_distance

        # float64 rounded the sum of this distance to zero, but it is negative. It stays negative up
        # to some larger base, from which the loop searches again.
        begin = log_base
        log_base = _surely_negative_to(sums, violating[0], largest_root)
        if sweep.proof is not None:
            sweep.proof.append((begin, log_base, violating[0]))


def _distances_near_zero(sweep: Sweep, log_base: float) -> list[int]:
    """The distances whose sum float64 does not tell from zero, with a wide margin."""
    sums = sweep.sums
    inv_freq = sums.inv_freq(log_base)
    distances = scan(inv_freq, sums.unrotated, 1, sweep.length, 0.0)
    value = sums_in_float64(inv_freq, sums.unrotated, distances)
    near = np.abs(value) < CLOSE * sweep.error
    return [int(distance) for distance in distances[near]]


def _surely_negative_to(sums: Sums, distance: int, log_base: Decimal) -> float:
    """The ln b up to which the sum of a distance stays negative, by f + f' h + M h^2 / 2 < 0."""
    value, slope = map(float, sums.exact(distance, log_base))
    curvature = float(sums.curvature(np.array([distance]), float(log_base))[0])
    discriminant = slope**2 - 2 * curvature * value
    return float(log_base) + (math.sqrt(discriminant) - slope) / curvature


def _root(sums: Sums, distance: int, log_base: Decimal) -> Decimal | None:
    """The ln b near `log_base` at which the sum of a distance becomes zero; None without one.

    Args:
        sums: The sums of the head.
        distance: The distance in tokens.
        log_base: A ln b close to the root.
    """
    # Newton's method starts with the 16 digits of float64 and doubles them in each round, so twelve
    # rounds are plenty; of 50 digits, a sum keeps about 40
    with localcontext(prec=DIGITS):
        for _ in range(12):
            value, slope = sums.exact(distance, log_base)
            if slope <= 0:  # the sum does not rise through zero here
                return None
            step = value / slope
            log_base -= step
            if abs(step) < Decimal("1e-35"):
                return log_base
    return None


SHORTEST = 32
"""Lengths up to it, in tokens, are not searched before the whole length."""


def smallest_log_base(
    sums: Sums,
    length: int,
    reached: tuple[int, float] = (1, 1.0),
    proof: Proof | None = None,
    tell: Tell = lambda log_base: None,
) -> tuple[Decimal, int | None]:
    """The smallest base b* that fits a length, as ln b*, and the distance whose sum is zero there.

    A base fits where no distance below the length has a negative sum. For 4,096 tokens and heads of
    128 dimensions the result is ln 26,952, and the distance is 4,012.

    Shorter lengths are searched first (512k, 1M, 2M, ...). They have fewer distances to compute,
    and the smallest base of a shorter length is a lower bound for that of a longer one.

    Args:
        sums: The sums of the head.
        length: In tokens.
        reached: A shorter length and its b*, to start from, since b* does not fall with the length.
        proof: A list to which (from, to, m) is appended for each interval of ln b that distance m
            rules out.
        tell: Called often with the ln b up to which all bases are ruled out.

    Returns:
        (0, None) where any base fits.
    """
    known_length, known_base = reached
    log_base = math.log(known_base) * (1 - 1e-12)  # surely not above the exact ln b*

    # the lengths between the known one and this one, each half of the one before
    shorter_lengths = []
    half = length // 2
    while half > max(SHORTEST, known_length):
        shorter_lengths.append(half)
        half //= 2

    for shorter in reversed(shorter_lengths):
        sweep = Sweep(sums, shorter, proof, tell)
        log_base = sweep.feasible_from(log_base)  # the smallest ln b that fits, in float64
    return exact_smallest(Sweep(sums, length, proof, tell), log_base)


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
"""The width of a wide interval, as a share of its smallest base."""


def surely_fitting_from(sums: Sums, length: int) -> float:
    """The logarithm of a base from which on every larger base surely fits.

    A base b fits a length where the sum (d - r)/2 + sum_i cos(m b^(-2i/r)) of a head of d
    dimensions, of which r rotate, is not negative for any distance m below the length. The result
    comes from a lower bound on the sums, so it is larger than needed: 16.2 for 4,096 tokens and
    heads of 128 dimensions, where every base from ln b = 11.0 on fits.

    Args:
        sums: The sums of the head.
        length: In tokens; distances below it count.
    """
    # double ln b until it fits, and then halve the interval; `high` always fits
    low = 0.0
    high = 1.0
    while not _surely_fits(sums, length, high):
        high *= 2
    for _ in range(50):
        middle = (low + high) / 2
        if _surely_fits(sums, length, middle):
            high = middle
        else:
            low = middle
    return high


def _surely_fits(sums: Sums, length: int, log_base: float) -> bool:
    """Whether a lower bound shows that all sums below a length are >= 0, also for larger bases.

    Let g(x) be cos x up to pi and -1 beyond. It is never above the cosine and never rises, so the
    sum of g at the largest distance is below the sum at every distance, there and for larger bases.
    """
    angle = (length - 1) * sums.inv_freq(log_base)
    g = np.where(angle < math.pi, np.cos(np.minimum(angle, math.pi)), -1)
    return bool(sums.unrotated + g.sum() >= 0)


LARGEST_PIECE = 0.1
"""The most ln b that a walk covers at once."""
GROWTH = 1.3
"""By how much the intervals of a walk grow or shrink, to be left with a few hundred distances."""


class Walk:
    """A walk from a base that fits to the nearest base that does not.

    It covers ln b piece by piece. A piece is short enough that only a few hundred distances can
    violate in it, and each of them is followed to the zero of its sum.

    Args:
        sums: The sums of the head.
        length: Distances below it are searched.
        direction: 1 towards larger bases, -1 towards smaller ones.
        tell: Called often with the ln b that has been reached.
    """

    def __init__(self, sums: Sums, length: int, direction: int, tell: Tell | None = None) -> None:
        """Prepare a walk over the bases from one that fits, for distances below `length`."""
        self.sums = sums
        self.direction = direction
        self.tell = tell
        self.shorten(length)
        # by how much the sum of any distance may change in the next piece of the walk
        self.largest_change = 4.0

    def shorten(self, length: int) -> None:
        """Search only distances below `length` from here on."""
        self.length = length
        self.error = float64_error(self.sums.rotary_dim // 2, length)

    def edge(self, begin: float, end: float) -> tuple[float, int | None]:
        """Walk from one base towards another, to the first base at which a sum is negative.

        Bases b are given as ln b. For 4,096 tokens and heads of 128 dimensions, a walk from
        ln 26,960 to larger bases ends at ln 26,973, where the sum of a distance turns negative.

        Args:
            begin: The ln b of a base at which no sum is negative.
            end: The ln b at which the walk gives up; below `begin` for the direction -1.

        Returns:
            The ln b at which the first sum turns negative, and the distance with this sum; `end`
            and None where no sum does.
        """
        log_base = begin
        while (end - log_base) * self.direction > 0:  # not there yet
            # the end of the next piece, and the distances whose sums turn negative in it, each with
            # the ln b at which it does
            piece_end, distances, negative_from = self.piece(log_base, end)
            if len(distances):
                nearest = int((negative_from * self.direction).argmin())
                return float(negative_from[nearest]), int(distances[nearest])
            log_base = piece_end
            if self.tell is not None:
                self.tell(log_base)
        return end, None

    def piece(self, begin: float, end: float, start: int = 1) -> tuple[float, Distances, Vector]:
        """Search one piece of the walk, from `begin` towards `end`, for distances that violate.

        A distance violates at a base where its sum f is negative, and no distance does at `begin`.
        Most distances are ruled out by bounds on f' and f'', and the others are followed.

        Args:
            begin: The ln b at which the piece begins.
            end: The ln b at which the whole walk ends.
            start: The smallest distance that is searched, in tokens.

        Returns:
            The other end of the piece as ln b, the distances as int64 [n], and for each the first
            ln b of the walk at which it violates, float64 [n].
        """
        # The size h of the piece, in ln b. A sum f changes by at most |f'| h in it, and |f'| is at
        # most steepness * m. So in a piece of h = largest_change / (steepness * length), no sum
        # changes by more than `largest_change`. (Bounds on f' and f'' are largest at the smaller
        # base of a range.)
        farthest_stop = begin + self.direction * LARGEST_PIECE
        steepness = self.sums.steepness(min(begin, farthest_stop))
        size_by_change = self.largest_change / (self.length * steepness)
        remaining = abs(end - begin)
        size = min(size_by_change, LARGEST_PIECE, remaining)
        is_last_piece = size == remaining
        stop = end if is_last_piece else begin + self.direction * size

        # 1. distances whose sum can become negative within the piece: f < steepness * m * h
        inv_freq = self.sums.inv_freq(begin)
        distances = scan(inv_freq, self.sums.unrotated, start, self.length, 0.0, steepness * size)
        self._adapt_next_piece(len(distances))
        if not len(distances):
            return stop, distances, np.empty(0)

        # 2. of these, distances whose sum can become negative by its own slope f' at `begin` and a
        # bound M on |f''|: f - |f'| h - M h^2 / 2 < 0, up to the error of float32
        curvature = self.sums.curvature(distances, min(begin, stop))  # M
        lowest = lower_bounds(self.sums, distances, begin, size, curvature)
        may_violate = lowest < self.sums.float32_margin
        distances = distances[may_violate]
        curvature = curvature[may_violate]

        # 3. follow each of these to the zero of its sum, which may be beyond the end of the piece
        zeros = self._zeros(distances.astype(np.float64), curvature, begin, stop)
        is_within = (stop - zeros) * self.direction > 0
        return stop, distances[is_within], zeros[is_within]

    def _adapt_next_piece(self, found: int) -> None:
        """Make the next piece larger if few distances were found in this one, and else smaller."""
        few = max(32, self.length // 600)
        many = max(128, self.length // 200)
        if found <= few:
            self.largest_change *= GROWTH
        elif found > many:
            self.largest_change *= 1 / GROWTH

    def _zeros(self, distances: Vector, curvature: Vector, begin: float, end: float) -> Vector:
        """The ln b at which the sum of each distance first turns negative, or a ln b beyond `end`.

        Bases grow or shrink from `begin` on, as `direction` (1 or -1) says. Let f be the sum of a
        distance as a function of ln b, f' its slope in this direction, and |f''| <= M. By Taylor's
        theorem f is at least f + f' h - M h^2 / 2 when ln b has changed by h. Each step ends where
        this lower bound becomes zero, so no zero of f is skipped: at h = 1 for f = 2, f' = 0 and
        M = 4.

        Args:
            distances: The distances of the sums, float64 [n].
            curvature: M, a bound on |f''| of each, float64 [n].
            begin: The ln b at which the steps begin.
            end: The ln b beyond which they need not go.
        """
        log_bases = np.full(len(distances), begin)
        smallest_step = SMALLEST_STEP * max(begin, 1.0)  # a smaller one would be lost in rounding

        open_sums = np.arange(len(distances))  # those whose zero is not found yet, by their indices
        while len(open_sums):
            value, slope = self.sums.taylor(distances[open_sums], log_bases[open_sums])
            slope = slope * self.direction  # f' in the direction of the steps

            # The zero is found where the sum is negative, or where it is zero within rounding and
            # falls. A sum that rises from zero becomes positive, so it is followed further.
            is_negative = value < -self.error
            is_zero = value < self.error
            is_found = is_negative | (is_zero & (slope <= 0))

            # the positive root of the lower bound, h = (f' + sqrt(f'^2 + 2 M f)) / M
            bound = curvature[open_sums]
            root = np.sqrt(slope**2 + 2 * bound * np.maximum(value, 0))
            steps = np.maximum((slope + root) / bound, smallest_step)
            steps[is_found] = 0
            log_bases[open_sums] += self.direction * steps

            is_before_end = (end - log_bases[open_sums]) * self.direction > 0
            open_sums = open_sums[~is_found & is_before_end]
        return log_bases


def lower_bounds(
    sums: Sums, distances: Distances, log_base: float, size: float, curvature: Vector
) -> Vector:
    """Return a lower bound on the sum f of each distance m, for all bases b in a short interval.

    In a head of d dimensions, of which r rotate, f = (d - r)/2 + sum_i cos(m theta_i), with
    theta_i = b^(-c_i) and c_i = 2i/r. Its derivative by ln b is f' = m sum_i c_i theta_i
    sin(m theta_i). By Taylor's theorem f is at least f - |f'| h - M h^2 / 2 at the beginning of the
    interval, with h its width in ln b and |f''| <= M. In float32 the result is within 1e-3 of that.

    Args:
        sums: The sums of the head.
        distances: m in tokens, int64 [n].
        log_base: The ln b at which the interval begins.
        size: h, the width of the interval in ln b.
        curvature: M, a bound on |f''| there, float64 [n].

    Returns:
        float32 or float64 [n].
    """
    inv_freq = sums.inv_freq(log_base)
    angle = phases(distances, inv_freq)  # m theta_i, [n, r/2]
    value = np.cos(angle).sum(axis=1) + np.float32(sums.unrotated)
    weighted = (sums.exponents * inv_freq).astype(np.float32)  # c_i theta_i, [r/2]
    slope = distances * (np.sin(angle) @ weighted)
    return np.asarray(value - np.abs(slope) * size - curvature * size**2 / 2)


def interval_end(sums: Sums, length: int, log_base: float) -> float:
    """The ln b at which the interval of fitting bases around `log_base` ends; may be infinite."""
    all_fit_from = surely_fitting_from(sums, length)
    end, distance = Walk(sums, length, 1).edge(log_base, max(all_fit_from, log_base))
    if distance is None:
        return math.inf
    return end


def last_violating(sums: Sums, length: int, tell: Tell | None = None) -> tuple[float, int | None]:
    """The largest ln b at which some distance below `length` violates, and that distance.

    It is found by a walk from a base above which every base fits, to smaller bases. For 4,096
    tokens and heads of 128 dimensions it is ln 58,790, at distance 4,000.

    Args:
        sums: The sums of the head.
        length: In tokens; beyond 2^18 this takes minutes, since every larger base is proven.
        tell: Called often with the ln b down to which no distance violates.
    """
    return Walk(sums, length, -1, tell).edge(surely_fitting_from(sums, length), 0.0)


def wide_intervals(sums: Sums, length: int, start: float) -> Iterator[tuple[float, float]]:
    """Yield the intervals of bases that fit and are at least 1 % wide, in rising order.

    A base fits where no distance below the length has a negative sum. For 4,096 tokens and heads of
    128 dimensions, the bases from 26,952 to 26,973 fit and are left out, since this is less than
    0.1 %. The first wide interval has the bases 28,629 to 29,080.

    Bases are tried in steps of half of 1 %, so that one of them is in every interval that is 1 %
    wide. From a base that fits, the ends of its interval are searched in both directions.

    Args:
        sums: The sums of the head.
        length: In tokens.
        start: ln b* of the length, with b* its smallest base, or another lower bound.

    Yields:
        The ln b at which an interval begins, and the ln b at which it ends, infinite for the last.
    """
    least_width = math.log1p(WIDTH)  # 1 %, in ln b
    sweep = Sweep(sums, length)
    to_larger = Walk(sums, length, direction=1)
    to_smaller = Walk(sums, length, direction=-1)
    all_fit_from = surely_fitting_from(sums, length)

    log_base = start
    while True:
        # a witness against a base is a distance with a negative sum
        fits = log_base > all_fit_from or not len(sweep.find_witnesses(log_base))
        if fits:
            # The interval begins at most half of 1 % below: the base before did not fit, or was the
            # end of the last interval. So the search downwards gives up after 1 %.
            lowest = max(0.0, start, log_base - least_width)
            begin, _ = to_smaller.edge(log_base, lowest)
            end, violating = to_larger.edge(log_base, max(all_fit_from, log_base))

            if violating is None:  # every larger base fits
                yield begin, math.inf
                return
            if end - begin >= least_width:
                yield begin, end
            log_base = end
        log_base += least_width / 2
