"""Observations made of arrays, and their summary."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from numpy.typing import ArrayLike

from ropeconv.evaluate.asked import Asked
from ropeconv.evaluate.case import Observation
from ropeconv.evaluate.outcome import Outcome
from ropeconv.evaluate.row import Row
from ropeconv.evaluate.statistics import Summary, summarise


def observed(values: ArrayLike, column: int = 1024, measure: str = "growth", metric: str = "loss") -> list[Observation]:
    """One observation per document and window. values: [documents, windows], or [windows] of one document."""
    rows = enumerate(np.atleast_2d(np.asarray(values, float)))
    return [
        Observation(measure, metric, column, n, window, float(v)) for n, row in rows for window, v in enumerate(row)
    ]


def by_depth(values: Mapping[float, list[float]], metric: str = "accuracy") -> list[Observation]:
    """Observations of passkey in one document: by depth, the value of each window."""
    return [
        Observation("passkey", metric, 2048, 0, window, value, depth, weight=5)
        for depth, row in values.items()
        for window, value in enumerate(row)
    ]


def summary(rows: Mapping[str, list[Observation]], trained: int = 1024, **outcome: object) -> Summary:
    """The summary of rows by name."""
    lengths = sorted({one.column for found in rows.values() for one in found} | {trained})
    return summarise(Outcome(dict(rows), **outcome), [Row(name) for name in rows], Asked(tuple(lengths), trained))
