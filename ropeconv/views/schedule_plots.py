"""Plots of schedules, that is of the frequencies that methods give a model.

`pictures_of` returns all four: wavelengths and divisors per dimension pair, and B(m) and the bound
on scores over the distance. Each is a function that draws on axes of matplotlib. `numbers` returns
the same as data.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import numpy as np

from ..formats.jsontext import JsonObject
from ..rope.bound.reach import margins
from ..rope.bound.sums import score_bound
from ..rope.forms import Vector, base_inv_freq
from ..rope.forms import wavelengths as periods
from ..rope.spec import RopeSpec
from .plot_style import (
    BLUE,
    ORANGE,
    SMALL,
    Picture,
    curve_style,
    escape_dollars,
    in_tokens,
    mark,
    text_colour,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes

Curves = Mapping[str, Vector]
"""Frequencies by the name of their schedule, in radians per token, float64 [rotary_dim / 2]."""
Divisors = Mapping[str, Vector | Sequence[float]]
"""The divisor of each frequency, by the name of its schedule."""
INTERVALS = 300
"""Intervals of distances whose lowest sum is drawn."""
FARTHEST = 1 << 24
"""The largest distance in tokens that is drawn."""


def _frequencies_with_styles(
    before: Vector | None, curves: Curves
) -> Iterator[tuple[Vector, dict[str, Any]]]:
    """Yield each list of frequencies with the arguments of `plot` for its line.

    The first is that of the unscaled model, with a dashed line; then follow those of schedules.
    """
    if before is not None:
        label = "before" if curves else "now"
        yield before, {"color": text_colour(), "linestyle": "--", "label": label}
    for number, (name, inv_freq) in enumerate(curves.items()):
        yield inv_freq, {"label": escape_dollars(name), **curve_style(number)}


def wavelengths(axes: Axes, before: Vector, curves: Curves, lengths: Mapping[str, int]) -> None:
    """Draw the wavelengths 2 pi / inv_freq per pair, in tokens, with horizontal lines for lengths.

    Pairs that do not rotate are left out.

    Args:
        axes: Where they are drawn.
        before: The frequencies of the unscaled model, in radians per token, float64
            [rotary_dim / 2].
        curves: Those of schedules by name.
        lengths: In tokens by name; "trained" is dotted.
    """
    for inv_freq, style in _frequencies_with_styles(before, curves):
        axes.plot(periods(inv_freq), **style)
    for name, length in lengths.items():
        if name == "trained":
            dashes = ":"
            # its words are below the line, so that two lengths that are near each other can be read
            points_above = -2
            alignment = "top"
        else:
            dashes = "-."
            points_above = 2
            alignment = "bottom"
        axes.axhline(length, color=ORANGE, linewidth=0.8, linestyle=dashes)
        axes.annotate(
            f"{name} {length:,} tokens",
            (0, length),
            xytext=(2, points_above),
            textcoords="offset points",
            fontsize=SMALL,
            verticalalignment=alignment,
        )
    in_tokens(axes, "y")
    axes.set(xlabel="dimension pair", ylabel="tokens", title="Wavelength of each dimension pair")
    axes.legend(loc="lower right")


def ramp(axes: Axes, before: Vector, curves: Curves) -> None:
    """Draw theta_i / inv_freq_i per pair that rotates: 1 where a frequency stays, s where positions
    are interpolated.

    Args:
        axes: Where they are drawn.
        before: theta_i, the frequencies of the unscaled model, in radians per token, float64
            [rotary_dim / 2].
        curves: inv_freq_i of schedules by name.
    """
    divided_by(axes, {name: divisors(before, inv_freq) for name, inv_freq in curves.items()})


def divided_by(axes: Axes, curves: Divisors, beside: Divisors = MappingProxyType({})) -> None:
    """Draw the divisor of the frequency of each dimension pair.

    Args:
        axes: Where they are drawn.
        curves: The divisors by name, NaN for pairs that do not rotate. Each curve has its own
            colour and dashes.
        beside: Divisors to compare them with, which are dashed in the colour of text.
    """
    for name, values in beside.items():
        axes.plot(values, color=text_colour(), linestyle="--", label=escape_dollars(name))
    for number, (name, values) in enumerate(curves.items()):
        axes.plot(values, label=escape_dollars(name), **curve_style(number))
    axes.set_yscale("log", base=2)
    axes.set(xlabel="dimension pair", ylabel="divided by", title="Scaling of each frequency")
    axes.yaxis.set_major_formatter(lambda value, _: f"{value:g}")
    axes.legend()


def preference(
    axes: Axes,
    before: Vector | None,
    curves: Curves,
    unrotated: float,
    length: int,
    lengths: Mapping[str, int],
) -> None:
    """Draw the lowest B(m) = (d - r)/2 + sum_i cos(m theta_i) in intervals of the distance m.

    A head has d dimensions, of which r rotate, with the frequencies theta_i. Negative values are
    shaded: there a token that is like the query may score lower than a random one. Men et al. 2024,
    https://arxiv.org/abs/2405.14591.

    Args:
        axes: Where it is drawn.
        before: The frequencies of the unscaled model, in radians per token, float64
            [rotary_dim / 2]; None to leave them out.
        curves: Those of schedules by name.
        unrotated: (d - r)/2.
        length: The largest distance m, in tokens.
        lengths: Vertical lines, in tokens by name.
    """
    lowest = 0.0
    for inv_freq, style in _frequencies_with_styles(before, curves):
        distances, sums = margins(inv_freq, unrotated, length, INTERVALS)
        lowest = min(lowest, float(sums.min()))
        axes.plot(distances, sums, linewidth=0.9, **style)

    # the shaded area reaches a little below the lowest value
    bottom = 1.1 * lowest - 1
    axes.axhspan(bottom, 0, color=BLUE, alpha=0.08, linewidth=0)
    axes.axhline(0, color=text_colour(), linewidth=0.8)
    mark(axes, lengths)
    in_tokens(axes, "x")
    axes.set(
        xlabel="distance m, tokens", ylabel="lowest B(m)", title="Preference for nearby tokens"
    )
    axes.set_ylim(bottom=bottom)
    if lowest < 0:
        axes.annotate(
            "nearby tokens not preferred",
            (0.03, 0.03),
            xycoords="axes fraction",
            fontsize=SMALL,
            verticalalignment="bottom",
        )
    axes.legend()


def decay(
    axes: Axes, before: Vector, curves: Curves, length: int, lengths: Mapping[str, int]
) -> None:
    """Draw RoFormer's bound on the size of an attention score, by the distance m of two tokens.

    The bound is the mean of |S_n| over n = 1 .. r/2, with S_n = sum_{i < n} exp(j m theta_i). Here
    theta_i is the frequency of pair i of r/2, and j is the imaginary unit. Su et al. 2021,
    https://arxiv.org/abs/2104.09864, section 3.4.3 and figure 2.

    Args:
        axes: Where it is drawn.
        before: The frequencies of the unscaled model, in radians per token, float64
            [rotary_dim / 2].
        curves: The frequencies of schedules, by name.
        length: The largest distance m, in tokens.
        lengths: Lengths in tokens by name, such as {"trained": 4096}. Each is marked by a vertical
            line.
    """
    distances = distances_up_to(length)
    # first the unscaled model, then each schedule, with the colour and label of its line
    for inv_freq, style in _frequencies_with_styles(before, curves):
        axes.plot(distances, score_bound(inv_freq, distances), linewidth=0.9, **style)

    mark(axes, lengths)
    in_tokens(axes, "x")
    axes.set(
        xlabel="distance m, tokens", ylabel="mean of |S_n|", title="Upper bound of attention scores"
    )
    axes.set_ylim(bottom=0)
    axes.legend(loc="upper right")


def divisors(before: Vector, inv_freq: Vector) -> Vector:
    """Return theta_i / inv_freq_i, the frequencies before and after a method; NaN for pairs that do
    not rotate.
    """
    quotients = np.full(len(before), np.nan)
    np.divide(before, inv_freq, out=quotients, where=inv_freq > 0)
    return quotients


def distances_up_to(length: int) -> Vector:
    """Return some hundred whole distances from 1 to `length` tokens, at even ratios."""
    return np.unique(np.geomspace(1, length, 400).round())


def numbers(before: Vector, inv_freq: Vector, unrotated: float, length: int) -> JsonObject:
    """Return the data of the plots of a schedule, JSON-ready.

    "preference" is the lowest B(m) in intervals of the distance m of two tokens, with
    B(m) = (d - r)/2 + sum_i cos(m theta_i). A head has d dimensions, of which r rotate in pairs,
    and theta_i is the frequency of pair i. Where B(m) is negative, a head does not prefer nearby
    tokens. Pairs that do not rotate have null.

    Args:
        before: The frequencies of the unscaled model, in radians per token, float64
            [rotary_dim / 2].
        inv_freq: The frequencies of the schedule, likewise.
        unrotated: (d - r)/2, half the number of dimensions of a head that do not rotate.
        length: The largest distance, in tokens.
    """
    # the lowest B(m) of each interval, and the distance that has it
    lowest_at, lowest = margins(inv_freq, unrotated, length, INTERVALS)
    bound_at = distances_up_to(length)
    bound = score_bound(inv_freq, bound_at)
    return {
        "wavelengths": _as_list(periods(inv_freq)),
        "divided_by": _as_list(divisors(before, inv_freq)),
        "preference": {"distance": _as_list(lowest_at), "lowest": _as_list(lowest)},
        "score_bound": {"distance": _as_list(bound_at), "bound": _as_list(bound)},
    }


def _as_list(values: Vector) -> list[float | None]:
    """Return numbers for JSON, which has neither NaN nor infinity."""
    return [float(value) if np.isfinite(value) else None for value in values]


def lengths_of(spec: RopeSpec, context: int) -> dict[str, int]:
    """Return the lengths that pictures mark, in tokens by name.

    Args:
        spec: The RoPE of the model.
        context: The context of its longest schedule, in tokens.
    """
    lengths = {"trained": spec.original_context}
    if context != spec.original_context:
        lengths["new"] = context
    return lengths


def pictures_of(spec: RopeSpec, curves: Curves, context: int) -> list[Picture]:
    """Return the pictures of schedules: wavelengths, divisors, B(m), and the bound on scores.

    Args:
        spec: The RoPE of the model, whose scaling is not used.
        curves: Frequencies of schedules by name, in radians per token, float64 [rotary_dim / 2].
            Without any, the divisors are left out.
        context: The context of the longest schedule, in tokens.
    """
    # The marked lengths, such as {"trained": 4096, "new": 16384}. Without curves there is no method
    # and no new length: the longer one is that which the model declares.
    lengths = lengths_of(spec, context)
    if not curves and "new" in lengths:
        lengths["declared"] = lengths.pop("new")

    unscaled = base_inv_freq(spec.rope_theta, spec.rotary_dim)
    farthest = min(2 * context, FARTHEST)
    draw_wavelengths = partial(wavelengths, before=unscaled, curves=curves, lengths=lengths)
    pictures = [
        Picture(
            draw_wavelengths,
            "Each pair of dimensions rotates with its own wavelength. Pairs above the trained"
            " context have seen only part of a period in training.",
        )
    ]

    if curves:
        draw_divisors = partial(ramp, before=unscaled, curves=curves)
        caption = "How far the method slows down each frequency: 1 leaves it unchanged."
        pictures.append(Picture(draw_divisors, caption))

    draw_preference = partial(
        preference,
        before=unscaled,
        curves=curves,
        unrotated=spec.unrotated,
        length=farthest,
        lengths=lengths,
    )
    caption = (
        "Below 0, a token that is like the query can score lower than a random one at this"
        " distance (Men et al. 2024). The dotted line marks the trained context."
    )
    pictures.append(Picture(draw_preference, caption))

    draw_bound = partial(decay, before=unscaled, curves=curves, length=farthest, lengths=lengths)
    caption = "How much two tokens can attend to each other, by their distance (Su et al. 2021)."
    pictures.append(Picture(draw_bound, caption))
    return pictures
