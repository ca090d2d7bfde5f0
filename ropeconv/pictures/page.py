"""Pictures of an HTML page: each by itself as an element that takes the colours and the type of the page."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

from .style import BLUE, GREEN, GREY, ORANGE, RED, VIOLET, Panel, figure, svg

VARIABLES = {
    GREY: "currentColor", BLUE: "var(--blue)", ORANGE: "var(--orange)", GREEN: "var(--green)", RED: "var(--red)",
    VIOLET: "var(--violet)",
}  # fmt: skip
"""What a page has in place of each colour, so that light and dark pages have their own."""


@dataclass(frozen=True)
class Picture:
    """A panel with a sentence on what it shows. draw: the panel, which sets its own title. caption: below it."""

    draw: Panel
    caption: str


@dataclass(frozen=True)
class Drawn:
    """A picture for a page. name: unique in it. title, caption: plain text. svg: an element without the title."""

    name: str
    title: str
    caption: str
    svg: str


def drawn(pictures: Iterable[Picture]) -> list[Drawn]:
    """Pictures for a page, in its colours. Raises RopeconvError without matplotlib."""
    return [_drawn(f"picture-{number}", one) for number, one in enumerate(pictures, 1)]


def _drawn(name: str, picture: Picture) -> Drawn:
    made = figure(picture.draw)
    axes = made.axes[0]
    title = axes.get_title(loc="left").replace(r"\$", "$")
    axes.set_title("", loc="left")
    text = svg(made, text=True)
    for colour, variable in VARIABLES.items():
        text = text.replace(colour, variable)
    # names of parts are those of their page, which has several pictures
    text = re.sub(r'(\bid="|href="#|url\(#)', rf"\g<1>{name}-", text)
    text = re.sub(r"<metadata>.*?</metadata>|<!--.*?-->", "", text, flags=re.DOTALL)
    text = text.replace("<svg ", f'<svg role="img" aria-labelledby="{name}" ', 1)
    return Drawn(name, title, picture.caption, text)
