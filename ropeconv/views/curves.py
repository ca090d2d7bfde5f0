"""Curves of numbers over the length, with bands for their errors.

`losses` draws the numbers of rows, `differences` how far they are from those of the first row.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from ..rope.lengths import format_tokens
from .plot_style import ORANGE, SMALL, curve_style, escape_dollars, text_colour

if TYPE_CHECKING:
    from matplotlib.axes import Axes

MARKERS = "os^vDPX"
"""The marker of each curve at its points."""
FEW_POINTS = 12
"""Points up to which a curve has markers, and the axis a tick for each length."""
LINEAR_NATS = 0.1
"""Nats up to which the axis of differences is linear."""


@dataclass(frozen=True, eq=False)
class Curve:
    """Numbers of a row over lengths, all float64 [points]."""

    x: NDArray[np.float64]
    """Lengths in tokens, rising."""

    y: NDArray[np.float64]
    """The numbers."""

    band: NDArray[np.float64]
    """The error to each side of a number; NaN for none."""


def losses(
    axes: Axes, curves: Mapping[str, Curve], trained: int, title: str, unit: str = ""
) -> None:
    """Draw the loss of each row (a method) over the length, with a band for its error.

    Args:
        axes: Where they are drawn.
        curves: The numbers by row; the first one is grey.
        trained: The trained context in tokens, which is marked.
        title: The title of the plot.
        unit: The title of its axis of numbers.
    """
    for number, (name, curve) in enumerate(curves.items()):
        _draw_curve(axes, number, name, curve)
    _set_lengths(axes, curves.values())
    _mark_trained(axes, trained, at_top=True)
    axes.set(title=escape_dollars(title), xlabel="length, tokens", ylabel=unit)
    axes.legend()


def differences(
    axes: Axes, curves: Mapping[str, Curve], trained: int, title: str, unit: str = ""
) -> None:
    """Draw the difference of each row to the first one over the length, with a band for its error.

    Args:
        axes: Where they are drawn.
        curves: The differences by row, without the first row.
        trained: The trained context in tokens, which is marked.
        title: The title of the plot.
        unit: The title of its axis of numbers.
    """
    # the first row has the number 0 and its own colour, so that these begin with 1
    for number, (name, curve) in enumerate(curves.items(), 1):
        _draw_curve(axes, number, name, curve)
    _set_lengths(axes, curves.values())
    _mark_trained(axes, trained, at_top=False)
    axes.axhline(0, color=text_colour(), linewidth=0.8)

    # linear near 0 and logarithmic beyond, since rows that fail are nats away, and others
    # hundredths; where all are near 0, that scale would have no ticks but its ends
    lowest, highest = axes.get_ylim()
    if max(abs(lowest), abs(highest)) > LINEAR_NATS:
        axes.set_yscale("symlog", linthresh=LINEAR_NATS, linscale=1.5)
    axes.yaxis.set_major_formatter(_label_of_difference)
    axes.set(title=escape_dollars(title), xlabel="length, tokens", ylabel=unit)
    axes.legend()


def _label_of_difference(difference: float, position: float) -> str:
    """Return the words at a tick of the axis of differences."""
    return f"{difference:+.3g}" if difference else "0"


def _label_of_length(tokens: float, position: float) -> str:
    """Return the words at a tick of the axis of lengths."""
    return format_tokens(round(tokens))


def _draw_curve(axes: Axes, number: int, name: str, curve: Curve) -> None:
    """Draw the curve of a row with its band.

    Args:
        axes: Where it is drawn.
        number: The number of the row, which gives its style; row 0 has the colour of text.
        name: The name of the row.
        curve: Its numbers, and half the width of the band around each.
    """
    # the colour and dashes; row 0 is the one that others are compared with
    style: dict[str, Any]
    if number == 0:
        style = {"color": text_colour(), "linestyle": "-"}
    else:
        style = curve_style(number - 1)

    # up to 12 points are marked, each row with its own symbol
    marker = ""
    if len(curve.x) <= FEW_POINTS:
        marker = MARKERS[number % len(MARKERS)]
    axes.plot(
        curve.x,
        curve.y,
        label=escape_dollars(name),
        marker=marker,
        markersize=3,
        linewidth=1.1,
        **style,
    )
    low = curve.y - curve.band
    high = curve.y + curve.band
    axes.fill_between(curve.x, low, high, color=style["color"], alpha=0.18, linewidth=0)


def _set_lengths(axes: Axes, curves: Iterable[Curve]) -> None:
    """Make the axis of lengths logarithmic, with a tick for each length where there are few."""
    lengths: set[float] = set()
    for curve in curves:
        lengths.update(float(x) for x in curve.x)
    axes.set_xscale("log", base=2)
    if len(lengths) <= FEW_POINTS:
        axes.set_xticks(sorted(lengths))
    axes.xaxis.set_major_formatter(_label_of_length)


def _mark_trained(axes: Axes, trained: int, at_top: bool) -> None:
    """Draw a vertical line at the trained context, with words beside it.

    Args:
        axes: Where it is drawn.
        trained: The trained context in tokens.
        at_top: Whether the words are at the top; else at the bottom. A row that fails rises steeply
            behind the line, and leaves one of them free.
    """
    if at_top:
        height = 1
        points_above = -3
        alignment = "top"
    else:
        height = 0
        points_above = 3
        alignment = "bottom"
    axes.axvline(trained, color=ORANGE, linewidth=0.9, linestyle=":")
    axes.annotate(
        f"trained {format_tokens(trained)}",
        (trained, height),
        xycoords=("data", "axes fraction"),
        xytext=(2, points_above),
        textcoords="offset points",
        fontsize=SMALL,
        verticalalignment=alignment,
        rotation=90,
    )


def curve(points: Iterable[tuple[float | None, ...]]) -> Curve:
    """Return a curve from its points as (tokens, number, band), of which the last two may be
    None.
    """
    rows = []
    for point in points:
        rows.append([np.nan if number is None else number for number in point])
    x, y, band = np.array(rows, np.float64).reshape(-1, 3).T
    return Curve(x, y, band)
