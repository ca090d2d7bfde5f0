"""The table of an evaluation in terminals and pipes, and its picture of retrieval."""

import io
import re
import sys
from functools import partial

import msgspec
import numpy as np
import pytest

from ropeconv.bake.proof import wilson
from ropeconv.cli.screen import Screen
from ropeconv.features.evaluation.plots import heat_map
from ropeconv.features.evaluation.result import Result
from ropeconv.features.evaluation.views import show_result
from ropeconv.views.plot_style import figure

from ...support.in_process import Terminal, plain
from .results import made


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
    assert re.search("bold: .* p < 0.0027", text)
    assert "*" not in text


@pytest.mark.parametrize(
    ("width", "env"), [(0, {}), (100, {"NO_COLOR": "1"}), (100, {"TERM": "dumb"})]
)
def test_where_colours_are_not_there_a_star_marks_what_is_decided(
    width: int, env: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    result = made(measures=["growth"])
    text = plain(shown(result, monkeypatch, width, **env))
    for cell in (cell for cell in result.cells if cell.difference is not None):
        assert (f"{cell.difference:+.3f}*" in text) == bool(cell.decided)
    assert re.search(r"\*: .* p < 0.0027", " ".join(text.split()))


def test_sentences_below_the_table_say_what_belongs_to_the_numbers(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    result = made(measures=["growth"])
    *others, last = result.rows
    refused = msgspec.structs.replace(last, refused="it does not fit")
    text = " ".join(
        shown(msgspec.structs.replace(result, rows=[*others, refused]), monkeypatch, 0).split()
    )
    for sentence in (
        f"{last.name} was refused: it does not fit",
        "T: the trained context, 8,192 tokens",
        "tokens sha256 3f3f3f3f3f3f",
        "the errors are between windows of 1 text",
        "chance would mark",
    ):
        assert sentence in text


def test_a_heat_map_is_the_shares_by_depth_and_length() -> None:
    shares = np.array([[1.0, 0.5], [0.0, np.nan]])
    axes = figure(
        partial(
            heat_map,
            shares=shares,
            lengths=[8192, 32768],
            depths=[0.0, 1.0],
            trained=8192,
            title="passkey",
        )
    ).axes[0]
    np.testing.assert_array_equal(axes.images[0].get_array().filled(np.nan), shares)
    assert {text.xy: text.get_text() for text in axes.texts} == {
        (0, 0): "100",
        (1, 0): "50",
        (0, 1): "0",
    }
    assert {line.get_xdata()[0] for line in axes.get_lines()} == {0.5}, "behind the trained length"


@pytest.mark.parametrize(
    ("documents", "sample"),
    [(12, "4 texts, 20 questions"), (1, "4 windows of 1 text, 20 questions")],
)
def test_a_table_of_shares_says_how_many_questions_it_is_of(
    documents: int, sample: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """4 windows at 5 depths. The interval of one text is Wilson's of 20 answers."""
    result = made(measures=["passkey"], documents=documents)
    cell = result.cell("base", "passkey", "accuracy", 2048)
    assert cell.questions == 20
    if documents == 1:
        low, high = wilson(cell.value, cell.questions)
        assert (cell.low, cell.high) == pytest.approx((low, high))
    assert sample in " ".join(shown(result, monkeypatch, 0).split())
