"""Colours and line styles of plots, and figures as files. matplotlib is imported when a figure is drawn."""

from __future__ import annotations

import io
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..errors import UsageError
from ..extras import require

if TYPE_CHECKING:
    from matplotlib.figure import Figure

BLUE, ORANGE, GREEN, RED, VIOLET, GREY = "#3b82c4", "#d9822b", "#3a9a5b", "#c9444d", "#9467bd", "#808080"
# every line differs in its dashes too, for those who print in grey or do not see the colours
LINES = ((BLUE, "-"), (ORANGE, "--"), (GREEN, "-."), (RED, (0, (1, 1))), (VIOLET, (0, (5, 1, 1, 1, 1, 1))))
STYLE: Any = {
    "axes.edgecolor": GREY, "axes.labelcolor": GREY, "xtick.color": GREY, "ytick.color": GREY, "text.color": GREY,
    "axes.grid": True, "grid.color": GREY, "grid.alpha": 0.25, "legend.frameon": False, "font.size": 9,
    "figure.facecolor": "none", "axes.facecolor": "none", "savefig.transparent": True, "svg.hashsalt": "ropeconv",
    "axes.titlelocation": "left",
}  # fmt: skip
Panel = Callable[[Any], None]


def line(number: int) -> dict[str, Any]:
    """The colour and dashes of curve `number`, as arguments of `plot`."""
    colour, dashes = LINES[number % len(LINES)]
    return {"color": colour, "linestyle": dashes}


def figure(*panels: Panel, columns: int = 0) -> Figure:
    """A figure with panels side by side, which needs no display. Raises RopeconvError without matplotlib.

    panels: functions that draw on the axes that they are called with. columns: panels in a row; 0 for all.
    """
    require("matplotlib", "a picture")
    import matplotlib
    from matplotlib.figure import Figure

    with matplotlib.rc_context(STYLE):
        across = min(columns or len(panels), len(panels))
        down = -(-len(panels) // across)
        made = Figure(figsize=(4 * across, 3.6 * down), layout="constrained")
        places = made.subplots(down, across, squeeze=False).ravel()
        for axes, draw in zip(places, panels, strict=False):
            draw(axes)
        for unused in places[len(panels) :]:
            made.delaxes(unused)
    return made


def svg(made: Figure) -> str:
    """A figure as the text of an <svg> element for an HTML page."""
    import matplotlib

    with matplotlib.rc_context(STYLE):
        text = io.StringIO()
        made.savefig(text, format="svg", metadata={"Date": None, "Creator": None})
    drawn = text.getvalue()
    return drawn[drawn.index("<svg") :]


def checked(path: Path) -> Path:
    """The path of a picture, if it ends in .png or .svg. Raises UsageError for other endings."""
    if path.suffix not in (".svg", ".png"):
        raise UsageError(f"{path} is neither .png nor .svg; name the picture like plot.svg")
    return path


def write(made: Figure, path: Path) -> None:
    """Writes a figure to a .png or .svg file. PNG has a white background, SVG a transparent one."""
    import matplotlib

    with matplotlib.rc_context(STYLE):
        if path.suffix == ".svg":
            path.write_text(svg(made), "utf-8")
        else:
            made.savefig(path, dpi=150, transparent=False, facecolor="white")
