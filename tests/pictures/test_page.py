"""Pictures in an HTML page: its colours, words as text, names that stand once."""

from __future__ import annotations

import re
from functools import partial
from typing import Any

import numpy as np

from ropeconv.pictures.evaluation import Curve, losses
from ropeconv.pictures.page import VARIABLES, Picture, drawn
from ropeconv.pictures.style import BLUE, GREY

X = np.array([1024.0, 8192.0, 32768.0])
CURVES = {name: Curve(X, X / 1e4, X / 1e6) for name in ("base", "<b>&$x_y$")}


def panel(title: str) -> Picture:
    return Picture(partial(losses, curves=CURVES, trained=8192, title=title), "What it shows.")


def test_a_picture_takes_the_colours_of_its_page() -> None:
    (found,) = drawn([panel("growth")])
    assert not [colour for colour in VARIABLES if colour in found.svg]
    assert "currentColor" in found.svg
    assert "var(--blue)" in found.svg


def test_words_are_text_and_the_title_stands_beside_the_picture() -> None:
    (found,) = drawn([panel("growth")])
    words = re.findall(r"<text[^>]*>([^<]*)</text>", found.svg)
    assert {"1k", "8k", "32k", "length, tokens", "trained 8k", "base"} <= set(words)
    assert "growth" not in found.svg
    assert (found.title, found.caption) == ("growth", "What it shows.")
    assert f'role="img" aria-labelledby="{found.name}"' in found.svg


def test_names_are_drawn_as_they_are_written() -> None:
    """Neither as tags nor as formulas."""
    (found,) = drawn([panel("a $x_y$ <b>")])
    assert found.title == "a $x_y$ <b>"
    assert "&lt;b&gt;&amp;$x_y$" in found.svg
    assert "<b>" not in found.svg


def test_no_name_stands_twice_and_each_that_is_used_is_there() -> None:
    text = "".join(one.svg for one in drawn([panel("one"), panel("two")]))
    names = re.findall(r'\bid="([^"]+)"', text)
    assert len(set(names)) == len(names) > 10
    assert set(re.findall(r'href="#([^"]+)"|url\(#([^)]+)\)', text)) != set()
    assert {a or b for a, b in re.findall(r'href="#([^"]+)"|url\(#([^)]+)\)', text)} <= set(names)


def test_nothing_is_loaded_from_elsewhere() -> None:
    (found,) = drawn([panel("growth")])
    assert not re.search(r"""(src|href)=["']?https?:|<metadata|<script""", found.svg)


def test_a_panel_may_have_no_colour_of_the_list() -> None:
    def dots(axes: Any) -> None:
        axes.plot([0, 1], color="#123456")

    (found,) = drawn([Picture(dots, "Dots.")])
    assert "#123456" in found.svg
    assert BLUE not in found.svg
    assert GREY not in found.svg
