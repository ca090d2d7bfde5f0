"""How two vectors of frequencies differ."""

from dataclasses import dataclass

import numpy as np

from ..rope.forms import Vector
from ..runtimes.verdict import TOLERANCE


@dataclass(frozen=True)
class FrequencyDifference:
    """Two vectors of frequencies of the same length.

    pairs: number of frequencies. differing: those that differ by more than 1e-6, relatively.
    largest_ratio: the largest of first / second and its inverse, None if one of them is 0.
    largest_ratio_at: the index of that pair. first, second: its frequencies, in radians per token.
    max_ulp: the largest distance of any pair in ulp of float32.
    """

    pairs: int
    differing: int
    largest_ratio: float | None
    largest_ratio_at: int
    first: float
    second: float
    max_ulp: int

    @property
    def same(self) -> bool:
        """Whether no pair differs by more than 1e-6."""
        return self.differing == 0


def compare_frequencies(first: Vector, second: Vector) -> FrequencyDifference | None:
    """Compare two vectors, float64 [rotary_dim / 2] in radians per token; None if their lengths
    differ.
    """
    if first.shape != second.shape:
        return None
    larger = np.maximum(first, second)
    smaller = np.minimum(first, second)
    with np.errstate(divide="ignore", invalid="ignore"):
        ratio = np.where(larger == smaller, 1.0, larger / smaller)
    at = int(ratio.argmax())
    left, right = (
        vector.astype(np.float32).view(np.int32).astype(np.int64) for vector in (first, second)
    )
    return FrequencyDifference(
        pairs=len(first),
        differing=int((larger - smaller > TOLERANCE * smaller).sum()),
        largest_ratio=float(ratio[at]) if np.isfinite(ratio[at]) else None,
        largest_ratio_at=at,
        first=float(first[at]),
        second=float(second[at]),
        max_ulp=int(np.abs(left - right).max(initial=0)),
    )
