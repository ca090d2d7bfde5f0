"""The effective length of a frequency vector: L_theta = sup{L : B(m) >= 0 for every m <= L}.

B(m) = (d - r)/2 + sum_i cos(m theta_i). Men et al. 2024, https://arxiv.org/abs/2405.14591; Su 2024,
https://kexue.fm/archives/10122. Where B is negative, a key like the query counts for less, on average, than a random
one at that distance.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from ..errors import RecipeError
from ..lazy import np
from .sums import CHUNK, Blocks, Distances, exact_value, float64_error, rough, starts, values

if TYPE_CHECKING:
    from ..forms import Vector

FARTHEST = 1 << 27
SEARCHED = 1 << 24
MOST_COUNTED = 1 << 31
"""Distances times pairs that are looked at without being asked for: 2^24 tokens for heads of 256 dimensions."""
SHOWN = 100


def violations(inv_freq: Vector, unrotated: float, length: int) -> Iterator[Distances]:
    """Every distance 1 <= m < length with B(m) < 0, in rising order, as arrays of int64.

    inv_freq: radians per token, float64 [rotary_dim / 2], taken as exact. unrotated: (d - r)/2.
    """
    if unrotated >= len(inv_freq):
        return
    blocks, error = Blocks(inv_freq, unrotated), float64_error(len(inv_freq), length)
    for first in starts(1, length):
        value = (blocks.rotated(first) + np.float32(unrotated)).reshape(-1)[: length - first[0]]
        negative = value < -blocks.slack
        unclear = np.flatnonzero(np.abs(value) <= blocks.slack)
        surer = values(inv_freq, unrotated, first[0] + unclear)
        for one in np.flatnonzero(np.abs(surer) < error):
            surer[one] = float(exact_value(inv_freq, unrotated, int(first[0] + unclear[one])))
        negative[unclear] = surer < 0
        yield first[0] + np.flatnonzero(negative)


def first_violation(inv_freq: Vector, unrotated: float, length: int) -> int | None:
    """The smallest distance 1 <= m < length with B(m) < 0, or None; the parameters are those of `violations`."""
    return next((int(found[0]) for found in violations(inv_freq, unrotated, length) if len(found)), None)


def margins(inv_freq: Vector, unrotated: float, length: int, points: int) -> tuple[Vector, Vector]:
    """The smallest B(m) in each of some intervals of the distances 1 .. length - 1, to 1e-4.

    inv_freq: radians per token, float64 [rotary_dim / 2]. unrotated: (d - r)/2, the term of the dimensions that do not
    rotate. length: in tokens. points: number of intervals, of equal width in ln m; those that hold no distance are left
    out. Returns the distances m and the values B(m), both float64 [at most points].
    """
    ends = np.unique(np.geomspace(1, length, points + 1).round().astype(np.int64))
    at, lowest = [], []
    for start, stop in pairwise(ends):
        best = (0.0, np.inf)
        for first in range(int(start), int(stop), CHUNK):
            distances = np.arange(first, min(first + CHUNK, int(stop)))
            value = rough(inv_freq, unrotated, distances)
            low = int(value.argmin())
            best = min(best, (float(distances[low]), float(value[low])), key=lambda one: one[1])
        at.append(best[0])
        lowest.append(best[1])
    return np.array(at), np.array(lowest)


@dataclass(frozen=True)
class Reach:
    """At which distances B(m) of a schedule is negative. All lengths and distances are in tokens.

    length: `count` and `runs` are over the distances below it. searched: distances below it were searched for the first
    violation. first_violation: the smallest distance with B < 0, None where none was found. count: number of distances
    with B < 0. runs: number of intervals that they form. places: the first hundred of these, as (first, last).
    automatic: whether no frequencies can violate, since half of the head or more does not rotate.
    """

    length: int
    searched: int
    first_violation: int | None
    count: int
    runs: int
    places: tuple[tuple[int, int], ...]
    automatic: bool

    @property
    def effective_length(self) -> int | None:
        """L_theta in tokens, one less than the first violation; None where no violation was found."""
        return None if self.first_violation is None else self.first_violation - 1

    def to_dict(self) -> dict[str, Any]:
        """The fields as JSON-ready data, with the effective length; keys stay within a schema."""
        return {
            "effective_length": self.effective_length,
            "first_violation": self.first_violation,
            "searched": self.searched,
            "automatic": self.automatic,
            "violations": {
                "below": self.length,
                "count": self.count,
                "runs": self.runs,
                "places": [list(place) for place in self.places],
            },
        }


def reach(inv_freq: Vector, unrotated: float, length: int) -> Reach:
    """Counts the violations of a schedule below a length, and where there is none searches on up to 2^24 tokens.

    For heads of more than 256 dimensions it searches on to fewer, in proportion.

    inv_freq: radians per token, float64 [rotary_dim / 2]. unrotated: (d - r)/2. length: in tokens. Raises RecipeError
    for a length beyond 2^27.
    """
    if length > FARTHEST:
        raise RecipeError(f"distances are looked at up to {FARTHEST} tokens, and {length} is more; choose fewer")
    count, runs, last = 0, 0, -1
    places: list[tuple[int, int]] = []
    for found in violations(inv_freq, unrotated, length):
        if not len(found):
            continue
        begins = np.flatnonzero(np.diff(found, prepend=last) > 1)
        ends = np.append(begins, len(found))[1:] - 1
        joined = len(found) if not len(begins) else int(begins[0])
        if joined and len(places) == runs:
            places[-1] = (places[-1][0], int(found[joined - 1]))
        new = [(int(found[a]), int(found[b])) for a, b in zip(begins[:SHOWN], ends[:SHOWN], strict=True)]
        places += new if len(places) == runs else []
        count, runs, last = count + len(found), runs + len(begins), int(found[-1])
    first, searched = (places[0][0] if places else None), length
    farther = min(SEARCHED, MOST_COUNTED // len(inv_freq))
    if first is None and length < farther:
        first, searched = first_violation(inv_freq, unrotated, farther), farther
    return Reach(length, searched, first, count, runs, tuple(places[:SHOWN]), unrotated >= len(inv_freq))
