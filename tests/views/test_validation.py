"""A validation on screens and in its report, and the curves of losses."""

import re
import sys
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

from ropeconv.cli.screen import Screen
from ropeconv.inspection.receipts.receipt import BeforeRecord, RuntimeRecord, ScheduleRecord
from ropeconv.inspection.receipts.storage import write_receipt
from ropeconv.validate.validation import BucketResult, Validation
from ropeconv.views.curves import Curve, losses
from ropeconv.views.plot_style import VARIABLES, Picture, drawn, figure
from ropeconv.views.reports import write_validation_report
from ropeconv.views.results import show_validation

from ..inspection.receipts.test_files import ONE
from ..inspection.receipts.test_folders import receipt
from ..support.in_process import Terminal, plain


@pytest.mark.parametrize(("width", "columns"), [(200, 10), (70, 7), (40, 5)])
def test_a_validation_leaves_columns_out_where_a_terminal_is_narrow(
    monkeypatch: pytest.MonkeyPatch, width: int, columns: int
) -> None:
    bucket = BucketResult("1-63", 63, 1e-7, 2e-7, 3e-7, 1e-3, 1.0, 0.5, 1e-5, True)
    result = Validation("5.23.0", "cpu", "d" * 64, 64, 0, (bucket,), True, "PASS")
    monkeypatch.setenv("COLUMNS", str(width))
    monkeypatch.setattr(sys, "stdout", Terminal())
    show_validation(result, "x", Screen(), explain=width > 40)
    row = next(
        line for line in plain(sys.stdout.getvalue()).splitlines() if line.startswith("1-63")
    )
    assert len(re.split(r" {2,}", row)) == columns


# Pictures of evaluations, by themselves and in a page: what the lines, bands and shades are


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


def test_a_picture_of_a_page_has_its_colours_and_loads_nothing_and_words_are_as_they_are_written() -> (
    None
):
    odd = {"base": BASE, "<b>&$x_y$": YARN}
    (picture,) = drawn(
        [Picture(partial(of_losses, curves=odd, title="a $x_y$ <b>"), "What it shows.")]
    )
    assert not [colour for colour in VARIABLES if colour in picture.svg]
    assert "var(--blue)" in picture.svg
    assert not re.search(r"""(src|href)=["']?https?:|<metadata|<script""", picture.svg)
    words = set(re.findall(r"<text[^>]*>([^<]*)</text>", picture.svg))
    assert words >= {
        "1k",
        "length, tokens",
        "trained 8k",
        "&lt;b&gt;&amp;$x_y$",
    }, "neither tags nor formulas"
    assert (picture.title, picture.caption) == ("a $x_y$ <b>", "What it shows.")


# The report of a validation, which says only whether the method is computed

BUCKET = BucketResult("1-63", 63, 1e-7, 2e-7, 3e-7, 1e-3, 1.0, 0.5, 1e-5, True)
RESULT = Validation(
    "5.23.0",
    "cpu",
    "d" * 64,
    64,
    0,
    (BUCKET,),
    True,
    "PASS: matches the reference at every position.",
)


def page(folder: Path, result: Validation = RESULT) -> str:
    write_validation_report(result, folder, "model", folder / "report.html")
    return (folder / "report.html").read_text()


def test_what_was_measured_stands_in_the_report(tmp_path: Path) -> None:
    write_receipt(
        tmp_path, receipt(evaluations=(ONE, msgspec.structs.replace(ONE, texts=("<b>.txt",))))
    )
    text = page(tmp_path)
    assert "<td>growth, loss</td><td>8,192</td>" in text
    assert "<td>3.100 ± 0.100</td>" in text
    assert "<td>base</td>\n<td>+0.030</td>" in text
    assert "&lt;b&gt;.txt" in text
    assert "has not measured" not in text


def test_without_evaluations_and_receipt_the_report_says_so_and_leaves_their_parts_out(
    tmp_path: Path,
) -> None:
    text = page(tmp_path)
    assert "<code>ropeconv eval</code>, which was not run on this output." in text
    assert not [
        heading for heading in ("<h2>Recipe", "<h2>Runtimes", "<h2>What changed") if heading in text
    ]


def test_recipe_runtimes_size_and_date_stand_in_the_report(tmp_path: Path) -> None:
    before = BeforeRecord("default", "yarn", 1.0, 4096, 4096, None, None)
    runs = (
        RuntimeRecord("vllm@0.33", "exact", "", "", "vLLM <0.33>", "run"),
        RuntimeRecord("x@1", "refused"),
    )
    recipe = {"method": "yarn", "parameters": {"factor": 4.0, "truncate": True}}
    schedule = ScheduleRecord(
        digest="d", inv_freq=(), attention_factor=1.25, context=16384, original_context=4096
    )
    write_receipt(tmp_path, receipt(recipe=recipe, before=before, schedule=schedule, runtimes=runs))
    text = page(tmp_path)
    for words in (
        "<td>factor 4, truncate on</td>",
        "<td>4,096 tokens, then 16,384</td>",
        "<td>1, then 1.25</td>",
        '<th scope="row">exact</th><td>vLLM &lt;0.33&gt;</td>',
        '<th scope="row">refused</th><td>x 1</td>',
    ):
        assert words in text
