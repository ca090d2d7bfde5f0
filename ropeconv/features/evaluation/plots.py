"""Plots of evaluations: loss by length, differences to the first row, and retrieval by depth.

`evaluation_pictures` is the function to read first.
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
from ropeconv.views.plot_style import SMALL, Picture, escape_dollars

from .result import POSITION, Cell, Result, columns_of, main_metric, measures_of

if TYPE_CHECKING:
    from matplotlib.axes import Axes

COLOUR_MAP = "viridis"
LEAST_BRIGHT_LUMINANCE = 0.179
"""The luminance from which black has more contrast than white, by the ratio of WCAG 2."""


def heat_map(
    axes: Axes,
    shares: NDArray[np.float64],
    lengths: Sequence[int],
    depths: Sequence[float],
    trained: int,
    title: str,
) -> None:
    """Draw the share of right answers by depth and length, brighter for more.

    Args:
        axes: The axes to draw on.
        shares: The shares from 0 to 1, [depths, lengths]; NaN where nothing was measured.
        lengths: The lengths in tokens, rising.
        depths: The depths, from 0 (the beginning of a text) to 1.
        trained: The trained context in tokens, which a line marks.
        title: The title.
    """
    axes.imshow(shares, vmin=0, vmax=1, cmap=COLOUR_MAP, aspect="auto", interpolation="nearest")

    # the number in each cell, in black or white, whichever has more contrast
    colours = axes.images[0].get_cmap()
    for row, column in np.argwhere(~np.isnan(shares)):
        share = shares[row, column]
        is_bright = luminance(colours(share)) > LEAST_BRIGHT_LUMINANCE
        axes.annotate(
            f"{100 * share:.0f}",
            (column, row),
            color="black" if is_bright else "white",
            fontsize=SMALL,
            horizontalalignment="center",
            verticalalignment="center",
        )

    axes.set_xticks(range(len(lengths)), [format_tokens(length) for length in lengths])
    axes.set_yticks(range(len(depths)), [f"{100 * depth:.0f} %" for depth in depths])
    axes.set(title=escape_dollars(title), xlabel="length, tokens", ylabel="depth")
    axes.grid(False)

    # a line between the last length within the trained context and the first one beyond it
    inside = sum(length <= trained for length in lengths)
    if 0 < inside < len(lengths):
        # white with black dots, which is seen on dark and on bright cells
        axes.axvline(inside - 0.5, color="white", linewidth=1.5, linestyle="-")
        axes.axvline(inside - 0.5, color="black", linewidth=1.5, linestyle=":")


def luminance(colour: Sequence[float]) -> float:
    """Return the relative luminance of a colour.

    As in WCAG 2, https://www.w3.org/TR/WCAG22/#dfn-relative-luminance.

    Args:
        colour: Red, green and blue, from 0 to 1; further values are not read.
    """
    linear = []
    for channel in colour[:3]:
        # undo the transfer function of sRGB, which is a line near black and a power above
        if channel <= 0.04045:
            linear.append(channel / 12.92)
        else:
            linear.append(((channel + 0.055) / 1.055) ** 2.4)
    red, green, blue = linear
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


TITLES = {
    "growth": "Loss by length",
    "position": "Loss by position",
    "sliding": "Loss with a sliding window",
    "longppl": "Loss of tokens that need a long context",
    "passkey": "Passkey found",
    "niah": "Needle found",
}
CURVES_CAPTION = "{Better} is better. Bands show one standard error."
DIFFERENCES_CAPTION = (
    "{Side} 0, a row is better than {first}. Bands show 99.7 % intervals; beyond 0.1 the axis is"
    " logarithmic."
)
CAPTION_OF_DOTTED_LINE = " The dotted line marks the trained context."
HEAT_MAP_CAPTION = (
    "Right answers in %, by length and by depth from the beginning (0 %) to the end of the text."
    " Brighter is better."
)


def evaluation_pictures(result: Result) -> list[Picture]:
    """Return the pictures of a result, by measure.

    A measure with depths has a heat map for each row. Any other has curves of its numbers, and of
    their differences to the first row.
    """
    pictures = []
    for measure in measures_of(result):
        metric = main_metric(result, measure)
        cells = [cell for cell in result.cells if cell.measure == measure and cell.metric == metric]
        if any(cell.depth is not None for cell in cells):
            pictures += _heat_maps(result, measure, cells)
        else:
            pictures += _curves(result, measure, cells)
    return pictures


def _curves(result: Result, measure: str, cells: list[Cell]) -> list[Picture]:
    """Return the numbers of a measure by column, and their differences to the first row."""
    by_row = _by_row(result, cells)
    level = _level_picture(result, measure, by_row)
    if len(by_row) == 1:
        return [level]
    difference = _difference_picture(result, measure, by_row)
    if measure == POSITION:  # a text has easy places, so only the difference says something
        return [difference]
    return [level, difference]


def _level_picture(result: Result, measure: str, by_row: dict[str, list[Cell]]) -> Picture:
    """Return a picture with a curve for each row, such as yarn:4, and a band of its error.

    Args:
        result: The evaluation.
        measure: The kind of test, such as "growth" (the loss at several lengths).
        by_row: The points of each curve, one for each length or position.
    """
    curves = {}
    for row, cells in by_row.items():
        points = [(cell.column, cell.value, cell.error) for cell in cells]
        curves[row] = curve(points)

    metric_name = main_metric(result, measure)  # such as "loss", or "accuracy" of a passkey
    metric = metric_of(metric_name)
    more_is_better = metric.rising
    better = "Higher" if more_is_better else "Lower"
    caption = CURVES_CAPTION.format(Better=better) + CAPTION_OF_DOTTED_LINE
    draw = partial(
        losses,
        curves=curves,
        trained=result.trained,
        title=TITLES.get(measure, measure),
        unit=metric.title,
    )
    return Picture(draw, caption)


def _difference_picture(result: Result, measure: str, by_row: dict[str, list[Cell]]) -> Picture:
    """Return a picture with a curve for each row: its numbers minus those of the first row.

    Args:
        result: The evaluation.
        measure: The kind of test, such as "growth" (the loss at several lengths).
        by_row: The cells of each row, such as yarn:4, one for each length or position.
    """
    first, *others = by_row
    curves = {}
    for row in others:
        points = []
        for cell in by_row[row]:
            if cell.difference is not None:  # None where the first row was not measured
                points.append((cell.column, cell.difference, cell.margin))
        curves[row] = curve(points)

    # "Above 0, a row is better than base" for right answers, "Below 0, ..." for a loss
    metric_name = main_metric(result, measure)
    metric = metric_of(metric_name)
    more_is_better = metric.rising
    side = "Above" if more_is_better else "Below"
    caption = DIFFERENCES_CAPTION.format(Side=side, first=first) + CAPTION_OF_DOTTED_LINE
    draw = partial(
        differences,
        curves=curves,
        trained=result.trained,
        title=f"{TITLES.get(measure, measure)}, compared with {first}",
        unit=metric.unit,
    )
    return Picture(draw, caption)


def _by_row(result: Result, cells: list[Cell]) -> dict[str, list[Cell]]:
    """Cells of each row that has some, in the order of the table and by column."""
    ordered = sorted(cells, key=lambda cell: cell.column)
    by_row = {}
    for row in result.rows:
        of_row = [cell for cell in ordered if cell.row == row.name]
        if of_row:
            by_row[row.name] = of_row
    return by_row


def _heat_maps(result: Result, measure: str, cells: list[Cell]) -> list[Picture]:
    """Return a heat map for each row, such as yarn:4: its right answers by depth and length.

    Args:
        result: The evaluation.
        measure: The measure, such as passkey.
        cells: Its means, for each row, length and depth, and over all depths.
    """
    lengths = columns_of(result, measure)
    depths = sorted({cell.depth for cell in cells if cell.depth is not None})
    pictures = []
    for row, row_cells in _by_row(result, cells).items():
        # shares of right answers, [depths, lengths]; NaN where nothing was measured
        shares = np.full((len(depths), len(lengths)), np.nan)
        for cell in row_cells:
            if cell.depth is not None:  # others are means over all depths
                shares[depths.index(cell.depth), lengths.index(cell.column)] = cell.value
        draw = partial(
            heat_map,
            shares=shares,
            lengths=lengths,
            depths=depths,
            trained=result.trained,
            title=f"{TITLES.get(measure, measure)}: {row}",
        )
        pictures.append(Picture(draw, HEAT_MAP_CAPTION))
    return pictures
