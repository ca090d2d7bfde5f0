"""The plots of a validation: KL and agreement over position, and wavelengths before and after.

`validation_pictures` returns all of them.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from ..validate.validation import BucketResult, Validation
from .plot_style import (
    BLUE,
    ORANGE,
    RED,
    Picture,
    in_tokens,
    text_colour,
)
from .schedule_plots import wavelengths

if TYPE_CHECKING:
    from matplotlib.axes import Axes

FLOOR = 1e-14
"""The smallest KL that is drawn: the axis is logarithmic, and equal distributions have 0."""


def validation_pictures(result: Validation) -> list[Picture]:
    """Return the plots of a validation, each with a sentence on it."""
    divergence = Picture(
        partial(_kl, result=result),
        "KL divergence by position. The output must stay below the allowed line, and the unscaled"
        " source far above it. The thin vertical line marks the trained context.",
    )
    agreement = Picture(
        partial(_agreement, result=result),
        "How often output and reference predict the same tokens, by position; 1 means always.",
    )
    pictures = [divergence, agreement]

    if "before" in result.frequencies and "after" in result.frequencies:
        before = np.array(result.frequencies["before"])
        after = np.array(result.frequencies["after"])
        each_pair = Picture(
            partial(wavelengths, before=before, curves={"after": after}, lengths=result.lengths),
            "Each pair of dimensions rotates with its own wavelength, before and after the change.",
        )
        pictures.append(each_pair)
    return pictures


def _steps(buckets: list[BucketResult], name: str) -> tuple[list[float], list[float]]:
    """Return x and y of a step function over positions, whose heights are a field of the buckets.

    Args:
        buckets: Ranges of positions with what was measured in them, in order.
        name: The field, such as "kl_95".
    """
    x: list[float] = []
    y: list[float] = []
    begin = 1.0
    for bucket in buckets:
        end = bucket.last + 1
        height = max(FLOOR, getattr(bucket, name))
        x += [begin, end]
        y += [height, height]
        begin = end
    return x, y


def _kl(axes: Axes, result: Validation) -> None:
    """Draw the KL divergence of the output from the reference, by ranges of positions (buckets).

    The models run twice: at positions that are spread over the whole context ("spread"), and at
    every position of a shorter text ("whole"), which gives the curve.

    Beside it are the divergence that is allowed, the noise floor, and the divergence of the
    unscaled source, which must be far above what is allowed: else the test proves nothing.
    """
    buckets = [bucket for bucket in result.buckets if bucket.run == "spread"]
    axes.plot(*_steps(buckets, "control_kl"), color=RED, label="unscaled source")
    axes.plot(*_steps(buckets, "tolerance"), color=text_colour(), linestyle="--", label="allowed")
    axes.plot(*_steps(buckets, "noise_kl"), color=ORANGE, linestyle=":", label="noise floor")
    axes.plot(*_steps(buckets, "kl_95"), color=BLUE, label="output, 95 %")

    # the run over every position has a point for each
    if result.curve:
        x = [position + 1 for position, _ in result.curve]
        y = [max(FLOOR, kl) for _, kl in result.curve]
        axes.plot(x, y, ".", markersize=2, color=BLUE, label="each position")
    in_tokens(axes, "x")
    axes.set(
        yscale="log",
        xlabel="position, tokens",
        ylabel="KL, nats",
        title="Difference from the reference",
    )
    axes.set_ylim(top=1e9)  # room for the legend above the curves
    axes.yaxis.set_major_formatter(_label_of_kl)
    _mark_trained(axes, result)
    axes.legend(ncols=2, loc="upper left", columnspacing=1)


def _label_of_kl(kl: float, position: float) -> str:
    """Return the words at a tick of the axis of KL."""
    if kl < 0.01 or kl > 100:
        return f"{kl:.0e}"
    return f"{kl:g}"


def _agreement(axes: Axes, result: Validation) -> None:
    """Draw how often the output and the reference predict the same tokens, by position.

    The numbers are of the run over every position ("whole") where there is one, else of the run at
    positions that are spread over the context ("spread").

    Encoders have no predictions; for them the similarity of the hidden states is drawn.
    """
    buckets = [bucket for bucket in result.buckets if bucket.run == "whole"]
    if not buckets:
        buckets = [bucket for bucket in result.buckets if bucket.run == "spread"]

    if any(bucket.cosine is not None for bucket in buckets):
        axes.plot(*_steps(buckets, "cosine"), color=BLUE, label="95 % of positions have at least")
        axes.set(ylim=(0, 1.05), ylabel="cosine", title="Similarity of hidden states")
    else:
        axes.plot(*_steps(buckets, "top1"), color=BLUE, label="top token")
        axes.plot(*_steps(buckets, "top5"), color=ORANGE, linestyle="--", label="top five")
        axes.set(ylim=(0, 1.05), ylabel="share of positions", title="Same predictions")
    in_tokens(axes, "x")
    axes.set(xlabel="position, tokens")
    _mark_trained(axes, result)
    axes.legend()


def _mark_trained(axes: Axes, result: Validation) -> None:
    """Draw a thin vertical line at the trained context."""
    if "trained" in result.lengths:
        axes.axvline(result.lengths["trained"], color=text_colour(), linewidth=0.8)
