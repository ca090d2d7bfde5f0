"""Curves of numbers over the length, with bands for their errors."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from ..rope.lengths import format_tokens
from .plot_style import ORANGE, SMALL, ink, line, literal

if TYPE_CHECKING:
    from matplotlib.axes import Axes

MARKERS = "os^vDPX"


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


def curve(points: Iterable[tuple[float | None, ...]]) -> Curve:
    """A curve from its points as (tokens, number, band), of which the last two may be None."""
    numbers = np.array(
        [[np.nan if number is None else number for number in point] for point in points], np.float64
    )
    return Curve(*numbers.reshape(-1, 3).T)
