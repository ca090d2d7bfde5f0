"""The effective length of a frequency vector: L_theta = sup{L : B(m) >= 0 for every m <= L}.

B(m) = (d - r)/2 + sum_i cos(m theta_i). Men et al. 2024, https://arxiv.org/abs/2405.14591; Su 2024,
https://kexue.fm/archives/10122. Here m is the distance of a key from the query in tokens, d the
dimensions of a head, r those of them that rotate, and theta_i (`inv_freq`) the radians per token of
pair i. Where B is negative, a key like the query counts for less, on average, than a random one at
that distance. Such a distance is called a violation.

With d = r = 128 and base 10,000, B(1707) = -0.5 is the first violation, so that the effective
length is 1,706 tokens.

`head_reach` gives the effective length of every head: up to which distance its weighted sum B_w(m)
is never negative. The cosines of a distance are computed once for all heads, so that a product of
matrices gives the sums.
"""

import math
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from ..errors import RecipeError, counted
from ..forms import Vector, count_zero
from ..schedule import Schedule
from ..spec import RopeSpec
from ..summary import Summary, SummaryTable
from .sums import (
    CHUNK,
    Blocks,
    Distances,
    PairWeights,
    block_starts,
    exact_value,
    float64_error,
    phases,
    sums_in_float32,
    sums_in_float64,
)

FARTHEST = 1 << 27
"""The largest length that is searched, in tokens."""
SEARCHED = 1 << 24
"""Up to here the first violation is looked for where a shorter length has none."""
MOST_COUNTED = 1 << 31
"""Distances times pairs that are searched by default: 2^24 tokens for heads of 256 dimensions."""
SHOWN = 100
"""How many intervals of distances with a negative sum are kept."""


def refuse_beyond(length: int) -> None:
    """Raise RecipeError for a length beyond 2^27 tokens."""
    if length > FARTHEST:
        raise RecipeError(
            f"the bound is computed up to {FARTHEST} tokens, and {length} is more; choose fewer"
        )


def violations(inv_freq: Vector, unrotated: float, length: int) -> Iterator[Distances]:
    """Yield every distance below a length at which the sum of cosines is negative.

    The sum is B(m) = (d - r)/2 + sum_i cos(m theta_i), for tokens m apart and a head of d
    dimensions of which r rotate. The distances come in rising order, in arrays of int64. All signs
    are exact: sums are computed in float32, and a sum too close to zero again in float64, and then
    in decimal arithmetic of 50 digits.

    Args:
        inv_freq: theta_i in radians per token, float64 [rotary_dim / 2], taken as exact.
        unrotated: (d - r)/2, the term of the dimensions that do not rotate; 0 where all rotate.
        length: In tokens.
    """
    # a pair of frequency 0 has the cosine 1 at every distance, so it is a part of the constant
    constant = unrotated + count_zero(inv_freq)
    rotating = inv_freq[inv_freq > 0]
    # the other cosines are at least -1 each, so with a large constant no sum is negative
    if constant >= len(rotating):
        return

    # bounds on the rounding error of a sum in float32 and in float64
    blocks = Blocks(rotating, constant)
    error_32 = blocks.largest_error
    error_64 = float64_error(len(rotating), length)
    # A block is 256 consecutive distances. Each round computes some consecutive blocks, which are
    # given by their first distances.
    for first_distances in block_starts(1, length):
        start = int(first_distances[0])
        sums = (blocks.cosine_sums(first_distances) + np.float32(constant)).reshape(-1)
        sums = sums[: length - start]  # the last block may end beyond the length
        is_negative = sums < -error_32

        # float64 decides where float32 cannot, and decimal arithmetic (`exact_value`) where float64
        # cannot
        unclear = np.flatnonzero(np.abs(sums) <= error_32)
        unclear_distances = start + unclear
        sums_64 = sums_in_float64(rotating, constant, unclear_distances)
        for index in np.flatnonzero(np.abs(sums_64) < error_64):
            distance = int(unclear_distances[index])
            sums_64[index] = float(exact_value(rotating, constant, distance))
        is_negative[unclear] = sums_64 < 0
        yield start + np.flatnonzero(is_negative)


def first_violation(inv_freq: Vector, unrotated: float, length: int) -> int | None:
    """The smallest distance 1 <= m < length with B(m) < 0, or None; see `violations`."""
    for distances in violations(inv_freq, unrotated, length):
        if len(distances):
            return int(distances[0])
    return None


def margins(inv_freq: Vector, unrotated: float, length: int, points: int) -> tuple[Vector, Vector]:
    """The smallest B(m) in each of some intervals of distances, for a plot.

    B(m) = (d - r)/2 + sum_i cos(m theta_i) for a head of d dimensions of which r rotate. The
    intervals divide the distances m from 1 to length - 1. The sums are computed in float32, which
    is within 1e-4.

    Args:
        inv_freq: Radians per token, float64 [rotary_dim / 2].
        unrotated: (d - r)/2, the term of the dimensions that do not rotate.
        length: In tokens.
        points: Number of intervals, of equal width in ln m; those without a distance are left out.

    Returns:
        For each interval the distance m with the smallest sum, and this sum B(m), both float64 [at
        most points].
    """
    borders = np.unique(np.geomspace(1, length, points + 1).round().astype(np.int64))
    lowest_at = []
    lowest_sums = []
    for start, stop in pairwise(borders):
        lowest_distance = 0.0
        lowest_sum = np.inf
        # some distances at a time, so that memory does not grow with the length
        for first in range(int(start), int(stop), CHUNK):
            distances = np.arange(first, min(first + CHUNK, int(stop)))
            sums = sums_in_float32(inv_freq, unrotated, distances)
            index = int(sums.argmin())
            if sums[index] < lowest_sum:
                lowest_distance = float(distances[index])
                lowest_sum = float(sums[index])
        lowest_at.append(lowest_distance)
        lowest_sums.append(lowest_sum)
    return np.array(lowest_at), np.array(lowest_sums)


@dataclass(frozen=True)
class Reach(Summary):
    """The distances at which B(m) of a schedule is negative. All lengths are in tokens."""

    length: int
    """`count` and `runs` are over the distances below it."""

    searched: int
    """Distances below it were searched for the first violation."""

    first_violation: int | None
    """The smallest distance with B < 0, None where none was found."""

    count: int
    """Number of distances with B < 0."""

    runs: int
    """Number of intervals that they form."""

    places: tuple[tuple[int, int], ...]
    """The first hundred of these, as (first, last)."""

    automatic: bool
    """Whether no frequencies can violate, since half of the head or more does not rotate."""

    @property
    def effective_length(self) -> int | None:
        """L_theta in tokens, one less than the first violation; None where none was found."""
        if self.first_violation is None:
            return None
        return self.first_violation - 1

    @property
    def sentence(self) -> str:
        """The effective length in words."""
        if self.automatic:
            return "No distance can have a negative sum: half of the head or more does not rotate."
        if self.effective_length is None:
            return f"The effective length is above {self.searched - 1:,} tokens."
        return f"The effective length is {self.effective_length:,} tokens."

    def summary(self) -> dict[str, str]:
        """The values that are shown, by name."""
        first = ""
        if self.first_violation is not None:
            first = f"{self.first_violation:,} tokens"
        return {
            "sentence": self.sentence,
            "first_violation": first,
            "searched": f"{self.searched:,} tokens",
            "count": f"{self.count:,} in {counted(self.runs, 'run')} below {self.length:,}",
        }

    def shown_tables(self) -> list[SummaryTable]:
        """The first intervals of distances with a negative sum."""
        rows = [(f"{first:,}", f"{last:,}") for first, last in self.places]
        return [SummaryTable("places", ("first distance", "last distance"), rows)]

    def to_dict(self) -> dict[str, object]:
        """Return the fields as JSON-ready data, with the effective length in tokens.

        A violation is a distance at which the sum of cosines is negative. A key is only renamed or
        removed with a new version of the schema.
        """
        return {
            "effective_length": self.effective_length,
            "first_violation": self.first_violation,
            # distances below it were searched for the first violation
            "searched": self.searched,
            # whether no violation is possible, since half of the head or more does not rotate
            "automatic": self.automatic,
            # how many distances below a length violate, and how many runs of neighbours they form;
            # the places are the first and the last distance of up to 100 runs
            "violations": {
                "below": self.length,
                "count": self.count,
                "runs": self.runs,
                "places": [list(first_and_last) for first_and_last in self.places],
            },
        }


@dataclass
class _Runs:
    """Runs of consecutive distances, counted while the distances come in ascending order."""

    distance_count: int = 0
    """The number of distances in all runs."""

    run_count: int = 0
    """The number of runs."""

    stored_runs: list[tuple[int, int]] = field(default_factory=list)
    """The first and the last distance of runs, at least of the first SHOWN."""

    last_distance: int = -1
    """The largest distance so far."""

    def add(self, distances: Distances) -> None:
        """Add further distances to the runs, which are intervals of consecutive distances.

        After the run 5 to 7, the distances 8, 9, 12, 13 continue this run to 9 and make a new run
        12 to 13. All runs are counted, and the ends of at least the first 100 (SHOWN) are stored.

        Args:
            distances: Rising, at least one, and larger than all distances before, int64 [n].
        """
        # where new runs begin: in the example at index 2, so the run before gets 2 distances
        has_gap_before = np.diff(distances, prepend=self.last_distance) > 1
        begins = np.flatnonzero(has_gap_before)
        continuing = int(begins[0]) if len(begins) else len(distances)

        all_runs_are_stored = len(self.stored_runs) == self.run_count
        if all_runs_are_stored:
            # continue the last run
            if continuing > 0:
                first, _ = self.stored_runs[-1]
                self.stored_runs[-1] = (first, int(distances[continuing - 1]))
            # add the new runs; each ends where the next one begins
            ends = np.append(begins[1:], len(distances))
            for begin, end in zip(begins[:SHOWN], ends, strict=False):
                self.stored_runs.append((int(distances[begin]), int(distances[end - 1])))

        self.distance_count += len(distances)
        self.run_count += len(begins)
        self.last_distance = int(distances[-1])


def reach(inv_freq: Vector, unrotated: float, length: int) -> Reach:
    """Return the effective length of some frequencies, and count their violations below a length.

    A violation is a distance m at which B(m) = (d - r)/2 + sum_i cos(m theta_i) is negative, for a
    head of d dimensions of which r rotate. The effective length ends before the first violation. If
    there is none below the length, the search continues up to 2^24 tokens (2^23 for a head of 512
    dimensions).

    Args:
        inv_freq: theta_i in radians per token, float64 [r/2].
        unrotated: (d - r)/2, half of the dimensions that do not rotate.
        length: In tokens.

    Raises:
        RecipeError: For a length beyond 2^27.
    """
    refuse_beyond(length)
    pairs_of_frequency_0 = count_zero(inv_freq)
    rotating_pairs = len(inv_freq) - pairs_of_frequency_0

    # all violations below the length, as runs of consecutive distances such as 1,707 to 1,711
    runs = _Runs()
    for distances in violations(inv_freq, unrotated, length):
        if len(distances):
            runs.add(distances)

    # the first violation, which may be beyond the length
    first = None
    searched = length
    most_searched = min(SEARCHED, MOST_COUNTED // max(1, rotating_pairs))  # 2^24 tokens, or fewer
    if runs.stored_runs:
        first, _ = runs.stored_runs[0]
    elif length < most_searched:
        first = first_violation(inv_freq, unrotated, most_searched)
        searched = most_searched

    # Violations may be impossible. The cosine of a rotating pair is at least -1, and that of a pair
    # of frequency 0 is always 1.
    smallest_possible_sum = unrotated + pairs_of_frequency_0 - rotating_pairs
    cannot_be_negative = smallest_possible_sum >= 0
    return Reach(
        length=length,
        searched=searched,
        first_violation=first,
        count=runs.distance_count,
        runs=runs.run_count,
        places=tuple(runs.stored_runs[:SHOWN]),
        automatic=cannot_be_negative,
    )


MOST_COSINES = 1 << 28
"""Distances times pairs that a warning may cost, some seconds.

4M tokens for heads of 128 dimensions. A config may declare any context, and `ropeconv bound`
searches further.
"""

REFERENCE = "Men et al. 2024, https://arxiv.org/abs/2405.14591"


def effective_length(schedule: Schedule, spec: RopeSpec, length: int | None = None) -> int | None:
    """Return the largest distance in tokens before the first one with a negative sum of cosines.

    The sum is (d - r)/2 + sum_i cos(m theta_i) at a distance of m tokens, for a head of d
    dimensions of which r rotate by the frequencies theta_i. For the base 10,000 and heads of 128
    dimensions, the sum is negative first at 1,707 tokens, so the effective length is 1,706.

    Args:
        schedule: The frequencies.
        spec: The model, for the dimensions of a head and for a sliding window.
        length: Distances below it are searched; by default the context, or the window where all
            layers have one. At most 2^27 tokens are searched, and 4M for heads of 128 dimensions.

    Returns:
        The distance; None where no negative sum was found.
    """
    if length is None:
        length = spec.visible(schedule.context)  # the context, or the window
    pairs = len(schedule.inv_freq)  # each has one cosine in a sum
    searched = min(length, FARTHEST, MOST_COSINES // pairs)
    first = first_violation(schedule.inv_freq, spec.unrotated, searched)
    if first is None:
        return None
    return first - 1


def source_reach(schedule: Schedule, source: RopeSpec) -> int | None:
    """The effective length of a source in tokens, as far as its layers see in output and source."""
    longest = max(schedule.context, source.context)
    return effective_length(source.current(), source, source.visible(longest))


def is_worse(reached: int | None, before: int | None, covered: int) -> bool:
    """Whether the effective length of an output is worse than that of its source.

    A shorter one is worse. An equal one is worse too if it was enough for the source: if a source
    with 4,096 tokens of context has the effective length 4,096, and the output with 16,384 tokens
    still has 4,096, the output does not cover its context any more.

    Args:
        reached: The effective length of the output in tokens; None where it has no end.
        before: The effective length of the source; None where it has no end.
        covered: The context of the source in tokens.
    """
    if reached is None:
        return False
    if before is None or reached < before:
        return True
    if reached > before:
        return False
    source_covered_its_context = before >= covered
    return source_covered_its_context


def worse_than_source(schedule: Schedule, source: RopeSpec) -> str:
    """Return a warning if the effective length of an output is worse than that of its source.

    The effective length is the distance in tokens up to which no sum of cosines is negative. The
    sentence begins "the effective length is 1,706 of 16,384 tokens; the source's is 2,048: ...". It
    is empty for an output that is not worse.

    Args:
        schedule: The frequencies and the context of the output.
        source: The RoPE of the source model.
    """
    # the effective lengths; None where no sum is negative in the whole context
    output_length = effective_length(schedule, source)
    source_length = source_reach(schedule, source)
    if output_length is None:
        return ""
    tokens_seen_in_source = source.visible(source.context)  # the context, or the sliding window
    if not is_worse(output_length, source_length, tokens_seen_in_source):
        return ""

    if source_length is None:
        of_source = f"covers {source.visible(schedule.context):,} tokens"
    elif output_length == source_length:
        # worse: this length covered the context of the source, and the output has a longer one
        of_source = f"is the same, for {source.context:,} tokens"
    else:
        of_source = f"is {source_length:,}"
    return (
        f"the effective length is {output_length:,} of {schedule.context:,} tokens; the source's"
        f" {of_source}: beyond it sum cos(m theta_i) is negative at some distances, and retrieval"
        f" can be lost ({REFERENCE})"
    )


ELEMENTS = 1 << 22
"""How many sums are computed at a time: 16 MB in float32."""


def head_reach(
    inv_freq: Vector,
    weights: PairWeights,
    length: int,
    advance: Callable[[int], None] = lambda done: None,
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return each head's first distance m < length with B_w(m) < 0, and how many there are.

    B_w(m) = sum_i w_i cos(m theta_i) + u is the sum B(m) in which each pair has the weight of that
    head, see `PairWeights`: a head whose queries hardly vary in a pair is hardly affected by it.

    Sums in float32 decide unless they are within their own error of zero; float64 decides the
    others.

    Args:
        inv_freq: Radians per token, float64 [rotary_dim / 2].
        weights: The weights of the heads.
        length: In tokens.
        advance: Called with the number of distances done since the last call.

    Returns:
        The smallest distances, 0 for none, and the numbers; both int64 [heads].

    Raises:
        RecipeError: For a length beyond 2^27.
    """
    refuse_beyond(length)
    heads = len(weights.rotated)
    weights_32 = np.ascontiguousarray(weights.rotated.T, dtype=np.float32)  # [pairs, heads]
    unrotated_32 = weights.unrotated.astype(np.float32)

    # The error of a sum in float32, [heads]: an angle and its cosine are off by 3e-7, and each of
    # r/2 additions by 6e-8 of the sum. Sums that are nearer to zero are unclear. A head whose
    # weights are all zero has the sum 0 exactly: with -1 in place of its error, none is unclear.
    total = weights.rotated.sum(axis=1) + weights.unrotated
    error = total * (1e-6 + 1e-7 * len(inv_freq))
    has_weights = total > 0
    error_32 = np.where(has_weights, error, -1).astype(np.float32)

    first_violations = np.zeros(heads, np.int64)
    counts = np.zeros(heads, np.int64)
    size = max(16, ELEMENTS // heads)
    for start in range(1, length, size):
        # sums are [distances, heads]: all heads share the cosines [distances, pairs]
        distances = np.arange(start, min(start + size, length))
        cosines = np.cos(phases(distances, inv_freq))
        sums = cosines @ weights_32 + unrotated_32
        is_negative = sums < 0

        # the unclear sums again in float64, [unclear sums]; each is that of a distance and a head,
        # by their indices
        at_distance, at_head = np.nonzero(np.abs(sums) <= error_32)
        if len(at_distance):
            cosines_64 = np.cos(np.multiply.outer(distances[at_distance], inv_freq))
            weighted = cosines_64 * weights.rotated[at_head]
            sums_64 = weighted.sum(axis=1) + weights.unrotated[at_head]
            is_negative[at_distance, at_head] = sums_64 < 0

        # heads that have their first violation among these distances; argmax finds the first True
        has_first = is_negative.any(axis=0) & (first_violations == 0)
        first_violations[has_first] = start + is_negative[:, has_first].argmax(axis=0)
        counts += is_negative.sum(axis=0)
        advance(len(distances))
    return first_violations, counts


@dataclass(frozen=True)
class Profile:
    """Numbers about a schedule at its context, compared with the theta_i and length L of training.

    Distances are those that the layers see, where all have a window or chunk.
    """

    reach: Reach
    """Where B(m) is negative."""

    critical_dimension: int
    """Number of dimensions whose pairs complete a period within L, and so have seen every angle."""

    outside: int
    """Number of the other dimensions that see larger angles than in training.

    The largest angle is context x inv_freq_i, and that of training L x theta_i.
    """

    largest_change: float
    """The largest of theta_i / inv_freq_i and its inverse over all pairs that rotate in both."""

    largest_change_at: int | None
    """The index of that pair, None where none does."""

    fast_change: float
    """The largest change among pairs that complete a period: these tell near tokens apart."""

    not_rotating: int
    """Number of pairs whose frequency is 0, which count in none of the changes."""

    def to_dict(self) -> dict[str, object]:
        """The fields as JSON-ready data, those of `reach` among them; keys stay within a schema."""
        numbers = asdict(self)
        del numbers["reach"]
        return self.reach.to_dict() | numbers


ROUNDING = 1e-9
"""By how much an angle may be above another one, relatively, and still be the same."""


def profile(schedule: Schedule, spec: RopeSpec) -> Profile:
    """Compare the frequencies of an extended model, and the angles they give, with training.

    The largest angle of a pair is the longest distance between two tokens times the frequency of
    the pair. If it was a whole rotation or more in training, the pair has seen every angle.

    Args:
        schedule: The frequencies and the context of the extended model.
        spec: The model as it was trained. A model with a scaling was trained with it at its whole
            context.
    """
    inv_freq = schedule.inv_freq
    trained_inv_freq = spec.current().inv_freq

    # the longest distance between two tokens: the context, or a sliding window of all layers
    trained_context = spec.context if spec.scaled else schedule.original_context
    longest = spec.visible(schedule.context)
    trained_longest = spec.visible(trained_context)

    # the pairs that saw every angle in training, and those that now get angles beyond training
    largest_angle = longest * inv_freq
    trained_angle = trained_longest * trained_inv_freq
    saw_all_angles = trained_angle >= math.tau
    gets_new_angles = ~saw_all_angles & (largest_angle > trained_angle * (1 + ROUNDING))

    # how many times slower or faster each pair is than in training; 1 for pairs that do not rotate
    rotates = (inv_freq > 0) & (trained_inv_freq > 0)
    ratio = np.divide(trained_inv_freq, inv_freq, out=np.ones(len(inv_freq)), where=rotates)
    change = np.maximum(ratio, 1 / ratio)
    largest_change_at = None
    if rotates.any():
        largest_change_at = int(np.where(rotates, change, 0.0).argmax())
    # the largest change of the fast pairs, which saw every angle and tell near tokens apart
    fast_change = float(change[saw_all_angles].max(initial=1.0))

    # Negative sums of cosines are counted below this length. MOST_COUNTED is a limit on the number
    # of cosines: it allows 2^24 tokens for heads of 256 dimensions, and fewer for larger heads.
    counted_length = min(longest, FARTHEST, MOST_COUNTED // len(inv_freq))
    return Profile(
        reach=reach(inv_freq, spec.unrotated, counted_length),
        # a pair has two dimensions
        critical_dimension=2 * int(saw_all_angles.sum()),
        outside=2 * int(gets_new_angles.sum()),
        largest_change=float(change.max()),
        largest_change_at=largest_change_at,
        fast_change=fast_change,
        not_rotating=int((inv_freq == 0).sum()),
    )
