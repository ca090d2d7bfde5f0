"""Plots of evaluations: loss over the length, differences to the first row, retrieval by length and
depth.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from ..evaluate.cases import metric_of
from ..evaluate.result import Cell, Result, columns_of, headline, measures_of
from ..rope.lengths import format_tokens
from .plot_style import ORANGE, SMALL, Picture, ink, line, literal

if TYPE_CHECKING:
    from matplotlib.axes import Axes
MARKERS = "os^vDPX"
SHADES = "viridis"
BRIGHT = 0.179
"""The luminance from which black has more contrast than white."""
LINEAR = 0.1
"""Nats up to which the axis of differences is linear."""


@dataclass(frozen=True, eq=False)
class Curve:
    """Numbers of a row over lengths. x: tokens, rising. y: numbers. band: to each side of them, NaN
    for none.
    """

    x: NDArray[np.float64]
    y: NDArray[np.float64]
    band: NDArray[np.float64]


def losses(
    axes: Axes, curves: Mapping[str, Curve], trained: int, title: str, unit: str = ""
) -> None:
    """Draw numbers over the length with their bands. curves: by row, the first in grey. trained: in
    tokens.
    """
    _draw(axes, curves, trained, first=True)
    axes.set(title=literal(title), xlabel="length, tokens", ylabel=unit)
    axes.legend()


def differences(
    axes: Axes, curves: Mapping[str, Curve], trained: int, title: str, unit: str = ""
) -> None:
    """Draw differences to the first row over the length with their bands. curves: by row, without
    the first.

    The axis is linear near 0 and logarithmic beyond, since rows that fail are nats away, and others
    hundredths.
    """
    _draw(axes, curves, trained, first=False)
    axes.axhline(0, color=ink(), linewidth=0.8)
    if max(map(abs, axes.get_ylim())) > LINEAR:  # within, that scale has no ticks but its ends
        axes.set_yscale("symlog", linthresh=LINEAR, linscale=1.5)
    axes.yaxis.set_major_formatter(lambda value, _: f"{value:+.3g}" if value else "0")
    axes.set(title=literal(title), xlabel="length, tokens", ylabel=unit)
    axes.legend()


def _draw(axes: Axes, curves: Mapping[str, Curve], trained: int, first: bool) -> None:
    for number, (name, curve) in enumerate(curves.items(), 0 if first else 1):
        style = {"color": ink(), "linestyle": "-"} if number == 0 else line(number - 1)
        few = len(curve.x) <= 12
        marker = MARKERS[number % len(MARKERS)] if few else ""
        axes.plot(
            curve.x,
            curve.y,
            label=literal(name),
            marker=marker,
            markersize=3,
            linewidth=1.1,
            **style,
        )
        low = curve.y - curve.band
        high = curve.y + curve.band
        axes.fill_between(curve.x, low, high, color=style["color"], alpha=0.18, linewidth=0)
    axes.set_xscale("log", base=2)
    ticks = sorted({float(x) for curve in curves.values() for x in curve.x})
    if len(ticks) <= 12:
        axes.set_xticks(ticks)
    axes.xaxis.set_major_formatter(lambda value, _: format_tokens(round(value)))
    axes.axvline(trained, color=ORANGE, linewidth=0.9, linestyle=":")
    height, towards = (1, "top") if first else (0, "bottom")  # where rows that break are not
    axes.annotate(
        f"trained {format_tokens(trained)}",
        (trained, height),
        xycoords=("data", "axes fraction"),
        xytext=(2, 3 - 6 * height),
        textcoords="offset points",
        fontsize=SMALL,
        verticalalignment=towards,
        rotation=90,
    )


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


def curve(points: Iterable[tuple[float | None, ...]]) -> Curve:
    """A curve from its points as (tokens, number, band), of which the last two may be None."""
    numbers = np.array(
        [[np.nan if number is None else number for number in point] for point in points], np.float64
    )
    return Curve(*numbers.reshape(-1, 3).T)


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
