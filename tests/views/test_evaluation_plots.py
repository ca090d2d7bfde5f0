"""Pictures of evaluations, by themselves and in a page: what the lines, bands and shades are."""

from __future__ import annotations

import re
from functools import partial
from typing import Any

import numpy as np
import pytest

from ropeconv.views.evaluation_plots import Curve, heat_map, losses
from ropeconv.views.plot_style import VARIABLES, Picture, drawn, figure

LENGTHS = np.array([1024.0, 8192.0, 32768.0])
BASE = Curve(LENGTHS, np.array([3.1, 3.0, 6.0]), np.array([0.05, 0.06, 0.07]))
YARN = Curve(LENGTHS, np.array([3.2, 3.05, 2.9]), np.array([0.01, np.nan, 0.03]))
CURVES = {"base": BASE, "yarn:4": YARN}
of_losses = partial(losses, curves=CURVES, trained=8192, title="growth")


def band(axes: Any, length: float) -> tuple[float, float]:
    """The lowest and highest place of the first band at a length."""
    corners = axes.collections[0].get_paths()[0].vertices
    heights = corners[corners[:, 0] == length][:, 1]
    return heights.min(), heights.max()


def test_curves_are_the_numbers_with_bands_of_one_error_and_the_trained_length_marked() -> None:
    axes = figure(of_losses).axes[0]
    base, yarn, trained = axes.get_lines()
    np.testing.assert_allclose(base.get_xydata(), np.column_stack([LENGTHS, BASE.y]))
    np.testing.assert_allclose(yarn.get_ydata(), YARN.y)
    assert set(trained.get_xdata()) == {8192}
    assert band(axes, 32768) == pytest.approx((6.0 - 0.07, 6.0 + 0.07))
    assert [text.get_text() for text in axes.texts] == ["trained 8k"]


def test_a_heat_map_is_the_shares_by_depth_and_length() -> None:
    shares = np.array([[1.0, 0.5], [0.0, np.nan]])
    axes = figure(
        partial(heat_map, shares=shares, lengths=[8192, 32768], depths=[0.0, 1.0], trained=8192, title="passkey")
    ).axes[0]
    np.testing.assert_array_equal(axes.images[0].get_array().filled(np.nan), shares)
    assert {text.xy: text.get_text() for text in axes.texts} == {(0, 0): "100", (1, 0): "50", (0, 1): "0"}
    assert {line.get_xdata()[0] for line in axes.get_lines()} == {0.5}, "behind the trained length"


def test_a_picture_of_a_page_has_its_colours_and_loads_nothing_and_words_are_as_they_are_written() -> None:
    odd = {"base": BASE, "<b>&$x_y$": YARN}
    (found,) = drawn([Picture(partial(of_losses, curves=odd, title="a $x_y$ <b>"), "What it shows.")])
    assert not [colour for colour in VARIABLES if colour in found.svg]
    assert "var(--blue)" in found.svg
    assert not re.search(r"""(src|href)=["']?https?:|<metadata|<script""", found.svg)
    words = set(re.findall(r"<text[^>]*>([^<]*)</text>", found.svg))
    assert words >= {"1k", "length, tokens", "trained 8k", "&lt;b&gt;&amp;$x_y$"}, "neither tags nor formulas"
    assert (found.title, found.caption) == ("a $x_y$ <b>", "What it shows.")
