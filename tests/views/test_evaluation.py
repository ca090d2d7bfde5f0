"""The table of an evaluation in terminals and pipes."""

from __future__ import annotations

import io
import re
import sys

import msgspec
import pytest

from ropeconv.cli.screen import Screen
from ropeconv.evaluate.result import Result
from ropeconv.validate.validation import BucketResult, Validation
from ropeconv.views.results import show_result, show_validation

from ..evaluate.results import made
from ..support.in_process import Terminal, plain


def shown(result: Result, monkeypatch: pytest.MonkeyPatch, width: int = 80, **env: str) -> str:
    """What a terminal of that width is sent; a pipe with a width of 0."""
    screen = Terminal() if width else io.StringIO()
    for name, value in {"COLUMNS": str(width), "TERM": "xterm-256color", **env}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(sys, "stdout", screen)
    show_result(result, Screen())
    return screen.getvalue()


def test_six_rows_and_five_lengths_fit_eighty_columns_with_errors_below_their_numbers(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    lines = plain(shown(made(), monkeypatch)).splitlines()
    assert max(map(len, lines)) <= 80
    assert lines[1].split() == ["1/4T", "1T", "2T", "4T", "8T", "price", "holds", "to"]
    assert lines[4].split()[0] == "yarn:4"
    assert lines[5].split()[0].startswith("±")


def test_a_wide_terminal_has_errors_behind_their_numbers_and_what_is_decided_in_bold(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    result = made(measures=["growth"])
    text = shown(result, monkeypatch, 160)
    for row in ("yarn:4", "by-parts:4"):
        cell = result.cell(row, "growth", "loss", 2048)
        assert f"{cell.difference:+.3f} ±{cell.difference_error:.3f}" in plain(text)
        assert f"\x1b[{1 if cell.decided else 90}m{cell.difference:+.3f} " in text
    assert {cell.decided for cell in result.cells} == {True, False, None}
    assert "bold: differs from the first row, p < 0.0027" in text
    assert "*" not in text


@pytest.mark.parametrize(("width", "env"), [(0, {}), (100, {"NO_COLOR": "1"}), (100, {"TERM": "dumb"})])
def test_where_colours_are_not_there_a_star_marks_what_is_decided(
    width: int, env: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    result = made(measures=["growth"])
    text = plain(shown(result, monkeypatch, width, **env))
    for cell in (cell for cell in result.cells if cell.difference is not None):
        assert (f"{cell.difference:+.3f}*" in text) == bool(cell.decided)
    assert "*: differs from the first row, p < 0.0027" in " ".join(text.split())


def test_sentences_below_the_table_say_what_belongs_to_the_numbers(monkeypatch: pytest.MonkeyPatch) -> None:
    result = made(measures=["growth"])
    *others, last = result.rows
    refused = msgspec.structs.replace(last, refused="it does not fit")
    text = " ".join(shown(msgspec.structs.replace(result, rows=[*others, refused]), monkeypatch, 0).split())
    for said in (
        f"{last.name} was refused: it does not fit", "T: the trained context, 8,192 tokens",
        "tokens sha256 3f3f3f3f3f3f", "the errors are between windows of 1 text",
        "chance would mark",
    ):  # fmt: skip
        assert said in text


@pytest.mark.parametrize(("width", "columns"), [(200, 10), (70, 7), (40, 5)])
def test_a_validation_leaves_columns_out_where_a_terminal_is_narrow(
    monkeypatch: pytest.MonkeyPatch, width: int, columns: int
) -> None:
    bucket = BucketResult("1-63", 63, 1e-7, 2e-7, 3e-7, 1e-3, 1.0, 0.5, 1e-5, True)
    result = Validation("5.23.0", "cpu", "d" * 64, 64, 0, (bucket,), True, "PASS")
    monkeypatch.setenv("COLUMNS", str(width))
    monkeypatch.setattr(sys, "stdout", Terminal())
    show_validation(result, "x", Screen(), explain=width > 40)
    row = next(line for line in plain(sys.stdout.getvalue()).splitlines() if line.startswith("1-63"))
    assert len(re.split(r" {2,}", row)) == columns
