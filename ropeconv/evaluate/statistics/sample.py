"""Sample: numbers with the documents and windows that they are from; its mean, and the error of that."""

from __future__ import annotations

import math
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from ..case import Observation

if TYPE_CHECKING:
    from numpy.typing import NDArray

FEWEST = 5
"""Groups with which an error between them can be given."""
RESAMPLES = 2000
Pairs = Mapping[tuple[Any, ...], Observation]


@dataclass(frozen=True, eq=False)
class Sample:
    """Numbers that are averaged.

    values, weights: float64 [n]. documents, windows: codes from 0 on of the text, and of the window in it, int [n].
    seed: of the bootstrap.
    """

    values: NDArray[np.float64]
    weights: NDArray[np.float64]
    documents: NDArray[np.int64]
    windows: NDArray[np.int64]
    seed: int = 0

    @property
    def mean(self) -> float:
        """The mean with the weights."""
        return float(np.average(self.values, weights=self.weights))

    @cached_property
    def by_document(self) -> bool:
        """Whether errors are between documents."""
        return bool(self.documents.max(initial=-1) + 1 >= FEWEST)

    @cached_property
    def units(self) -> NDArray[np.int64]:
        """Codes of what is taken as independent: documents, else windows, where these are enough; else all numbers."""
        if self.by_document:
            return self.documents
        enough = self.windows.max(initial=-1) + 1 >= FEWEST
        return self.windows if enough else np.arange(len(self.values), dtype=np.int64)

    @cached_property
    def count(self) -> int:
        """How many units there are."""
        return int(self.units.max(initial=-1)) + 1

    @cached_property
    def error(self) -> float | None:
        """The standard error of the mean; None for a single unit.

        Between documents by bootstrap, else from the squared deviations. Both with the factor n / (n - 1) on the
        variance, without which few units give too small an error.
        """
        if self.count < 2:
            return None
        total = np.bincount(self.units, self.weights)
        if self.by_document:
            drawn = resamples(self.count, self.seed)
            means = (drawn @ np.bincount(self.units, self.weights * self.values)) / (drawn @ total)
            spread = float(means.std())
        else:
            deviations = np.bincount(self.units, self.weights * (self.values - self.mean))
            spread = float(np.sqrt((deviations**2).sum()) / total.sum())
        return spread * math.sqrt(self.count / (self.count - 1))


@cache
def resamples(count: int, seed: int) -> NDArray[np.float64]:
    """How often each of `count` units is in each draw with replacement, float64 [RESAMPLES, count]. seed: of draws."""
    random = np.random.default_rng((seed, count))
    return random.multinomial(count, np.full(count, 1 / count), RESAMPLES).astype(np.float64)


def sample_of(found: Sequence[Observation], seed: int, values: Iterable[float] | None = None) -> Sample:
    """A sample of observations.

    found: at least one. seed: of the bootstrap. values: that take the place of the observations' own.
    """
    return Sample(
        np.array([one.value for one in found] if values is None else list(values), np.float64),
        np.array([one.weight for one in found], np.float64),
        _codes(one.document for one in found),
        _codes((one.document, one.window) for one in found),
        seed,
    )


def differences(of: Pairs, to: Pairs, seed: int) -> Sample | None:
    """A sample of the differences of numbers that are in both, by the same key; None where there is none.

    of, to: observations by what pairs them. seed: of the bootstrap.
    """
    common = [key for key in of if key in to]
    if not common:
        return None
    return sample_of([of[key] for key in common], seed, (of[key].value - to[key].value for key in common))


def _codes(names: Iterable[Hashable]) -> NDArray[np.int64]:
    known: dict[Hashable, int] = {}
    return np.array([known.setdefault(name, len(known)) for name in names], np.int64)
