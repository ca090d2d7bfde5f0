"""Plots of schedules: wavelengths and divisors per pair, B(m) and the bound on scores over the
distance.
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
from .plot_style import BLUE, ORANGE, SMALL, Picture, in_tokens, ink, line, literal, mark

if TYPE_CHECKING:
    from matplotlib.axes import Axes

Curves = Mapping[str, Vector]
Divisors = Mapping[str, Vector | Sequence[float]]
POINTS = 300
"""Intervals of distances whose lowest sum is drawn."""


def _styled(before: Vector | None, curves: Curves) -> Iterator[tuple[Vector, dict[str, Any]]]:
    """Yields frequencies with the style of their line, that of the unscaled model first and
    dashed.
    """
    if before is not None:
        yield before, {"color": ink(), "linestyle": "--", "label": "before" if curves else "now"}
    for number, (name, inv_freq) in enumerate(curves.items()):
        yield inv_freq, {"label": literal(name), **line(number)}


def wavelengths(axes: Axes, before: Vector, curves: Curves, lengths: Mapping[str, int]) -> None:
    """Draws the wavelengths 2 pi / inv_freq per pair, in tokens, with horizontal lines for lengths.

    before: the frequencies of the unscaled model, curves: those of schedules by name; all radians
    per token, float64 [rotary_dim / 2]; pairs that do not rotate are left out. lengths: in tokens
    by name, "trained" dotted.
    """
    for inv_freq, style in _styled(before, curves):
        axes.plot(periods(inv_freq), **style)
    for name, length in lengths.items():
        dashes = ":" if name == "trained" else "-."
        axes.axhline(length, color=ORANGE, linewidth=0.8, linestyle=dashes)
        below = name == "trained"  # so that two lengths that are near each other can be read
        axes.annotate(
            f"{name} {length:,} tokens",
            (0, length),
            xytext=(2, -2 if below else 2),
            textcoords="offset points",
            fontsize=SMALL,
            verticalalignment="top" if below else "bottom",
        )
    in_tokens(axes, "y")
    axes.set(xlabel="dimension pair", ylabel="tokens", title="Wavelength of each dimension pair")
    axes.legend(loc="lower right")


def ramp(axes: Axes, before: Vector, curves: Curves) -> None:
    """Draws theta_i / inv_freq_i per pair that rotates: 1 where a frequency stays, s where
    positions are interpolated.

    before: theta_i, curves: inv_freq_i by name; radians per token, float64 [rotary_dim / 2].
    """
    divided_by(axes, {name: divisors(before, inv_freq) for name, inv_freq in curves.items()})


def divided_by(axes: Axes, curves: Divisors, beside: Divisors = MappingProxyType({})) -> None:
    """Draws divisors of frequencies per pair, NaN for those that do not rotate.

    curves: divisors by name. beside: the same, dashed, of what they are to be compared with.
    """
    for name, values in beside.items():
        axes.plot(values, color=ink(), linestyle="--", label=literal(name))
    for number, (name, values) in enumerate(curves.items()):
        axes.plot(values, label=literal(name), **line(number))
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
    """Draws B(m) = (d - r)/2 + sum_i cos(m theta_i), its minimum over intervals of m, with negative
    values shaded.

    before: the frequencies of the unscaled model, None to leave them out. curves: those of
    schedules by name; all radians per token, float64 [rotary_dim / 2]. unrotated: (d - r)/2.
    length: the largest distance, in tokens. lengths: vertical lines, in tokens by name. Men et al.
    2024, https://arxiv.org/abs/2405.14591.
    """
    lowest = 0.0
    for inv_freq, style in _styled(before, curves):
        at, value = margins(inv_freq, unrotated, length, POINTS)
        lowest = min(lowest, float(value.min()))
        axes.plot(at, value, linewidth=0.9, **style)
    axes.axhspan(1.1 * lowest - 1, 0, color=BLUE, alpha=0.08, linewidth=0)
    axes.axhline(0, color=ink(), linewidth=0.8)
    mark(axes, lengths)
    in_tokens(axes, "x")
    axes.set(
        xlabel="distance m, tokens", ylabel="lowest B(m)", title="Preference for nearby tokens"
    )
    axes.set_ylim(bottom=1.1 * lowest - 1)
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
    """Draws the bound on a score's size at distance m, the mean of |S_n|, S_n = sum_{i < n} exp(j m
    theta_i).

    Parameters as in `preference`. Su et al. 2021, https://arxiv.org/abs/2104.09864, section 3.4.3
    and figure 2.
    """
    at = distances(length)
    for inv_freq, style in _styled(before, curves):
        axes.plot(at, score_bound(inv_freq, at), linewidth=0.9, **style)
    mark(axes, lengths)
    in_tokens(axes, "x")
    axes.set(
        xlabel="distance m, tokens", ylabel="mean of |S_n|", title="Upper bound of attention scores"
    )
    axes.set_ylim(bottom=0)
    axes.legend(loc="upper right")


def divisors(before: Vector, inv_freq: Vector) -> Vector:
    """theta_i / inv_freq_i, NaN for pairs that do not rotate. before: theta_i; both radians per
    token.
    """
    quotients: Vector = np.divide(
        before, inv_freq, out=np.full(len(before), np.nan), where=inv_freq > 0
    )
    return quotients


def distances(length: int) -> Vector:
    """Some hundred whole distances from 1 to `length` tokens, at even ratios."""
    return np.unique(np.geomspace(1, length, 400).round())


def numbers(before: Vector, inv_freq: Vector, unrotated: float, length: int) -> JsonObject:
    """The data of the plots of a schedule, JSON-ready, with null for pairs that do not rotate.

    Parameters as in `preference`.
    """
    at, lowest = margins(inv_freq, unrotated, length, POINTS)
    spots = distances(length)
    return {
        "wavelengths": _listed(periods(inv_freq)),
        "divided_by": _listed(divisors(before, inv_freq)),
        "preference": {"distance": _listed(at), "lowest": _listed(lowest)},
        "score_bound": {"distance": _listed(spots), "bound": _listed(score_bound(inv_freq, spots))},
    }


def _listed(values: Vector) -> list[float | None]:
    return [float(value) if np.isfinite(value) else None for value in values]


FARTHEST = 1 << 24
"""The largest distance in tokens that is drawn."""


def lengths_of(spec: RopeSpec, context: int) -> dict[str, int]:
    """The lengths that pictures mark, in tokens by name. spec: of the model. context: of its
    longest schedule.
    """
    return {"trained": spec.original_context} | (
        {"new": context} if context != spec.original_context else {}
    )


def pictures_of(spec: RopeSpec, curves: Curves, context: int) -> list[Picture]:
    """Wavelengths, what frequencies are divided by, B(m), and the bound on scores.

    spec: the RoPE of the model, whose scaling is not used. curves: frequencies of schedules by
    name, radians per token, float64 [rotary_dim / 2]; without any, what is divided is left out.
    context: of the longest, in tokens.
    """
    before = base_inv_freq(spec.rope_theta, spec.rotary_dim)
    lengths = lengths_of(spec, context)
    if not curves:
        lengths = {
            "declared" if name == "new" else name: length for name, length in lengths.items()
        }
    drawn: dict[str, Any] = {"before": before, "curves": curves}
    far = drawn | {"length": min(2 * context, FARTHEST), "lengths": lengths}
    each_pair = Picture(
        partial(wavelengths, **drawn, lengths=lengths),
        "Each pair of dimensions rotates with its own wavelength. Pairs above the trained context"
        " have seen only part of a period in training.",
    )
    slower = Picture(
        partial(ramp, **drawn),
        "How far the method slows down each frequency: 1 leaves it unchanged.",
    )
    nearby = Picture(
        partial(preference, unrotated=spec.unrotated, **far),
        "Below 0, a token that is like the query can score lower than a random one at this distance"
        " (Men et al. 2024). The dotted line marks the trained context.",
    )
    attention = Picture(
        partial(decay, **far),
        "How much two tokens can attend to each other, by their distance (Su et al. 2021).",
    )
    return [each_pair, *([slower] if curves else []), nearby, attention]
