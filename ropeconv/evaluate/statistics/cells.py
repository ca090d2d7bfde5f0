"""The cells of the table, from observations."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from ..case import Observation
from ..metric import metric_of
from ..result import Cell
from .sample import Pairs, Sample, differences, sample_of
from .shares import difference_error, effective_count, share_error, wilson

Key = tuple[str, str, int, float | None]
"""Measure, metric, column, and depth; None for the mean over depths."""


@dataclass(frozen=True)
class Summarised:
    """A cell, and the degrees of freedom of the error of its difference."""

    cell: Cell
    freedom: float


def cells_of(
    row: str, found: Sequence[Observation], first: Sequence[Observation] | None, seed: int
) -> list[Summarised]:
    """The cells of a row, over all depths and for each.

    row: its name. found: its observations. first: those of the first row; None in that row. seed: of the bootstrap.
    """
    theirs = _by_key(first or [])
    return [_cell(row, key, own, theirs.get(key, {}), seed) for key, own in _by_key(found).items()]


def _by_key(found: Sequence[Observation]) -> dict[Key, dict[tuple[object, ...], Observation]]:
    """Observations by the cells that they belong to, in the order of columns."""
    cells: dict[Key, dict[tuple[object, ...], Observation]] = {}
    for one in found:
        for depth in dict.fromkeys((None, one.depth)):
            cells.setdefault((one.measure, one.metric, one.column, depth), {})[one.pair] = one
    order = list(dict.fromkeys(key[:2] for key in cells))
    return dict(sorted(cells.items(), key=lambda item: (order.index(item[0][:2]), item[0][2], item[0][3] or -1.0)))


def _cell(row: str, key: Key, own: Pairs, first: Pairs, seed: int) -> Summarised:
    measure, metric, column, depth = key
    sample = sample_of(list(own.values()), seed)
    paired = differences(own, first, seed)
    share = metric_of(metric).share
    low, high = wilson(sample.mean, effective_count(sample)) if share else (None, None)
    spread: Callable[[Sample], float | None] = difference_error if share else lambda one: one.error
    cell = Cell(
        row=row, measure=measure, metric=metric, column=column, depth=depth, value=sample.mean,
        error=share_error(sample) if share else sample.error, low=low, high=high,
        windows=len(set(sample.windows.tolist())), documents=len(set(sample.documents.tolist())),
        difference=paired.mean if paired else None, difference_error=spread(paired) if paired else None,
    )  # fmt: skip
    return Summarised(cell, math.inf if share else (paired or sample).count - 1)
