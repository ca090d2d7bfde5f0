"""Plots of evaluations: loss over the length, differences to the first row, retrieval by length and
depth.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from ropeconv.inspection.receipts.metrics import metric_of
from ropeconv.rope.lengths import format_tokens
from ropeconv.views.curves import curve, differences, losses
from ropeconv.views.plot_style import SMALL, Picture, literal

from .result import Cell, Result, columns_of, headline, measures_of

if TYPE_CHECKING:
    from matplotlib.axes import Axes
SHADES = "viridis"
BRIGHT = 0.179
"""The luminance from which black has more contrast than white."""


def heat_map(
    axes: Axes,
    shares: NDArray[np.float64],
    lengths: Sequence[int],
    depths: Sequence[float],
    trained: int,
    title: str,
) -> None:
    """Draw the share of right answers by depth and length, brighter for more.

    shares: from 0 to 1, [depths, lengths]; NaN where nothing was measured. depths: from 0, the
    beginning, to 1. trained: context in tokens, marked by a line.
    """
    axes.imshow(shares, vmin=0, vmax=1, cmap=SHADES, aspect="auto", interpolation="nearest")
    colours = axes.images[0].get_cmap()
    for row, column in np.argwhere(~np.isnan(shares)):
        share = shares[row, column]
        axes.annotate(
            f"{100 * share:.0f}",
            (column, row),
            color="black" if luminance(colours(share)) > BRIGHT else "white",
            fontsize=SMALL,
            horizontalalignment="center",
            verticalalignment="center",
        )
    axes.set_xticks(range(len(lengths)), [format_tokens(length) for length in lengths])
    axes.set_yticks(range(len(depths)), [f"{100 * depth:.0f} %" for depth in depths])
    inside = sum(length <= trained for length in lengths)
    if 0 < inside < len(lengths):
        for colour, dashes in (("white", "-"), ("black", ":")):  # seen on dark and on bright
            axes.axvline(inside - 0.5, color=colour, linewidth=1.5, linestyle=dashes)
    axes.set(title=literal(title), xlabel="length, tokens", ylabel="depth")
    axes.grid(False)


def luminance(colour: Sequence[float]) -> float:
    """The relative luminance of a colour as WCAG 2 defines it. colour: red, green and blue, from 0
    to 1.
    """
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in colour[:3]]
    return float(np.dot(linear, (0.2126, 0.7152, 0.0722)))


TITLES = {
    "growth": "Loss by length",
    "position": "Loss by position",
    "sliding": "Loss with a sliding window",
    "longppl": "Loss of tokens that need a long context",
    "passkey": "Passkey found",
    "niah": "Needle found",
}
LEVEL = "{Better} is better. Bands show one standard error."
APART = (
    "{Side} 0, a row is better than {first}. Bands show 99.7 % intervals; beyond 0.1 the axis is"
    " logarithmic."
)
TRAINED = " The dotted line marks the trained context."
SHARES = (
    "Right answers in %, by length and by depth from the beginning (0 %) to the end of the text."
    " Brighter is better."
)


def evaluation_pictures(result: Result) -> list[Picture]:
    """The pictures of a result, by measure."""
    return [picture for measure in measures_of(result) for picture in panels(result, measure)]


def panels(result: Result, measure: str) -> list[Picture]:
    """The pictures of a measure: heat maps where it has depths, otherwise curves and differences to
    the first row.
    """
    name = headline(result, measure)
    cells = [cell for cell in result.cells if (cell.measure, cell.metric) == (measure, name)]
    if any(cell.depth is not None for cell in cells):
        return _heat_maps(result, measure, cells)
    metric = metric_of(name)
    by_row = _by_row(result, cells)
    curves = {
        row: curve((cell.column, cell.value, cell.error) for cell in row_cells)
        for row, row_cells in by_row.items()
    }
    first = next(iter(curves))
    apart = {
        row: curve(
            (cell.column, cell.difference, cell.margin)
            for cell in row_cells
            if cell.difference is not None
        )
        for row, row_cells in by_row.items()
        if row != first
    }
    title = TITLES.get(measure, measure)
    better, side = ("Higher", "Above") if metric.rising else ("Lower", "Below")
    words = LEVEL.format(Better=better) + TRAINED
    draw = partial(losses, curves=curves, trained=result.trained, title=title, unit=metric.title)
    level = Picture(draw, words)
    shown: list[Picture] = []
    if measure != "position":  # a text has easy places, so only the difference says something
        shown.append(level)
    if apart:
        title = f"{title}, compared with {first}"
        draw = partial(
            differences, curves=apart, trained=result.trained, title=title, unit=metric.unit
        )
        shown.append(Picture(draw, APART.format(Side=side, first=first) + TRAINED))
    return shown or [level]


def _by_row(result: Result, cells: list[Cell]) -> dict[str, list[Cell]]:
    """Cells of each row that has some, in the order of the table and by column."""
    ordered = sorted(cells, key=lambda cell: cell.column)
    by_row = {row.name: [cell for cell in ordered if cell.row == row.name] for row in result.rows}
    return {row: row_cells for row, row_cells in by_row.items() if row_cells}


def _heat_maps(result: Result, measure: str, cells: list[Cell]) -> list[Picture]:
    """A panel per row."""
    lengths = columns_of(result, measure)
    depths = sorted({cell.depth for cell in cells if cell.depth is not None})
    place = partial(heat_map, lengths=lengths, depths=depths, trained=result.trained)
    shown: list[Picture] = []
    for row, row_cells in _by_row(result, cells).items():
        shares = np.full((len(depths), len(lengths)), np.nan)
        for cell in row_cells:
            if cell.depth is not None:
                shares[depths.index(cell.depth), lengths.index(cell.column)] = cell.value
        draw = partial(place, shares=shares, title=f"{TITLES.get(measure, measure)}: {row}")
        shown.append(Picture(draw, SHARES))
    return shown
