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
        """Prepare a search for the smallest base that fits a length.

        A base b fits where no distance m below the length has a negative sum of cosines,
        (d - r)/2 + sum_i cos(m b^(-2i/r)).

        Args:
            sums: Computes these sums for one kind of head (d dimensions, of which r rotate).
            length: In tokens.
            proof: A list that gets (from ln b, to ln b, m) for each interval of bases that do not
                fit, with a distance m whose sum is negative there.
            tell: Called with ln b while the search runs, when no base up to there fits.
        """
        self.sums = sums
        self.length = length
        self.proof = proof
        self.tell = tell

        # the distances that are tried first at each base; at the first base the shortest ones
        self.pool = np.arange(1, min(length, MOST_IN_POOL))
        # the largest rounding error of a sum in float64
        self.error = float64_error(sums.rotary_dim // 2, length)
        # Distances are searched in groups of 4096 blocks of 256 distances. The number of the group
        # in which a negative sum was found last; at the next base, this group is searched first.
        self.last_violating_group = 0

    def feasible_from(self, log_base: float) -> float:
        """The smallest ln b >= log_base, up to rounding, at which no distance violates."""
        # each round jumps over the bases that one distance rules out
        while True:
            witnesses = self.find_witnesses(log_base)
            if not len(witnesses):
                return log_base
            begin = log_base
            log_base, distance = self._jump(witnesses, begin)
            self.tell(log_base)
            if self.proof is not None:
                self.proof.append((begin, log_base, distance))

    def find_witnesses(self, log_base: float) -> Distances:
        """Return some of the distances whose sum of cosines is negative at a base, int64.

        The result is empty only if no distance below the length has a negative sum. Quick searches
        come before the complete one. The second and the third search fill `self.pool` with up to
        512 distances whose sums are low, since these sums are likely to be negative at the next
        base, where they are tried first.

        Args:
            log_base: ln b of the base.
        """
        # 1. the distances in the pool, which had low sums at an earlier base
        inv_freq = self.sums.inv_freq(log_base)
        witnesses = self._violating_in_pool(inv_freq)
        if len(witnesses):
            return witnesses

        # 2. the blocks of 256 distances that are most likely to have a negative sum
        found_negative_sum = self._search_likely_blocks(inv_freq)  # and filled the pool
        if found_negative_sum:
            witnesses = self._violating_in_pool(inv_freq)
            if len(witnesses):
                return witnesses

        # 3. all distances
        distances = scan(inv_freq, self.sums.unrotated, start=1, stop=self.length, limit=LOW_SUM)
        sums = sums_in_float64(inv_freq, self.sums.unrotated, distances)
        self._fill_pool(distances, sums)
        return distances[sums < -self.error]  # negative by more than the error of float64

    def _violating_in_pool(self, inv_freq: Vector) -> Distances:
        """The distances of the pool whose sums are surely negative, by sums in float32."""
        sums = sums_in_float32(inv_freq, self.sums.unrotated, self.pool)
        return self.pool[sums < -self.sums.float32_margin]

    def _search_likely_blocks(self, inv_freq: Vector) -> bool:
        """Search for a negative sum of cosines in the blocks of distances where it is most likely.

        A block is 256 consecutive distances. In each group of 4096 blocks, only 100 blocks are
        computed: those with the lowest sum over the slow pairs. A slow pair rotates by less than
        2.5 radians within a block, so its cosine in the middle stands for the whole block.

        If a negative sum is found, `self.pool` gets the distances of these 100 blocks whose sums
        are low (at most 512), because their sums may be negative at the next base too.

        Args:
            inv_freq: The frequencies of a base, float64 [rotary_dim / 2].

        Returns:
            Whether a negative sum was found.
        """
        # a short length is left to the complete search, which is quick
        blocks = self.length // BLOCK
        slow_pairs = inv_freq[BLOCK * inv_freq < SLOW]
        if blocks < FEW_BLOCKS or not len(slow_pairs):
            return False

        # a sum in float32 below this is negative, whatever its rounding error is
        block_sums = Blocks(inv_freq, self.sums.unrotated)
        surely_negative = -block_sums.largest_error - self.sums.float32_margin

        # begin with the group in which the last negative sum was found, and go round
        groups = math.ceil(blocks / GROUP)
        for step in range(groups):
            group = (self.last_violating_group + step) % groups
            blocks_of_group = np.arange(group * GROUP, min(blocks, (group + 1) * GROUP))
            first_distances = _lowest_blocks(1 + BLOCK * blocks_of_group, slow_pairs)

            # the sums at all distances of the chosen blocks, [100, 256]
            sums = block_sums.cosine_sums(first_distances) + np.float32(self.sums.unrotated)
            if sums.min(initial=LOW_SUM) >= surely_negative:
                continue

            # found: the distances with sums below LOW_SUM (1.5) go to the pool
            rows, columns = np.nonzero(sums < LOW_SUM)
            distances = first_distances[rows] + columns
            low_sums = sums[rows, columns]
            is_below_length = distances < self.length  # the last block may end beyond it
            self._fill_pool(distances[is_below_length], low_sums[is_below_length])
            self.last_violating_group = group
            return True
        return False

    def _fill_pool(self, distances: Distances, sums: Vector | Single) -> None:
        """Replace the pool by those of some distances that have the lowest sums, at most 512."""
        if len(sums) > MOST_IN_POOL:
            distances = distances[np.argpartition(sums, MOST_IN_POOL)[:MOST_IN_POOL]]
        self.pool = distances

    def _jump(self, witnesses: Distances, log_base: float) -> tuple[float, int]:
        """Return the ln b up to which no base fits, and the distance that rules these bases out.

        The sums of cosines at some distances (witnesses) are negative for a base. Each sum stays
        negative for some larger bases too, which do not fit either. The witness whose sum stays
        negative longest rules out the most bases.

        Args:
            witnesses: Distances with a negative sum at the base, int64 [n].
            log_base: ln b, the logarithm of the base.

        Returns:
            The ln b up to which the sum of one witness is surely negative, and this witness.
        """
        # A bound on the second derivative of each sum limits how soon the sum can become zero. The
        # bound falls as the base grows, so its value at the first base holds for all others.
        distances = witnesses.astype(np.float64)
        log_bases = np.full(len(witnesses), log_base)  # the ln b that each witness has reached
        curvatures = self.sums.curvature(distances, log_base)

        # every witness makes one step of ln b
        first_steps, _ = self._safe_steps(distances, log_bases, curvatures)
        log_bases += first_steps

        # the 16 with the largest steps continue, each until its sum is zero up to rounding
        moving = np.argsort(-first_steps)[:MOST_WALKING]  # indices of witnesses
        while len(moving):
            steps, sums = self._safe_steps(distances[moving], log_bases[moving], curvatures[moving])
            log_bases[moving] += steps
            is_surely_negative = sums < -self.error  # by more than the error of float64
            gets_further = steps > SMALLEST_STEP * log_base  # by more than the rounding of ln b
            moving = moving[is_surely_negative & gets_further]

        best = int(log_bases.argmax())
        return float(log_bases[best]), int(witnesses[best])

    def _safe_steps(
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
    """Return the smallest base that fits a length, as an exact ln b, and the distance that binds.

    A base fits where no distance below the length has a negative sum of cosines. At the smallest
    one, the sum of one distance is exactly 0.

    Args:
        sweep: The search in float64 for a kind of head and a length.
        log_base: The ln b from which on bases are searched.

    Returns:
        The ln b, and the distance in tokens whose sum is 0 there; (0, None) where every base from
        there on fits.
    """
    sums = sweep.sums
    while True:
        # 1. the search in float64 finds the base up to rounding; some sums are close to zero there
        log_base = sweep.feasible_from(log_base)
        distances_near_zero = _distances_near_zero(sweep, log_base)

        # 2. the exact ln b (root) at which each of these sums rises through zero, by Newton's
        # method in decimal arithmetic
        roots = []
        for distance in distances_near_zero:
            root = _root(sums, distance, Decimal(log_base))
            if root is not None:
                roots.append((root, distance))
        if not roots:
            return Decimal(0), None

        # 3. each sum is negative below its root, so a base that fits is at the largest root or
        # above; it is the largest root if no other sum is negative there
        largest_root, distance_of_root = max(roots)
        violating = []
        for distance in distances_near_zero:
            value, _ = sums.exact(distance, largest_root)
            if value < NEGATIVE:
                violating.append(distance)
        if not violating:
            return largest_root, distance_of_root

        # 4. float64 rounded the sum of this distance to zero, but it is negative: search again from
        # the base up to which it stays negative
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
    """Return the smallest base that fits a length, as ln b, and the distance that binds.

    A base b fits where the sum (d - r)/2 + sum_i cos(m b^(-2i/r)) of a head of d dimensions, of
    which r rotate, is not negative at any distance m below the length. At the smallest such base,
    the sum of one distance is 0. For 4,096 tokens and heads of 128 dimensions the result is
    (ln 26,952, 4,012).

    Args:
        sums: Computes the sums of the head.
        length: In tokens.
        reached: A shorter length and its smallest base, where they are known.
        proof: A list that gets (from ln b, to ln b, m) for each interval of bases that do not fit,
            with a distance m whose sum is negative there.
        tell: Called with ln b while the search runs, when no base up to there fits.

    Returns:
        ln b and the distance in tokens; (0, None) where every base above 1 fits.
    """
    # The smallest base of a shorter length is a lower bound, and is found faster, since there are
    # fewer distances. So lengths of 1/2, 1/4, 1/8, ... are searched first, the shortest one first.
    known_length, known_base = reached
    shorter_lengths = []
    half = length // 2
    while half > max(SHORTEST, known_length):
        shorter_lengths.append(half)
        half //= 2

    log_base = math.log(known_base) * (1 - 1e-12)  # below the exact value, whatever the rounding
    for shorter_length in reversed(shorter_lengths):
        sweep = Sweep(sums, shorter_length, proof, tell)
        log_base = sweep.feasible_from(log_base)  # up to the rounding of float64
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
        """Return the first base on the way from one base to another at which a sum is negative.

        Bases b are given as ln b. For 4,096 tokens and heads of 128 dimensions, the way from
        ln 26,960 to larger bases ends at ln 26,973, where the sum of a distance turns negative.

        Args:
            begin: The ln b of a base at which no sum is negative.
            end: The ln b at which the walk gives up; below `begin` for the direction -1.

        Returns:
            The ln b at which the first sum turns negative, and the distance with this sum; `end`
            and None where no sum does.
        """
        # self.direction is 1 towards larger bases, and -1 towards smaller ones
        log_base = begin
        while (end - log_base) * self.direction > 0:  # not there yet
            # search the next piece for distances whose sums turn negative, each at its own ln b
            piece_end, distances, log_bases = self.piece(log_base, end)
            if len(distances):
                # the ln b that the walk meets first: the smallest, or for direction -1 the largest
                first = int((self.direction * log_bases).argmin())
                return float(log_bases[first]), int(distances[first])
            log_base = piece_end
            if self.tell is not None:
                self.tell(log_base)
        return end, None

    def piece(self, begin: float, end: float, start: int = 1) -> tuple[float, Distances, Vector]:
        """Search a small range of bases for distances whose sum of cosines turns negative in it.

        Let f be the sum at a distance of m tokens as a function of ln b, f' and f'' its
        derivatives. No sum is negative at the begin of the range. Bounds on f' and f'' show for
        most distances that f stays positive, and f is computed for the others.

        Args:
            begin: The ln b at which the range begins.
            end: The ln b towards which the walk goes, in `direction` (1 to larger bases, -1 to
                smaller ones). The range ends there or before.
            start: The smallest distance that is searched, in tokens.

        Returns:
            The ln b at which the range ends; the distances, int64 [n]; and for each the first ln b
            in the range at which its sum is negative, float64 [n].
        """
        # The size h of the range, in ln b. By |f'| <= steepness * m, no sum changes by more than
        # `largest_change` over h = largest_change / (steepness * length). The bounds on f' and f''
        # fall with the base, so they are taken at the smallest base of a range.
        farthest_stop = begin + self.direction * LARGEST_PIECE
        steepness = self.sums.steepness(min(begin, farthest_stop))
        size_by_change = self.largest_change / (self.length * steepness)
        remaining = abs(end - begin)
        size = min(size_by_change, LARGEST_PIECE, remaining)
        is_last_piece = size == remaining
        stop = end if is_last_piece else begin + self.direction * size

        # 1. By the bound on f', a sum can become negative only if f < (steepness * h) * m. `scan`
        # finds the distances m below such a limit, which rises with m at a rate.
        inv_freq = self.sums.inv_freq(begin)
        distances = scan(
            inv_freq,
            self.sums.unrotated,
            start=start,
            stop=self.length,
            limit=0.0,
            rate=steepness * size,
        )
        self._adapt_next_piece(len(distances))
        if not len(distances):
            return stop, distances, np.empty(0)

        # 2. By f and f' at `begin`, and a bound M on |f''|, it can become negative only if
        # f - |f'| h - M h^2 / 2 < 0, up to the error of float32.
        curvature = self.sums.curvature(distances, min(begin, stop))  # M
        lowest = lower_bounds(self.sums, distances, begin, size, curvature)
        may_violate = lowest < self.sums.float32_margin
        distances = distances[may_violate]
        curvature = curvature[may_violate]

        # 3. for each of these, the ln b at which f becomes negative, which may be beyond the range
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
        """Return for each distance the first ln b at which its sum of cosines is negative.

        Bases grow or shrink from `begin` on, as `self.direction` (1 or -1) says. Let f be the sum
        at a distance as a function of ln b, f' its slope in this direction, and |f''| <= M. By
        Taylor's theorem, the sum is at least f + f' h - M h^2 / 2 when ln b has changed by h. Each
        step ends where this lower bound becomes zero, so no zero is skipped: at h = 1 for f = 2,
        f' = 0 and M = 4.

        Args:
            distances: The distances of the sums, float64 [n].
            curvature: M, a bound on |f''| of each, float64 [n].
            begin: The ln b at which the steps begin.
            end: The ln b at which the search ends.

        Returns:
            The ln b, float64 [n]; beyond `end` for a sum that stays positive up to there.
        """
        log_bases = np.full(len(distances), begin)  # that the steps have reached
        smallest_step = SMALLEST_STEP * max(begin, 1.0)  # above the rounding of ln b in float64

        open_sums = np.arange(len(distances))  # the indices of distances that are still searched
        while len(open_sums):
            value, slope = self.sums.taylor(distances[open_sums], log_bases[open_sums])
            slope = slope * self.direction  # f' in the direction of the steps

            # Found where the sum is negative, or where it is zero within the error of float64 and
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

    A base fits where no distance below the length has a negative sum of cosines. For 4,096 tokens
    and heads of 128 dimensions, the bases from 26,952 to 26,973 fit and are left out, since this is
    less than 0.1 %. The first wide interval has the bases 28,629 to 29,080.

    Bases are tried in steps of 0.5 %, so that one of them is in every interval that is 1 % wide.
    From a base that fits, the two ends of its interval are searched.

    Args:
        sums: Computes the sums of the head.
        length: In tokens.
        start: The ln b below which no base fits.

    Yields:
        The ln b at which an interval begins, and the ln b at which it ends, infinite for the last.
    """
    least_width = math.log1p(WIDTH)  # 1 %, in ln b
    sweep = Sweep(sums, length)
    walk_up = Walk(sums, length, direction=1)
    walk_down = Walk(sums, length, direction=-1)
    all_fit_from = surely_fitting_from(sums, length)

    log_base = start
    while True:
        # distances with a negative sum are witnesses against a base
        fits = log_base > all_fit_from or not len(sweep.find_witnesses(log_base))
        if not fits:
            log_base += least_width / 2
            continue

        # The begin of the interval is less than 0.5 % below, where the base before did not fit, or
        # the last interval ended. So it is enough to search 1 % downwards.
        lowest = max(0.0, start, log_base - least_width)
        begin, _ = walk_down.edge(log_base, lowest)
        # the end of the interval is where the sum of a distance turns negative
        end, distance = walk_up.edge(log_base, max(all_fit_from, log_base))

        if distance is None:  # every larger base fits
            yield begin, math.inf
            return
        if end - begin >= least_width:
            yield begin, end
        log_base = end + least_width / 2
