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


def draw_frequency_divisors(axes: Axes, before: Vector, curves: Curves) -> None:
    """Draw by how much schedules divide the frequency of each dimension pair.

    A value of 1 is an unchanged frequency. Position interpolation by 4 divides all by 4.

    Args:
        axes: The matplotlib axes.
        before: The frequencies of the unscaled model, in radians per token, float64
            [rotary_dim / 2].
        curves: The frequencies of schedules, by name.
    """
    draw_divisors(axes, {name: divisors(before, inv_freq) for name, inv_freq in curves.items()})


def draw_divisors(
    axes: Axes, curves: Divisors, compared_with: Divisors = MappingProxyType({})
) -> None:
    """Draw curves of numbers by which the frequencies of dimension pairs are divided.

    Args:
        axes: The matplotlib axes.
        curves: Curves by name, with a divisor for each dimension pair and NaN for pairs that do not
            rotate.
        compared_with: Further curves by name, which are drawn as dashed lines.
    """
    for name, values in compared_with.items():
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


def draw_score_bound(
    axes: Axes, before: Vector, curves: Curves, length: int, lengths: Mapping[str, int]
) -> None:
    """Draw an upper bound of attention scores, by the distance of two tokens.

    The score of two tokens at the distance m is at most proportional to the mean of |S_n| over
    n = 1 .. r/2, with the partial sums S_n = sum_{i < n} exp(j m theta_i). Here theta_i is the
    frequency of dimension pair i, r/2 the number of pairs, and j the imaginary unit. RoFormer, Su
    et al. 2021, https://arxiv.org/abs/2104.09864, section 3.4.3 and figure 2.

    Args:
        axes: The matplotlib axes.
        before: The frequencies of the unscaled model, in radians per token, float64
            [rotary_dim / 2].
        curves: The frequencies of schedules, by name.
        length: The largest distance m, in tokens.
        lengths: Lengths in tokens by name, such as {"trained": 4096}. Each is marked by a vertical
            line.
    """
    distances = distances_up_to(length)
    # a line for the unscaled model and for each schedule; `style` has its colour and label
    for inv_freq, style in _frequencies_with_styles(before, curves):
        bound = score_bound(inv_freq, distances)
        axes.plot(distances, bound, linewidth=0.9, **style)

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
    """Return the numbers that the plots of a schedule show, as JSON-ready data.

    A head has d dimensions, of which r rotate in pairs, and theta_i is the frequency of pair i.

    - "wavelengths" are the tokens in which a pair rotates once; null for pairs that do not rotate.
    - "divided_by" is by how much the schedule divides the frequency of each pair.
    - "preference" is B(m) = (d - r)/2 + sum_i cos(m theta_i) at distances m of two tokens. If it is
      negative, a head does not prefer nearby tokens (Men et al. 2024).
    - "score_bound" is an upper bound of attention scores at such distances (Su et al. 2021).

    Args:
        before: The frequencies of the unscaled model, in radians per token, float64
            [rotary_dim / 2].
        inv_freq: The frequencies of the schedule, of the same shape.
        unrotated: (d - r)/2, half the number of dimensions of a head that do not rotate.
        length: The largest distance m, in tokens.
    """
    # distances are divided into intervals, and the lowest B(m) of each interval is shown
    preference_distances, lowest_preference = margins(inv_freq, unrotated, length, INTERVALS)
    bound_distances = distances_up_to(length)
    bound = score_bound(inv_freq, bound_distances)
    return {
        "wavelengths": _as_list(periods(inv_freq)),
        "divided_by": _as_list(divisors(before, inv_freq)),
        "preference": {
            "distance": _as_list(preference_distances),
            "lowest": _as_list(lowest_preference),
        },
        "score_bound": {"distance": _as_list(bound_distances), "bound": _as_list(bound)},
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
    """Return the plots of schedules with their captions, which are drawn later.

    Args:
        spec: The RoPE of the model. Its base and sizes are used, and not its scaling.
        curves: The frequencies of schedules by name, in radians per token, float64
            [rotary_dim / 2]; empty to plot only the model.
        context: The context of the longest schedule, in tokens.
    """
    # Lengths that are marked in the plots: {"trained": 4096, "new": 16384}. Without schedules, the
    # longer length is the context that the model declares.
    lengths = lengths_of(spec, context)
    if not curves and "new" in lengths:
        lengths["declared"] = lengths.pop("new")

    unscaled = base_inv_freq(spec.rope_theta, spec.rotary_dim)
    largest_distance = min(2 * context, FARTHEST)

    # the wavelength of each dimension pair
    draw = partial(wavelengths, before=unscaled, curves=curves, lengths=lengths)
    caption = (
        "Each pair of dimensions rotates with its own wavelength. Pairs above the trained"
        " context have seen only part of a period in training."
    )
    pictures = [Picture(draw, caption)]

    # by how much schedules divide the frequency of each pair
    if curves:
        draw = partial(draw_frequency_divisors, before=unscaled, curves=curves)
        caption = "How far the method slows down each frequency: 1 leaves it unchanged."
        pictures.append(Picture(draw, caption))

    # whether attention prefers tokens at a distance that are like the query
    draw = partial(
        preference,
        before=unscaled,
        curves=curves,
        unrotated=spec.unrotated,
        length=largest_distance,
        lengths=lengths,
    )
    caption = (
        "Below 0, a token that is like the query can score lower than a random one at this"
        " distance (Men et al. 2024). The dotted line marks the trained context."
    )
    pictures.append(Picture(draw, caption))

    # an upper bound of attention scores by the distance
    draw = partial(
        draw_score_bound, before=unscaled, curves=curves, length=largest_distance, lengths=lengths
    )
    caption = "How much two tokens can attend to each other, by their distance (Su et al. 2021)."
    pictures.append(Picture(draw, caption))
    return pictures
