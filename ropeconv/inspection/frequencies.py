"""How two vectors of frequencies differ."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ..rope.forms import Vector
from ..runtimes.verdict import TOLERANCE


@dataclass(frozen=True)
class FrequencyDifference:
    """How far two vectors of frequencies of the same length are apart."""

    pairs: int
    """The number of frequencies."""

    differing: int
    """The number of those that differ by more than 1e-6, relatively."""

    largest_ratio: float | None
    """The largest of first / second and its inverse; None if one of them is 0."""

    largest_ratio_at: int
    """The index of that pair."""

    first: float
    """Its frequency in the first vector, in radians per token."""

    second: float
    """Its frequency in the second vector."""

    max_ulp: int
    """The largest distance of any pair in ulp of float32."""

    @property
    def same(self) -> bool:
        """Whether no pair differs by more than 1e-6."""
        return self.differing == 0


def compare_frequencies(first: Vector, second: Vector) -> FrequencyDifference | None:
    """Compare two vectors, float64 [rotary_dim / 2] in radians per token.

    Returns:
        Their difference; None if their lengths differ.
    """
    if first.shape != second.shape:
        return None
    # larger / smaller of each pair: infinite where only one of the two rotates, 1 where neither
    # does
    larger = np.maximum(first, second)
    smaller = np.minimum(first, second)
    with np.errstate(divide="ignore", invalid="ignore"):
        ratio = np.where(larger == smaller, 1.0, larger / smaller)
    worst = int(ratio.argmax())
    largest_ratio = None
    if np.isfinite(ratio[worst]):
        largest_ratio = float(ratio[worst])

    # in ulp: how many float32 lie between the two
    distances = np.abs(_places(first) - _places(second))
    return FrequencyDifference(
        pairs=len(first),
        differing=int((larger - smaller > TOLERANCE * smaller).sum()),
        largest_ratio=largest_ratio,
        largest_ratio_at=worst,
        first=float(first[worst]),
        second=float(second[worst]),
        max_ulp=int(distances.max(initial=0)),
    )


def _places(vector: Vector) -> NDArray[np.int64]:
    """Return the places of frequencies among all float32 of one sign: neighbours are 1 apart."""
    # the bits of a positive float32, read as a whole number, rise with it
    return vector.astype(np.float32).view(np.int32).astype(np.int64)
