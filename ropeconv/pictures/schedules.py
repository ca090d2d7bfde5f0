"""Plots of schedules: wavelengths and divisors per pair, B(m) and the bound on scores over the distance."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from ..rope.bound.decay import score_bound
from ..rope.bound.reach import margins
from ..rope.forms import Vector
from ..rope.zero_frequencies import wavelengths as periods
from .style import BLUE, GREY, ORANGE, line

Curves = Mapping[str, Vector]


def wavelengths(axes: Any, before: Vector, curves: Curves, lengths: Mapping[str, int]) -> None:
    """Draws the wavelengths 2 pi / inv_freq per pair, in tokens, with horizontal lines for lengths.

    axes: of matplotlib. before: the frequencies of the unscaled model, curves: those of schedules by name; all radians
    per token, float64 [rotary_dim / 2]; pairs that do not rotate are left out. lengths: in tokens by name, "trained"
    dotted.
    """
    axes.plot(periods(before), color=GREY, linestyle="--", label="before")
    for number, (name, inv_freq) in enumerate(curves.items()):
        axes.plot(periods(inv_freq), label=name, **line(number))
    for name, length in lengths.items():
        dashes = ":" if name == "trained" else "-."
        axes.axhline(length, color=ORANGE, linewidth=0.8, linestyle=dashes)
        axes.annotate(f"{name} {length:,}", (0, length), xytext=(2, 2), textcoords="offset points", fontsize=7)
    axes.set(yscale="log", xlabel="pair of dimensions", title="Wavelength, tokens")
    axes.legend(fontsize=7, loc="lower right")


def ramp(axes: Any, before: Vector, curves: Curves) -> None:
    """Draws theta_i / inv_freq_i per pair that rotates: 1 where a frequency stays, s where positions are interpolated.

    axes: of matplotlib. before: theta_i, curves: inv_freq_i by name; radians per token, float64 [rotary_dim / 2].
    """
    for number, (name, inv_freq) in enumerate(curves.items()):
        ratio = np.divide(before, inv_freq, out=np.full(len(before), np.nan), where=inv_freq > 0)
        axes.plot(ratio, label=name, **line(number))
    axes.set_yscale("log", base=2)
    axes.set(xlabel="pair of dimensions", title="Frequencies divided by")
    axes.yaxis.set_major_formatter(lambda value, _: f"{value:g}")
    axes.legend(fontsize=7)


def preference(
    axes: Any, before: Vector | None, curves: Curves, unrotated: float, length: int, lengths: Mapping[str, int]
) -> None:
    """Draws B(m) = (d - r)/2 + sum_i cos(m theta_i), its minimum over intervals of m, with negative values shaded.

    axes: of matplotlib. before: the frequencies of the unscaled model, None to leave them out. curves: those of
    schedules by name; all radians per token, float64 [rotary_dim / 2]. unrotated: (d - r)/2. length: the largest
    distance, in tokens. lengths: vertical lines, in tokens by name. Men et al. 2024, https://arxiv.org/abs/2405.14591.
    """
    lowest = 0.0
    shown = ({} if before is None else {"before": before}) | dict(curves)
    for number, (name, inv_freq) in enumerate(shown.items()):
        at, value = margins(inv_freq, unrotated, length, 300)
        lowest = min(lowest, float(value.min()))
        style = {"color": GREY, "linestyle": "--"} if name == "before" else line(number - (before is not None))
        axes.plot(at, value, linewidth=0.9, label=name, **style)
    axes.axhspan(1.1 * lowest - 1, 0, color=BLUE, alpha=0.08, linewidth=0)
    axes.axhline(0, color=GREY, linewidth=0.8)
    for name, tokens in lengths.items():
        axes.axvline(tokens, color=ORANGE, linewidth=0.8, linestyle=":" if name == "trained" else "-.")
    axes.set(xscale="log", xlabel="distance m", title="B(m), the lowest around m")
    axes.set_ylim(bottom=1.1 * lowest - 1)
    if lowest < 0:
        axes.annotate(
            "near tokens not preferred", (0.03, 0.03), xycoords="axes fraction", fontsize=7, verticalalignment="bottom"
        )
    axes.legend(fontsize=7)


def decay(axes: Any, before: Vector, curves: Curves, length: int, lengths: Mapping[str, int]) -> None:
    """Draws the bound on a score's size at distance m, the mean of |S_n|, S_n = sum_{i < n} exp(j m theta_i).

    axes: of matplotlib. before: the frequencies of the unscaled model. curves: those of schedules by name; all radians
    per token, float64 [rotary_dim / 2]. length: the largest distance, in tokens. lengths: vertical lines, in tokens by
    name. Su et al. 2021, https://arxiv.org/abs/2104.09864, section 3.4.3 and figure 2.
    """
    at = np.unique(np.geomspace(1, length, 400).round())
    for number, (name, inv_freq) in enumerate(({"before": before} | dict(curves)).items()):
        style = {"color": GREY, "linestyle": "--"} if name == "before" else line(number - 1)
        axes.plot(at, score_bound(inv_freq, at), linewidth=0.9, label=name, **style)
    for name, tokens in lengths.items():
        axes.axvline(tokens, color=ORANGE, linewidth=0.8, linestyle=":" if name == "trained" else "-.")
    axes.set(xscale="log", xlabel="distance m", title="Bound on a score, mean of |S_n|")
    axes.set_ylim(bottom=0)
    axes.legend(fontsize=7, loc="upper right")
