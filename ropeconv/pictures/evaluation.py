"""Plots of evaluations: loss over the length, differences to the first row, retrieval by length and depth."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from ..rope.lengths import format_tokens
from .style import ORANGE, SMALL, ink, line, literal

if TYPE_CHECKING:
    from numpy.typing import NDArray

MARKERS = "os^vDPX"
SHADES = "viridis"
LINEAR = 0.1
"""Nats up to which the axis of differences is linear."""


@dataclass(frozen=True, eq=False)
class Curve:
    """Numbers of a row over lengths. x: tokens, rising. y: numbers. error: standard errors, NaN where not known."""

    x: NDArray[np.float64]
    y: NDArray[np.float64]
    error: NDArray[np.float64]


def losses(axes: Any, curves: Mapping[str, Curve], trained: int, title: str) -> None:
    """Draws numbers over the length, with bands of one standard error to each side.

    axes: of matplotlib. curves: by row, the first one in grey. trained: the trained context in tokens, a vertical line.
    title: above it.
    """
    _draw(axes, curves, trained, 1.0, first=True)
    axes.set(title=literal(title), xlabel="length, tokens")
    axes.legend()


def differences(axes: Any, curves: Mapping[str, Curve], trained: int, title: str) -> None:
    """Draws differences to the first row over the length, with bands of three standard errors to each side.

    Near zero the axis is linear and beyond it logarithmic, since rows that break are nats away, others hundredths.
    axes: of matplotlib. curves: by row, without the first. trained: the trained context in tokens. title: above it.
    """
    _draw(axes, curves, trained, 3.0, first=False)
    axes.axhline(0, color=ink(), linewidth=0.8)
    if max(map(abs, axes.get_ylim())) > LINEAR:  # within, that scale has no ticks but its ends
        axes.set_yscale("symlog", linthresh=LINEAR, linscale=1.5)
    axes.yaxis.set_major_formatter(lambda value, _: f"{value:+.3g}" if value else "0")
    axes.set(title=literal(title), xlabel="length, tokens")
    axes.legend()


def _draw(axes: Any, curves: Mapping[str, Curve], trained: int, errors: float, first: bool) -> None:
    for number, (name, curve) in enumerate(curves.items(), 0 if first else 1):
        style = {"color": ink(), "linestyle": "-"} if number == 0 else line(number - 1)
        few = len(curve.x) <= 12
        marker = MARKERS[number % len(MARKERS)] if few else ""
        axes.plot(curve.x, curve.y, label=literal(name), marker=marker, markersize=3, linewidth=1.1, **style)
        band = errors * curve.error
        axes.fill_between(curve.x, curve.y - band, curve.y + band, color=style["color"], alpha=0.18, linewidth=0)
    axes.set_xscale("log", base=2)
    ticks = sorted({float(x) for curve in curves.values() for x in curve.x})
    if len(ticks) <= 12:
        axes.set_xticks(ticks)
    axes.xaxis.set_major_formatter(lambda value, _: format_tokens(round(value)))
    axes.axvline(trained, color=ORANGE, linewidth=0.9, linestyle=":")
    height, towards = (1, "top") if first else (0, "bottom")  # where rows that break are not
    axes.annotate(
        f"trained {format_tokens(trained)}", (trained, height), xycoords=("data", "axes fraction"),
        xytext=(2, 3 - 6 * height), textcoords="offset points", fontsize=SMALL, verticalalignment=towards, rotation=90,
    )  # fmt: skip


def heat_map(
    axes: Any, shares: NDArray[np.float64], lengths: Sequence[int], depths: Sequence[float], trained: int, title: str
) -> None:
    """Draws shares that are right by depth and length, dark for none and bright for all.

    axes: of matplotlib. shares: from 0 to 1, [depths, lengths]; NaN where nothing was measured. lengths: in tokens,
    rising. depths: from 0, the beginning, to 1. trained: context in tokens; a line stands behind it. title: above.
    """
    axes.imshow(shares, vmin=0, vmax=1, cmap=SHADES, aspect="auto", interpolation="nearest")
    colours = axes.images[0].get_cmap()
    for row, column in np.argwhere(~np.isnan(shares)):
        share = shares[row, column]
        axes.annotate(
            f"{100 * share:.0f}", (column, row), color="black" if bright(colours(share)) else "white", fontsize=SMALL,
            horizontalalignment="center", verticalalignment="center",
        )  # fmt: skip
    axes.set_xticks(range(len(lengths)), [format_tokens(length) for length in lengths])
    axes.set_yticks(range(len(depths)), [f"{100 * depth:.0f} %" for depth in depths])
    inside = sum(length <= trained for length in lengths)
    if 0 < inside < len(lengths):
        for colour, dashes in (("white", "-"), ("black", ":")):  # seen on dark and on bright
            axes.axvline(inside - 0.5, color=colour, linewidth=1.5, linestyle=dashes)
    axes.set(title=literal(title), xlabel="length, tokens", ylabel="depth")
    axes.grid(False)


def bright(colour: Sequence[float]) -> bool:
    """Whether black has more contrast than white on a colour. colour: red, green and blue, from 0 to 1."""
    return luminance(colour) > 0.179


def luminance(colour: Sequence[float]) -> float:
    """The relative luminance of a colour as WCAG 2 defines it. colour: red, green and blue, from 0 to 1."""
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in colour[:3]]
    return float(np.dot(linear, (0.2126, 0.7152, 0.0722)))
