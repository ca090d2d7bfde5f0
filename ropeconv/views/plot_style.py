"""Colours and line styles of plots, and figures as files and on pages.

A plot is a function that draws on the axes of a panel. `figure` puts panels below each other,
`write_pictures` writes them to a file, and `drawn` makes them elements of a page. matplotlib is
imported when a figure is drawn.
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

BLUE = "#3b82c4"
ORANGE = "#c77420"
GREEN = "#3a9a5b"
RED = "#c9444d"
VIOLET = "#9467bd"
GREY = "#767676"
"""The colour of text and axes: the grey with a contrast of 4.5 on white and on black."""
DARK = "#14171a"
"""The dark background."""
LIGHT = "#d5d9dd"
"""The colour of text and axes on the dark background."""

# every line differs in its dashes too, for those who print in grey or do not see the colours
LINES = (
    (BLUE, "-"),
    (ORANGE, "--"),
    (GREEN, "-."),
    (RED, (0, (1, 1))),
    (VIOLET, (0, (5, 1, 1, 1, 1, 1))),
)
SMALL = 9
"""The type of a panel in points: 12 pixels where the panel fills a page of 400 pixels."""
WIDTH = 4.0
"""Inches of a panel."""
HEIGHT = 3.3
"""Inches of a panel."""
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
    "svg.hashsalt": "ropeconv",  # otherwise names of parts are random, and each file another one
    "axes.titlelocation": "left",
}
TEXT_COLOURS = (
    "axes.edgecolor",
    "axes.labelcolor",
    "xtick.color",
    "ytick.color",
    "text.color",
    "grid.color",
)
"""The settings of matplotlib that have the colour of text."""
Panel = Callable[[Any], None]
"""Draws on the axes of a panel."""


def curve_style(number: int) -> dict[str, Any]:
    """Return the colour and dashes of curve `number`, as arguments of `plot`."""
    colour, dashes = LINES[number % len(LINES)]
    return {"color": colour, "linestyle": dashes}


def text_colour() -> str:
    """Return the colour of text in the figure that is being drawn, also for lines that are not
    curves.
    """
    import matplotlib

    return str(matplotlib.rcParams["text.color"])


def escape_dollars(text: str) -> str:
    """Return a name for a plot. matplotlib would set a formula between its dollar signs."""
    return text.replace("$", r"\$")


def mark(axes: Axes, lengths: Mapping[str, int]) -> None:
    """Draw a vertical line at each length, which are in tokens by name; "trained" is dotted."""
    for name, tokens in lengths.items():
        dashes = ":" if name == "trained" else "-."
        axes.axvline(tokens, color=ORANGE, linewidth=0.8, linestyle=dashes)


def in_tokens(axes: Axes, name: Literal["x", "y"]) -> None:
    """Make the axis `name` logarithmic, in tokens at powers of four: 1, 4, ..., 1k, 4k, ..., 1M."""
    from matplotlib.ticker import LogLocator, NullLocator

    axes.set(**{f"{name}scale": "log"})
    axis = getattr(axes, f"{name}axis")
    axis.set_major_locator(LogLocator(base=4, numticks=9))
    axis.set_minor_locator(NullLocator())
    axis.set_major_formatter(_label_of_tick)


def _label_of_tick(tokens: float, position: float) -> str:
    """Return the words at a tick of an axis in tokens."""
    if tokens >= 1:
        return format_tokens(round(tokens))
    return f"{tokens:.2g}"


def figure(*panels: Panel, title: str = "", dark: bool = False) -> Figure:
    """Return a figure with panels below each other, whose type can be read on a telephone.

    It needs no display.

    Args:
        panels: Draw on the axes that they are given, from the top down.
        title: The title above all of them.
        dark: Whether it has light lines on a dark background.

    Raises:
        RopeconvError: If matplotlib is not installed.
    """
    require("matplotlib", "a picture")
    import matplotlib
    from matplotlib.figure import Figure

    # Figure instead of pyplot.figure: pyplot keeps figures, and may open a window
    text = LIGHT if dark else GREY
    background = DARK if dark else "none"
    size = (WIDTH, HEIGHT * len(panels))
    with matplotlib.rc_context(STYLE | dict.fromkeys(TEXT_COLOURS, text)):
        result = Figure(figsize=size, layout="constrained", facecolor=background)
        if title:
            result.suptitle(escape_dollars(title), x=0.01, horizontalalignment="left")
        grid = result.subplots(len(panels), squeeze=False)
        for axes, draw in zip(grid.ravel(), panels, strict=True):
            draw(axes)
    return result


def svg(figure: Figure, text: bool = False) -> str:
    """Return a figure as an <svg> element.

    Args:
        figure: From `figure`.
        text: Whether its words stay text, in a font of the reader; otherwise they are paths.
    """
    import matplotlib

    # a date would make every file another one
    metadata = {"Date": None, "Creator": None}
    font = "none" if text else "path"
    document = io.StringIO()
    with matplotlib.rc_context(STYLE | {"svg.fonttype": font}):
        figure.savefig(document, format="svg", metadata=metadata, transparent=not _is_dark(figure))

    # without the XML declaration in front, which has no place within a page
    _, _, element = document.getvalue().partition("<svg")
    return f"<svg{element}"


PICTURES = (".svg", ".png")
"""Ends of the names of pictures."""


def check_picture(path: Path, others: str = "") -> None:
    """Raise UsageError for the path of a picture that does not end in .png or .svg.

    Args:
        path: The path.
        others: How files of other kinds are written, for the end of the message.
    """
    if path.suffix.lower() not in PICTURES:
        raise UsageError(f"{path} is neither .png nor .svg; name the picture like plot.svg{others}")


def write(figure: Figure, path: Path) -> None:
    """Write a figure to a .png or .svg file. Unless it is dark, PNG has a white background, and SVG
    a transparent one.
    """
    if path.suffix.lower() == ".svg":
        write_file(path, svg(figure))
        return
    background = DARK if _is_dark(figure) else "white"
    with draft_of(path) as draft:
        figure.savefig(draft, format="png", dpi=200, transparent=False, facecolor=background)


def _is_dark(figure: Figure) -> bool:
    """Whether a figure was made with `dark`."""
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
    """A panel with a sentence on what it shows."""

    draw: Panel
    """Draws the panel, with a title of its own."""

    caption: str
    """The sentence below it."""


@dataclass(frozen=True)
class Drawn:
    """A picture for a page."""

    name: str
    """Unique in the page."""

    title: str
    """Plain text."""

    caption: str
    """Plain text."""

    svg: str
    """An <svg> element without the title."""


def write_pictures(pictures: Iterable[Picture], path: Path) -> None:
    """Write pictures below each other to a .png or .svg file. Raises RopeconvError without
    matplotlib.
    """
    panels = [picture.draw for picture in pictures]
    write(figure(*panels), path)


def drawn(pictures: Iterable[Picture], name: str = "picture") -> list[Drawn]:
    """Return pictures for a page, in its colours.

    Args:
        pictures: The pictures.
        name: The start of their names, which are unique in the page.

    Raises:
        RopeconvError: If matplotlib is not installed.
    """
    elements = []
    for number, picture in enumerate(pictures, 1):
        elements.append(_draw_for_page(f"{name}-{number}", picture))
    return elements


def _draw_for_page(name: str, picture: Picture) -> Drawn:
    """Return a picture as <svg> for a page, in the colours of the page, with its title as text.

    Args:
        name: The name of the picture, unique in the page.
        picture: The picture.
    """
    # the title becomes text of the page; matplotlib needs a backslash before a dollar sign
    panel = figure(picture.draw)
    axes = panel.axes[0]
    title = axes.get_title(loc="left").replace(r"\$", "$")
    axes.set_title("", loc="left")

    # The page has its own colours, for light and dark, as variables of CSS. matplotlib writes our
    # colours as "#3b82c4", and the page gets "var(--blue)" in place of that.
    element = svg(panel, text=True)
    for colour, variable in VARIABLES.items():
        element = element.replace(colour, variable)

    # An id holds for the whole page, so those of two pictures must differ. The name of the picture
    # is put before each one, where it is defined (id="x") and used (href="#x", url(#x)).
    before_id = r'(\bid="|href="#|url\(#)'
    element = re.sub(before_id, rf"\g<1>{name}-", element)

    # nothing that a reader does not see, and the title as the name for screen readers
    element = re.sub(r"<metadata>.*?</metadata>|<!--.*?-->", "", element, flags=re.DOTALL)
    element = element.replace("<svg ", f'<svg role="img" aria-labelledby="{name}" ', 1)
    return Drawn(name=name, title=title, caption=picture.caption, svg=element)
