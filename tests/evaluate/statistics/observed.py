"""Observations made of arrays, for tests."""

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
    return [
        Observation(measure, metric, column, document, window, float(value))
        for document, row in enumerate(np.atleast_2d(np.asarray(values, float)))
        for window, value in enumerate(row)
    ]


def summary(rows: Mapping[str, list[Observation]], trained: int = 1024, **outcome: object) -> Summary:
    """The summary of rows by name."""
    lengths = sorted({one.column for found in rows.values() for one in found} | {trained})
    asked = Asked(tuple(lengths), trained)
    return summarise(Outcome(dict(rows), **outcome), [Row(name) for name in rows], asked)
