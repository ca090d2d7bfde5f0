"""The effective length of every head: up to which distance its weighted sum B_w(m) is never negative.

The cosines of a distance are computed once for all heads, so that a product of matrices gives the sums.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ..errors import RecipeError
from ..lazy import np
from .reach import FARTHEST
from .sums import phases
from .variances import PairWeights

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from ..forms import Vector

ELEMENTS = 1 << 22
"""How many sums are computed at a time: 16 MB in float32."""


@dataclass(frozen=True)
class HeadReach:
    """At which distances below `length` the sums of some heads are negative. All in tokens.

    first_violation: the smallest such distance of each head, 0 where there is none, int64 [heads]. count: how many
    there are, int64 [heads].
    """

    length: int
    first_violation: NDArray[np.int64]
    count: NDArray[np.int64]

    @property
    def effective_lengths(self) -> list[int | None]:
        """One less than the first violation, for each head; None where there is none below `length`."""
        return [int(first) - 1 if first else None for first in self.first_violation]

    @property
    def violating(self) -> int:
        """Number of heads with a violation."""
        return int((self.first_violation > 0).sum())


def weighted_sums(inv_freq: Vector, weights: PairWeights, heads: NDArray[Any], distances: NDArray[Any]) -> Vector:
    """B_w(m) for pairs (head, m), in float64 [n].

    inv_freq: radians per token, float64 [rotary_dim / 2]. weights: of all heads. heads: which of them, int64 [n].
    distances: in tokens, [n].
    """
    cosines = np.cos(np.multiply.outer(distances, inv_freq))
    return np.asarray((cosines * weights.rotated[heads]).sum(axis=1) + weights.unrotated[heads])


def head_reach(
    inv_freq: Vector, weights: PairWeights, length: int, advance: Callable[[int], None] = lambda done: None
) -> HeadReach:
    """Counts the distances 1 <= m < length at which B_w is negative, for every head.

    inv_freq: radians per token, float64 [rotary_dim / 2]. weights: of the heads. length: in tokens. advance: called
    with the number of distances done since the last call. Sums in float32 decide unless they are within their own error
    of zero; float64 decides the others. Raises RecipeError for a length beyond 2^27.
    """
    if length > FARTHEST:
        raise RecipeError(f"distances are looked at up to {FARTHEST} tokens, and {length} is more; choose fewer")
    heads = len(weights.rotated)
    columns = np.ascontiguousarray(weights.rotated.T, dtype=np.float32)
    unrotated = weights.unrotated.astype(np.float32)
    total = weights.rotated.sum(axis=1) + weights.unrotated
    # an angle and its cosine are off by 3e-7, and each of r/2 additions by 6e-8 of the sum; all zeros are exact
    slack = np.where(total > 0, total * (1e-6 + 1e-7 * len(inv_freq)), -1).astype(np.float32)
    first, count = np.zeros(heads, np.int64), np.zeros(heads, np.int64)
    size = max(16, ELEMENTS // heads)
    for start in range(1, length, size):
        distances = np.arange(start, min(start + size, length))
        value = np.cos(phases(distances, inv_freq)) @ columns + unrotated
        negative = value < 0
        at, head = np.nonzero(np.abs(value) <= slack)
        if len(at):
            negative[at, head] = weighted_sums(inv_freq, weights, head, distances[at]) < 0
        found = negative.any(axis=0)
        fresh = found & (first == 0)
        first[fresh] = start + negative[:, fresh].argmax(axis=0)
        count += negative.sum(axis=0)
        advance(len(distances))
    return HeadReach(length, first, count)
