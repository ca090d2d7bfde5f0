"""The table of an evaluation in terminals and pipes."""

from __future__ import annotations

import io
import re
import sys

import msgspec
import pytest

from ropeconv.cli.output import Output
from ropeconv.evaluate.result import Result
from ropeconv.views.evaluation import show_result

from ..evaluate.results import made


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def shown(result: Result, monkeypatch: pytest.MonkeyPatch, width: int = 80, **env: str) -> str:
    """What a terminal of that width is sent; a pipe with a width of 0."""
    screen = Terminal() if width else io.StringIO()
    for name, value in {"COLUMNS": str(width), "TERM": "xterm-256color", **env}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(sys, "stdout", screen)
    show_result(result, Output())
    return screen.getvalue()


def plain(text: str) -> str:
    return re.sub(r"\x1b\[[0-9;]*m", "", text)


def test_six_rows_and_five_lengths_fit_eighty_columns(monkeypatch: pytest.MonkeyPatch) -> None:
    text = plain(shown(made(), monkeypatch))
    assert max(map(len, text.splitlines())) <= 80
    lines = text.splitlines()
    assert lines[1].split() == ["1/4T", "1T", "2T", "4T", "8T", "price", "holds", "to"]
    assert lines[4].split()[0] == "yarn:4"
    assert lines[5].split()[0].startswith("±"), "errors stand below their numbers"


def test_errors_stand_behind_their_numbers_where_there_is_room(monkeypatch: pytest.MonkeyPatch) -> None:
    result = made(measures=["growth"])
    cell = result.cell("yarn:4", "growth", "loss", 16384)
    assert cell is not None
    wanted = f"{cell.difference:+.3f} ±{cell.difference_error:.3f}"
    assert wanted in plain(shown(result, monkeypatch, 160))
    assert wanted not in plain(shown(result, monkeypatch, 80))


def test_what_is_decided_is_bold_and_what_is_not_is_grey(monkeypatch: pytest.MonkeyPatch) -> None:
    result = made(measures=["growth"])
    text = shown(result, monkeypatch, 160)
    for row in ("yarn:4", "by-parts:4"):
        cell = result.cell(row, "growth", "loss", 2048)
        assert cell is not None
        style = "1" if cell.decided else "90"
        assert f"\x1b[{style}m{cell.difference:+.3f} " in text
    assert {c.decided for c in result.cells} == {True, False, None}
    assert "Bold: beyond three standard errors" in text
    assert "*" not in text


@pytest.mark.parametrize(("width", "env"), [(0, {}), (100, {"NO_COLOR": "1"}), (100, {"TERM": "dumb"})])
def test_where_colours_are_not_there_a_star_marks_what_is_decided(
    width: int, env: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    result = made(measures=["growth"])
    text = plain(shown(result, monkeypatch, width, **env))
    for cell in result.cells:
        if cell.difference is not None:
            assert (f"{cell.difference:+.3f}*" in text) == bool(cell.decided)
    assert "*: beyond three standard errors" in text


def test_what_belongs_to_the_numbers_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    result = made(measures=["growth"])
    rows = [
        msgspec.structs.replace(row, refused="it does not fit" if row.name == "ntk:4" else "") for row in result.rows
    ]
    text = " ".join(shown(msgspec.structs.replace(result, rows=rows), monkeypatch, 0).split())
    assert "ntk:4 was not run: it does not fit" in text
    assert "T is the trained context, 8,192 tokens" in text
    assert "sha256 of the tokens 3f3f3f3f3f3f" in text
    assert "Growth: one text, so errors are between places of the text" in text
    assert "would pass them by chance" in text


def test_a_single_row_is_compared_with_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    text = shown(made("base", ["growth"]), monkeypatch, 0)
    assert "minus" not in text
    assert "three standard errors" not in text
