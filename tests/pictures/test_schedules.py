"""Pictures of schedules: what the lines are, and files that can be read anywhere."""

from __future__ import annotations

import json
import math
import warnings
from functools import partial
from pathlib import Path

import numpy as np
import pytest

from ropeconv import METHODS, Recipe, RopeSpec
from ropeconv.pictures.schedules import numbers, preference, ramp, wavelengths
from ropeconv.pictures.style import DARK, LINES, figure
from ropeconv.rope.bound.decay import score_bound
from ropeconv.rope.forms import Plain, base_inv_freq

from ..conftest import CONFIGS
from ..support.in_process import command

LLAMA_2 = CONFIGS / "meta-llama--Llama-2-7b-hf.json"
BEFORE = base_inv_freq(1e4, 128)
YARN = Recipe(METHODS["yarn"](8.0)).schedule(RopeSpec(128, 128, Plain(1e4), 4096, 4096)).inv_freq
LENGTHS = {"trained": 4096, "new": 32768}


def test_pairs_that_do_not_rotate_are_gaps_and_null() -> None:
    still = YARN.copy()
    still[3], still[60:] = 0, 0
    curves = {"some": still, "none": 0 * YARN}
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        made = figure(
            partial(wavelengths, before=BEFORE, curves=curves, lengths=LENGTHS),
            partial(ramp, before=BEFORE, curves=curves),
        )
    for axes, first, wanted in zip(made.axes, (1, 0), (math.tau / YARN, BEFORE / YARN), strict=True):
        some, none = (line.get_ydata() for line in axes.get_lines()[first : first + 2])
        assert np.flatnonzero(np.isnan(some)).tolist() == [3, 60, 61, 62, 63]
        np.testing.assert_allclose(some[4:60], wanted[4:60])
        assert np.isnan(none).all()
    found = numbers(BEFORE, still, 0.0, 4096)
    assert [at for at, one in enumerate(found["wavelengths"]) if one is None] == [3, 60, 61, 62, 63]
    assert found["divided_by"][3] is None
    json.dumps(found, allow_nan=False)


def test_lines_are_the_numbers() -> None:
    curves = {"yarn8": YARN}
    made = figure(
        partial(wavelengths, before=BEFORE, curves=curves, lengths=LENGTHS),
        partial(ramp, before=BEFORE, curves=curves),
        partial(preference, before=BEFORE, curves=curves, unrotated=0, length=32768, lengths=LENGTHS),
    )
    waves, divided, sums = made.axes
    np.testing.assert_allclose(waves.get_lines()[1].get_ydata(), math.tau / YARN)
    assert {line.get_ydata()[0] for line in waves.get_lines()[2:]} == {4096, 32768}
    np.testing.assert_allclose(divided.get_lines()[0].get_ydata(), BEFORE / YARN)
    at, lowest = sums.get_lines()[1].get_data()
    spot = int(np.argmin(lowest))
    assert lowest[spot] == pytest.approx(np.cos(at[spot] * YARN).sum(), abs=1e-4)
    assert lowest[at <= 8885].min() >= 0 > lowest.min()
    assert len({str(dashes) for _, dashes in LINES}) == len(LINES), "lines differ without their colours"


def plotted(folder: Path, name: str, *words: object) -> str:
    """The text of a picture that the command line draws."""
    command(folder, "plot", *words, "-o", name, code=0)
    return (folder / name).read_text()


def test_a_picture_of_several_methods(tmp_path: Path) -> None:
    methods = (LLAMA_2, "--yarn", "8", "--mixed", "8")
    text = plotted(tmp_path, "x.svg", *methods)
    assert text.startswith("<svg")
    for said in ("yarn8", "mixed8", "trained 4,096 tokens", "meta-llama- -Llama-2-7b-hf", "Bound on a score"):
        assert f"<!-- {said}" in text
    assert "fill: #ffffff" not in text, "a page in dark mode shows through"
    assert plotted(tmp_path, "again.svg", *methods) == text
    assert f"fill: {DARK}" in plotted(tmp_path, "dark.svg", LLAMA_2, "--yarn", "8", "--dark")


def test_the_numbers_of_a_picture(tmp_path: Path) -> None:
    done = command(tmp_path, "plot", LLAMA_2, "--yarn", "8", "--json", code=0)
    found = json.loads(done.stdout)
    assert (done.stderr, list(tmp_path.iterdir())) == ("", [])
    assert (found["model"], found["picture"]) == ("meta-llama--Llama-2-7b-hf", None)
    assert found["lengths"] == LENGTHS
    assert list(found["curves"]) == ["before", "yarn8"]
    yarn = found["curves"]["yarn8"]
    np.testing.assert_allclose(yarn["wavelengths"], math.tau / YARN)
    np.testing.assert_allclose(yarn["divided_by"], BEFORE / YARN)
    at, lowest = (np.array(yarn["preference"][name]) for name in ("distance", "lowest"))
    spot = int(np.argmin(lowest))
    assert lowest[spot] == pytest.approx(np.cos(at[spot] * YARN).sum(), abs=1e-4)
    assert (yarn["score_bound"]["distance"][0], yarn["score_bound"]["distance"][-1]) == (1, 65536)
    assert yarn["score_bound"]["bound"][0] == pytest.approx(score_bound(YARN, np.ones(1))[0])
    both = command(tmp_path, "plot", LLAMA_2, "--yarn", "8", "--json", "-o", "x.svg", code=0)
    assert json.loads(both.stdout) == found | {"picture": "x.svg"}
    assert (tmp_path / "x.svg").exists()


@pytest.mark.parametrize("given", [(), ("--dark", "--json")])
def test_a_picture_needs_a_name(tmp_path: Path, given: tuple[str, ...]) -> None:
    assert "add -o plot.svg" in command(tmp_path, "plot", LLAMA_2, *given, code=2).stderr


def test_pictures_of_models_as_they_are(tmp_path: Path) -> None:
    assert "divided by" not in plotted(tmp_path, "plain.svg", LLAMA_2)
    given = ("--theta", "500000", "--original-context", "8192", "--llama3", "8")
    assert "llama38" in plotted(tmp_path, "numbers.svg", *given)
    command(tmp_path, "plot", CONFIGS / "meta-llama--Meta-Llama-3.1-8B.json", "-o", "scaled.png", code=0)
    assert (tmp_path / "scaled.png").read_bytes().startswith(b"\x89PNG")
