"""The pictures of a result: growth, its differences, differences by position, and retrieval by depth."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from ...pictures.evaluation import Curve, differences, heat_map, losses
from ...pictures.page import Picture
from ...pictures.style import figure as drawn
from ..metric import metric_of
from ..result import Cell, Result
from ..tables import columns_of, headline, measures_of

if TYPE_CHECKING:
    from matplotlib.figure import Figure

ACROSS = 2
"""Panels in a row."""
LEVEL = "Over the length in tokens, {better} is better; bands are one standard error."
APART = "{Side} 0 a row is better than the first; bands are three standard errors. Beyond 0.1 the axis is logarithmic."
TRAINED = " The dotted line is the trained context."
SHARES = "By length in tokens and by depth, from the beginning (0 %) to the end; brighter is better."


def figure(result: Result) -> Figure:
    """A figure with all pictures of a result. Raises RopeconvError without matplotlib."""
    return drawn(*(one.draw for one in pictures(result)), columns=ACROSS)


def pictures(result: Result) -> list[Picture]:
    """The pictures of a result, those of one measure after the other, each with a sentence on it."""
    return [one for measure in measures_of(result) for one in panels(result, measure)]


def panels(result: Result, measure: str) -> list[Picture]:
    """What is drawn of a measure: heat maps where it has depths, else curves and their differences to the first row."""
    name = headline(result, measure)
    cells = [cell for cell in result.cells if (cell.measure, cell.metric) == (measure, name)]
    if any(cell.depth is not None for cell in cells):
        return _heat_maps(result, measure, cells)
    metric = metric_of(name)
    own = {row: _curve([c for c in found if c.depth is None]) for row, found in _by_row(result, cells).items()}
    first = next(iter(own))
    apart = {row: _difference(found) for row, found in _by_row(result, cells).items() if row != first}
    title = f"{measure}: {metric.title}"
    better, side = ("higher", "Above") if metric.rising else ("lower", "Below")
    words = LEVEL.format(better=better) + TRAINED
    level = Picture(partial(losses, curves=own, trained=result.trained, title=title), words)
    shown: list[Picture] = []
    if measure != "position":  # a text has easy places, so only the difference says something
        shown.append(level)
    if apart:
        title = f"{measure}: minus {first}, {metric.unit}".removesuffix(", ")
        shown.append(
            Picture(
                partial(differences, curves=apart, trained=result.trained, title=title),
                APART.format(Side=side) + TRAINED,
            )
        )
    return shown or [level]


def _by_row(result: Result, cells: list[Cell]) -> dict[str, list[Cell]]:
    """Cells of each row that has some, in the order of the table and by column."""
    ordered = sorted(cells, key=lambda cell: cell.column)
    found = {row.name: [cell for cell in ordered if cell.row == row.name] for row in result.rows}
    return {row: own for row, own in found.items() if own}


def _curve(cells: list[Cell]) -> Curve:
    return _arrays([(cell.column, cell.value, cell.error) for cell in cells])


def _difference(cells: list[Cell]) -> Curve:
    return _arrays([(c.column, c.difference, c.difference_error) for c in cells if c.difference is not None])


def _arrays(points: Sequence[tuple[float | None, ...]]) -> Curve:
    found = np.array([[np.nan if one is None else one for one in point] for point in points], np.float64)
    return Curve(*found.reshape(-1, 3).T)


def _heat_maps(result: Result, measure: str, cells: list[Cell]) -> list[Picture]:
    """A panel per row."""
    lengths = columns_of(result, measure)
    depths = sorted({cell.depth for cell in cells if cell.depth is not None})
    place = partial(heat_map, lengths=lengths, depths=depths, trained=result.trained)
    shown: list[Picture] = []
    for row, found in _by_row(result, cells).items():
        shares = np.full((len(depths), len(lengths)), np.nan)
        for cell in found:
            if cell.depth is not None:
                shares[depths.index(cell.depth), lengths.index(cell.column)] = cell.value
        draw = partial(place, shares=shares, title=f"{measure}: {row}, accuracy in %")
        shown.append(Picture(draw, SHARES))
    return shown
