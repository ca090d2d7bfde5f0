"""Colours and line styles of plots, and figures as files. matplotlib is imported when a figure is
drawn.
"""

from __future__ import annotations

import io
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from ..environment import require
from ..errors import UsageError
from ..formats.drafts import draft_of, write_file
from ..rope.lengths import format_tokens

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

BLUE, ORANGE, GREEN, RED, VIOLET = "#3b82c4", "#c77420", "#3a9a5b", "#c9444d", "#9467bd"
GREY = "#767676"
"""The colour of text and axes: the grey with a contrast of 4.5 on white and on black."""
DARK, LIGHT = "#14171a", "#d5d9dd"
"""The dark background, and text on it."""
# every line differs in its dashes too, for those who print in grey or do not see the colours
LINES = (
    (BLUE, "-"),
    (ORANGE, "--"),
    (GREEN, "-."),
    (RED, (0, (1, 1))),
    (VIOLET, (0, (5, 1, 1, 1, 1, 1))),
)
SMALL, WIDTH, HEIGHT = 9, 4.0, 3.3
"""The type of a panel in points, and its size in inches: 12 pixels where it fills a page of 400
pixels.
"""
STYLE: Any = {
    "axes.grid": True,
    "grid.alpha": 0.25,
    "legend.frameon": False,
    "font.size": SMALL,
    "legend.fontsize": SMALL,
    "axes.titlesize": 11,
    "figure.titlesize": 12,
    "figure.facecolor": "none",
    "axes.facecolor": "none",
    "savefig.transparent": True,
    "svg.hashsalt": "ropeconv",
    "axes.titlelocation": "left",
}
COLOURED = (
    "axes.edgecolor",
    "axes.labelcolor",
    "xtick.color",
    "ytick.color",
    "text.color",
    "grid.color",
)
Panel = Callable[[Any], None]


def line(number: int) -> dict[str, Any]:
    """The colour and dashes of curve `number`, as arguments of `plot`."""
    colour, dashes = LINES[number % len(LINES)]
    return {"color": colour, "linestyle": dashes}


def ink() -> str:
    """The colour of text in the figure that is being drawn, also of lines that are not curves."""
    import matplotlib

    return str(matplotlib.rcParams["text.color"])


def literal(text: str) -> str:
    """A name for a plot, without a formula between its dollar signs."""
    return text.replace("$", r"\$")


def mark(axes: Axes, lengths: Mapping[str, int]) -> None:
    """Draws a vertical line at lengths by name, "trained" dotted."""
    for name, tokens in lengths.items():
        axes.axvline(
            tokens, color=ORANGE, linewidth=0.8, linestyle=":" if name == "trained" else "-."
        )


def in_tokens(axes: Axes, name: Literal["x", "y"]) -> None:
    """Makes the axis `name` of `axes` logarithmic, in tokens at powers of four: 1, 4, ..., 1k, 4k,
    ..., 1M.
    """
    from matplotlib.ticker import LogLocator, NullLocator

    axes.set(**{f"{name}scale": "log"})
    axis = getattr(axes, f"{name}axis")
    axis.set_major_locator(LogLocator(base=4, numticks=9))
    axis.set_minor_locator(NullLocator())
    axis.set_major_formatter(
        lambda value, _: format_tokens(round(value)) if value >= 1 else f"{value:.2g}"
    )


def figure(*panels: Panel, title: str = "", dark: bool = False) -> Figure:
    """Return a figure with panels below each other, whose type can be read on a telephone. It needs
    no display.

    dark: light lines on a dark background. Raises RopeconvError without matplotlib.
    """
    require("matplotlib", "a picture")
    import matplotlib
    from matplotlib.figure import Figure

    with matplotlib.rc_context(STYLE | dict.fromkeys(COLOURED, LIGHT if dark else GREY)):
        size = (WIDTH, HEIGHT * len(panels))
        result = Figure(figsize=size, layout="constrained", facecolor=DARK if dark else "none")
        if title:
            result.suptitle(literal(title), x=0.01, horizontalalignment="left")
        for axes, draw in zip(
            result.subplots(len(panels), squeeze=False).ravel(), panels, strict=True
        ):
            draw(axes)
    return result


def svg(figure: Figure, text: bool = False) -> str:
    """A figure as the text of an <svg> element. text: keep its words as text, in a font of the
    reader, not as paths.
    """
    import matplotlib

    with matplotlib.rc_context(STYLE | {"svg.fonttype": "none" if text else "path"}):
        drawn = io.StringIO()
        figure.savefig(
            drawn,
            format="svg",
            metadata={"Date": None, "Creator": None},
            transparent=not _dark(figure),
        )
    return "<svg" + drawn.getvalue().partition("<svg")[2]


PICTURES = (".svg", ".png")


def check_picture(path: Path, others: str = "") -> None:
    """Raise UsageError for the path of a picture that does not end in .png or .svg.

    Args:
        path: The path.
        others: How files of other kinds are written, for the end of the message.
    """
    if path.suffix.lower() not in PICTURES:
        raise UsageError(f"{path} is neither .png nor .svg; name the picture like plot.svg{others}")


def write(figure: Figure, path: Path) -> None:
    """Writes a figure to a .png or .svg file. Unless it is dark, PNG has a white background, SVG a
    transparent one.
    """
    if path.suffix.lower() == ".svg":
        write_file(path, svg(figure))
        return
    background = DARK if _dark(figure) else "white"
    with draft_of(path) as draft:
        figure.savefig(draft, format="png", dpi=200, transparent=False, facecolor=background)


def _dark(figure: Figure) -> bool:
    from matplotlib.colors import to_hex

    return to_hex(figure.get_facecolor()) == DARK


VARIABLES = {
    GREY: "currentColor",
    BLUE: "var(--blue)",
    ORANGE: "var(--orange)",
    GREEN: "var(--green)",
    RED: "var(--red)",
    VIOLET: "var(--violet)",
}
"""The variable of a page for each colour, so that light and dark pages have their own."""


@dataclass(frozen=True)
class Picture:
    """A panel with a sentence on what it shows. draw: the panel, which sets its own title. caption:
    below it.
    """

    draw: Panel
    caption: str


@dataclass(frozen=True)
class Drawn:
    """A picture for a page. name: unique in it. title, caption: plain text. svg: an element without
    the title.
    """

    name: str
    title: str
    caption: str
    svg: str


def write_pictures(pictures: Iterable[Picture], path: Path) -> None:
    """Write pictures below each other to a .png or .svg file. Raises RopeconvError without
    matplotlib.
    """
    write(figure(*(picture.draw for picture in pictures)), path)


def drawn(pictures: Iterable[Picture], name: str = "picture") -> list[Drawn]:
    """Pictures for a page, in its colours. name: begins their names. Raises RopeconvError without
    matplotlib.
    """
    return [_drawn(f"{name}-{number}", picture) for number, picture in enumerate(pictures, 1)]


def _drawn(name: str, picture: Picture) -> Drawn:
    panel = figure(picture.draw)
    axes = panel.axes[0]
    title = axes.get_title(loc="left").replace(r"\$", "$")
    axes.set_title("", loc="left")
    text = svg(panel, text=True)
    for colour, variable in VARIABLES.items():
        text = text.replace(colour, variable)
    # names of parts are those of their page, which has several pictures
    text = re.sub(r'(\bid="|href="#|url\(#)', rf"\g<1>{name}-", text)
    text = re.sub(r"<metadata>.*?</metadata>|<!--.*?-->", "", text, flags=re.DOTALL)
    text = text.replace("<svg ", f'<svg role="img" aria-labelledby="{name}" ', 1)
    return Drawn(name, title, picture.caption, text)
