"""Colours that are seen on light and on dark, and dark figures."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from matplotlib import colormaps
from matplotlib.colors import to_rgb
from matplotlib.image import imread

from ropeconv.pictures.evaluation import SHADES, bright, luminance
from ropeconv.pictures.style import DARK, GREY, LIGHT, LINES, RED, figure, ink, svg, write


def contrast(one: Any, other: Any) -> float:
    """As WCAG 2 defines it: https://www.w3.org/TR/WCAG22/#dfn-contrast-ratio"""
    low, high = sorted(luminance(to_rgb(colour)) for colour in (one, other))
    return (high + 0.05) / (low + 0.05)


def rule(axes: Any) -> None:
    axes.plot([1, 2], color=ink())


def test_contrast_is_that_of_the_standard() -> None:
    assert contrast("white", "black") == pytest.approx(21)
    assert contrast("#777777", "white") == pytest.approx(4.48, abs=0.01)


@pytest.mark.parametrize("background", ["white", DARK, "black"])
def test_curves_are_seen_and_text_is_read_on_light_and_dark(background: str) -> None:
    assert min(contrast(colour, background) for colour in [RED, *(colour for colour, _ in LINES)]) >= 3
    assert contrast(LIGHT if background == DARK else GREY, background) >= 4.5


def test_numbers_on_a_heat_map_are_read() -> None:
    colours = [colormaps[SHADES](share) for share in np.linspace(0, 1, 21)]
    assert min(contrast("black" if bright(colour) else "white", colour[:3]) for colour in colours) >= 4.5


@pytest.mark.parametrize("dark", [True, False])
def test_a_dark_figure_is_dark_and_a_light_one_white_as_png_and_transparent_as_svg(tmp_path: Path, dark: bool) -> None:
    made, text = figure(rule, dark=dark), svg(figure(rule, dark=dark))
    write(made, tmp_path / "x.png")
    assert imread(tmp_path / "x.png")[0, 0, :3] == pytest.approx(to_rgb(DARK if dark else "white"), abs=0.01)
    assert [colour in text for colour in (DARK, LIGHT, GREY, "#ffffff")] == [dark, dark, not dark, False]
