"""Pictures of schedules: what the lines are, and files that can be read anywhere."""

import json
import math
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from matplotlib.colors import to_rgb

from ropeconv import METHODS, Recipe, RopeSpec
from ropeconv.rope.bound.sums import score_bound
from ropeconv.rope.forms import Plain, base_inv_freq
from ropeconv.views.plot_style import DARK, GREY, LIGHT, LINES, RED, figure
from ropeconv.views.schedule_plots import (
    draw_frequency_divisors,
    numbers,
    preference,
    wavelengths,
)

from ..conftest import CONFIGS
from ..support.in_process import command

LLAMA_2 = CONFIGS / "meta-llama--Llama-2-7b-hf.json"
BEFORE = base_inv_freq(1e4, 128)
YARN = Recipe(METHODS["yarn"](8.0)).schedule(RopeSpec(128, 128, Plain(1e4), 4096, 4096)).inv_freq
LENGTHS = {"trained": 4096, "new": 32768}


def test_lines_are_the_numbers_and_pairs_that_do_not_rotate_are_gaps() -> None:
    still = YARN.copy()
    still[3], still[60:] = 0, 0
    curves = {"some": still, "all": YARN}
    plot = figure(
        partial(wavelengths, before=BEFORE, curves=curves, lengths=LENGTHS),
        partial(draw_frequency_divisors, before=BEFORE, curves=curves),
        partial(
            preference,
            before=BEFORE,
            curves={"yarn8": YARN},
            unrotated=0,
            length=32768,
            lengths=LENGTHS,
        ),
    )
    for axes, first, expected in zip(
        plot.axes, (1, 0), (math.tau / YARN, BEFORE / YARN), strict=False
    ):
        some, whole = (line.get_ydata() for line in axes.get_lines()[first : first + 2])
        assert np.flatnonzero(np.isnan(some)).tolist() == [3, 60, 61, 62, 63]
        np.testing.assert_allclose(whole, expected)
    assert {line.get_ydata()[0] for line in plot.axes[0].get_lines()[3:]} == {4096, 32768}
    at, lowest = plot.axes[2].get_lines()[1].get_data()
    spot = int(np.argmin(lowest))
    assert lowest[spot] == pytest.approx(np.cos(at[spot] * YARN).sum(), abs=1e-4)
    curve = numbers(BEFORE, still, 0.0, 4096)
    assert [at for at, wavelength in enumerate(curve["wavelengths"]) if wavelength is None] == [
        3,
        60,
        61,
        62,
        63,
    ]


def plotted(folder: Path, name: str, *words: object) -> str:
    """The text of a picture that the command line draws."""
    command(folder, "plot", *words, "-o", name, code=0)
    return (folder / name).read_text()


def test_a_picture_of_several_methods(tmp_path: Path) -> None:
    methods = (LLAMA_2, "--yarn", "8", "--mixed", "8")
    text = plotted(tmp_path, "x.svg", *methods)
    assert text.startswith("<svg")
    for comment in (
        "yarn8",
        "mixed8",
        "trained 4,096 tokens",
        "meta-llama- -Llama-2-7b-hf",
        "Upper bound of attention scores",
    ):
        assert f"<!-- {comment}" in text
    assert "fill: #ffffff" not in text, "a page in dark mode shows through"
    assert plotted(tmp_path, "again.svg", *methods) == text
    assert f"fill: {DARK}" in plotted(tmp_path, "dark.svg", LLAMA_2, "--yarn", "8", "--dark")


def test_the_numbers_of_a_picture(tmp_path: Path) -> None:
    done = command(tmp_path, "plot", LLAMA_2, "--yarn", "8", "--json", code=0)
    document = json.loads(done.stdout)
    assert (done.stderr, list(tmp_path.iterdir())) == ("", [])
    assert (document["model"], document["picture"]) == ("meta-llama--Llama-2-7b-hf", None)
    assert list(document["curves"]) == ["before", "yarn8"]
    yarn = document["curves"]["yarn8"]
    np.testing.assert_allclose(yarn["wavelengths"], math.tau / YARN)
    np.testing.assert_allclose(yarn["divided_by"], BEFORE / YARN)
    assert yarn["score_bound"]["bound"][0] == pytest.approx(score_bound(YARN, np.ones(1))[0])


def luminance(colour: tuple[float, ...]) -> float:
    """As WCAG 2 defines it: https://www.w3.org/TR/WCAG22/#dfn-relative-luminance"""
    red, green, blue = (
        part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in colour
    )
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def contrast(foreground: Any, other: Any) -> float:
    """As WCAG 2 defines it: https://www.w3.org/TR/WCAG22/#dfn-contrast-ratio"""
    low, high = sorted(luminance(to_rgb(colour)) for colour in (foreground, other))
    return (high + 0.05) / (low + 0.05)


@pytest.mark.parametrize("background", ["white", DARK, "black"])
def test_curves_are_seen_and_text_is_read_on_light_and_dark(background: str) -> None:
    assert (
        min(contrast(colour, background) for colour in [RED, *(colour for colour, _ in LINES)]) >= 3
    )
    assert contrast(LIGHT if background == DARK else GREY, background) >= 4.5
