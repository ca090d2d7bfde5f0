"""The plots of a validation: KL and agreement over position, wavelengths before and after, and B(m)."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from ...pictures.schedules import preference, wavelengths
from ...pictures.style import BLUE, GREY, ORANGE, RED, Panel
from ...pictures.style import figure as drawn
from ..rule.validation import BucketResult, Validation

if TYPE_CHECKING:
    from matplotlib.figure import Figure

FLOOR = 1e-14


def figure(result: Validation) -> Figure:
    """A figure with all plots side by side. Plots for which an earlier version stored no data are left out."""
    panels: list[Panel] = [partial(_kl, result=result), partial(_agreement, result=result)]
    if {"before", "after"} <= result.frequencies.keys():
        before, after = (np.array(result.frequencies[name]) for name in ("before", "after"))
        panels.append(partial(wavelengths, before=before, curves={"after": after}, lengths=result.lengths))
        if result.unrotated is not None:
            length = max(result.lengths.values())
            panels.append(
                lambda axes: preference(axes, before, {"after": after}, result.unrotated or 0, length, result.lengths)
            )
    return drawn(*panels)


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


def _kl(axes: Any, result: Validation) -> None:
    shown = [bucket for bucket in result.buckets if bucket.run == "spread"]
    axes.plot(*_steps(shown, "control_kl"), color=RED, label="unscaled source (control)")
    axes.plot(*_steps(shown, "tolerance"), color=GREY, linestyle="--", label="allowed")
    axes.plot(*_steps(shown, "noise_kl"), color=ORANGE, linestyle=":", label="noise floor")
    axes.plot(*_steps(shown, "kl_95"), color=BLUE, label="baked, 95 %")
    if result.curve:
        x, y = zip(*result.curve, strict=True)
        axes.plot(
            [p + 1 for p in x], [max(FLOOR, kl) for kl in y], ".", markersize=2, color=BLUE, label="each position"
        )
    axes.set(xscale="log", yscale="log", xlabel="position", title="KL from the reference, nats")
    axes.set_ylim(top=1e6)
    _trained(axes, result)
    axes.legend(fontsize=7, ncols=2, loc="upper left")


def _agreement(axes: Any, result: Validation) -> None:
    kind = "whole" if any(bucket.run == "whole" for bucket in result.buckets) else "spread"
    shown = [bucket for bucket in result.buckets if bucket.run == kind]
    if any(bucket.cosine is not None for bucket in shown):
        axes.plot(*_steps(shown, "cosine"), color=BLUE, label="95 % of positions have at least")
        axes.set(xscale="log", ylim=(0, 1.05), xlabel="position", title="Cosine of hidden states")
    else:
        axes.plot(*_steps(shown, "top1"), color=BLUE, label="likeliest token")
        axes.plot(*_steps(shown, "top5"), color=ORANGE, linestyle="--", label="five likeliest")
        axes.set(xscale="log", ylim=(0, 1.05), xlabel="position", title="Same tokens")
    _trained(axes, result)
    axes.legend(fontsize=7)


def _trained(axes: Any, result: Validation) -> None:
    if "trained" in result.lengths:
        axes.axvline(result.lengths["trained"], color=GREY, linewidth=0.8)
