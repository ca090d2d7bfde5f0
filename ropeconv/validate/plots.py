"""The pictures of a validation: KL and agreement over position, and wavelengths before and after."""

from __future__ import annotations

import io
import math
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .result import BucketResult, Validation

if TYPE_CHECKING:
    from matplotlib.figure import Figure

BLUE, ORANGE, RED, GREY = (
    "#3b82c4",
    "#d9822b",
    "#c9444d",
    "#808080",
)
FLOOR = 1e-14
STYLE: Any = {
    "axes.edgecolor": GREY, "axes.labelcolor": GREY, "xtick.color": GREY, "ytick.color": GREY, "text.color": GREY,
    "axes.grid": True, "grid.color": GREY, "grid.alpha": 0.25, "legend.frameon": False, "font.size": 9,
    "figure.facecolor": "none", "axes.facecolor": "none", "savefig.transparent": True, "svg.hashsalt": "ropeconv",
    "axes.titlelocation": "left",
}  # fmt: skip


def figure(result: Validation) -> Figure:
    """All pictures beside each other, without a display."""
    import matplotlib
    from matplotlib.figure import Figure

    with matplotlib.rc_context(STYLE):
        made = Figure(figsize=(12, 3.6), layout="constrained")
        first, second, third = made.subplots(1, 3)
        _kl(first, result)
        _agreement(second, result)
        _wavelengths(third, result)
    return made


def svg(result: Validation) -> str:
    """The pictures as an <svg> element, to stand inside a page."""
    import matplotlib

    with matplotlib.rc_context(STYLE):
        text = io.StringIO()
        figure(result).savefig(text, format="svg", metadata={"Date": None, "Creator": None})
    drawn = text.getvalue()
    return drawn[drawn.index("<svg") :]


def write_plot(result: Validation, path: Path) -> None:
    """The pictures as a file, .png or .svg; PNG on white, since it may be shown anywhere."""
    import matplotlib

    with matplotlib.rc_context(STYLE):
        if path.suffix == ".svg":
            path.write_text(svg(result), "utf-8")
        else:
            figure(result).savefig(path, dpi=150, transparent=False, facecolor="white")


def _steps(buckets: list[BucketResult], name: str) -> tuple[list[float], list[float]]:
    """A number of each bucket as a line over its positions."""
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
    axes.plot(*_steps(shown, "top1"), color=BLUE, label="likeliest token")
    axes.plot(*_steps(shown, "top5"), color=ORANGE, linestyle="--", label="five likeliest")
    axes.set(xscale="log", ylim=(0, 1.05), xlabel="position", title="Same tokens")
    _trained(axes, result)
    axes.legend(fontsize=7)


def _wavelengths(axes: Any, result: Validation) -> None:
    for name, colour, style in (("before", GREY, "--"), ("after", BLUE, "-")):
        waves = [math.tau / value for value in result.frequencies.get(name, [])]
        axes.plot(range(len(waves)), waves, style, color=colour, label=name)
    for name in ("trained", "new"):
        if name in result.lengths:
            axes.axhline(
                result.lengths[name], color=ORANGE, linewidth=0.8, linestyle=":" if name == "trained" else "-."
            )
    axes.set(yscale="log", xlabel="pair of dimensions", title="Wavelength, trained and new length, tokens")
    axes.legend(fontsize=7)


def _trained(axes: Any, result: Validation) -> None:
    if "trained" in result.lengths:
        axes.axvline(result.lengths["trained"], color=GREY, linewidth=0.8)
