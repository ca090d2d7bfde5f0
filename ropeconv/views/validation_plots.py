"""The plots of a validation: KL and agreement over position, and wavelengths before and after."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from ..validate.validation import BucketResult, Validation
from .plot_style import (
    BLUE,
    ORANGE,
    RED,
    Panel,
    Picture,
    in_tokens,
    ink,
)
from .schedule_plots import wavelengths

if TYPE_CHECKING:
    from matplotlib.axes import Axes

FLOOR = 1e-14


def validation_pictures(result: Validation) -> list[Picture]:
    """The plots of a validation, each with a sentence on it."""
    pictures = [
        Picture(
            partial(_kl, result=result),
            "KL divergence by position. The output must stay below the allowed line, and the"
            " unscaled source far above it. The thin vertical line marks the trained context.",
        ),
        Picture(
            partial(_agreement, result=result),
            "How often output and reference predict the same tokens, by position; 1 means always.",
        ),
    ]
    if {"before", "after"} <= result.frequencies.keys():
        before, after = (np.array(result.frequencies[name]) for name in ("before", "after"))
        draw: Panel = partial(
            wavelengths, before=before, curves={"after": after}, lengths=result.lengths
        )
        pictures.append(
            Picture(
                draw,
                "Each pair of dimensions rotates with its own wavelength, before and after the"
                " change.",
            )
        )
    return pictures


def _steps(buckets: list[BucketResult], name: str) -> tuple[list[float], list[float]]:
    """x and y of a step function over positions, with the field `name` of each bucket."""
    x: list[float] = []
    y: list[float] = []
    begin = 1.0
    for bucket in buckets:
        x += [begin, bucket.last + 1]
        y += [max(FLOOR, getattr(bucket, name))] * 2
        begin = bucket.last + 1
    return x, y


def _kl(axes: Axes, result: Validation) -> None:
    buckets = [bucket for bucket in result.buckets if bucket.run == "spread"]
    axes.plot(*_steps(buckets, "control_kl"), color=RED, label="unscaled source")
    axes.plot(*_steps(buckets, "tolerance"), color=ink(), linestyle="--", label="allowed")
    axes.plot(*_steps(buckets, "noise_kl"), color=ORANGE, linestyle=":", label="noise floor")
    axes.plot(*_steps(buckets, "kl_95"), color=BLUE, label="output, 95 %")
    if result.curve:
        x, y = zip(*result.curve, strict=True)
        axes.plot(
            [p + 1 for p in x],
            [max(FLOOR, kl) for kl in y],
            ".",
            markersize=2,
            color=BLUE,
            label="each position",
        )
    in_tokens(axes, "x")
    axes.set(
        yscale="log",
        xlabel="position, tokens",
        ylabel="KL, nats",
        title="Difference from the reference",
    )
    axes.set_ylim(top=1e9)
    axes.yaxis.set_major_formatter(
        lambda value, _: f"{value:.0e}" if value < 0.01 or value > 100 else f"{value:g}"
    )
    _trained(axes, result)
    axes.legend(ncols=2, loc="upper left", columnspacing=1)


def _agreement(axes: Axes, result: Validation) -> None:
    kind = "whole" if any(bucket.run == "whole" for bucket in result.buckets) else "spread"
    buckets = [bucket for bucket in result.buckets if bucket.run == kind]
    if any(bucket.cosine is not None for bucket in buckets):
        axes.plot(*_steps(buckets, "cosine"), color=BLUE, label="95 % of positions have at least")
        axes.set(ylim=(0, 1.05), ylabel="cosine", title="Similarity of hidden states")
    else:
        axes.plot(*_steps(buckets, "top1"), color=BLUE, label="top token")
        axes.plot(*_steps(buckets, "top5"), color=ORANGE, linestyle="--", label="top five")
        axes.set(ylim=(0, 1.05), ylabel="share of positions", title="Same predictions")
    in_tokens(axes, "x")
    axes.set(xlabel="position, tokens")
    _trained(axes, result)
    axes.legend()


def _trained(axes: Axes, result: Validation) -> None:
    if "trained" in result.lengths:
        axes.axvline(result.lengths["trained"], color=ink(), linewidth=0.8)
