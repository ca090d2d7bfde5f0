"""The report of an evaluation, and its pictures."""

from __future__ import annotations

import html
import re
from pathlib import Path

import msgspec
import pytest

from ropeconv.evaluate.result import Result
from ropeconv.views.reports import write_evaluation_report

from .results import made


@pytest.fixture(scope="module")
def result() -> Result:
    return made("base,yarn:4,linear:4")


def page(result: Result, folder: Path) -> str:
    write_evaluation_report(result, folder / "r.html")
    return (folder / "r.html").read_text()


def test_the_page_has_tables_pictures_and_how_it_was_measured(result: Result, tmp_path: Path) -> None:
    text, cell = page(result, tmp_path), result.cell("yarn:4", "growth", "loss", 16384)
    assert f'<td class="decided">{cell.difference:+.3f} <span class="error">±{cell.difference_error:.3f}</span>' in text
    assert text.count("<tr><td>yarn:4</td>") == 3 + len([c for c in result.cells if c.row == "yarn:4"])
    assert text.count("<figcaption ") == text.count("<figure>") == text.count("<svg") == 6
    assert '<th scope="row">linear:4</th><td>linear: factor 4</td>' in text
    for said in ("loss of the same tokens under a growing context", result.tokens_sha256):
        assert said in text
    assert all(html.escape(note[1:]) in text for note in result.notes)
    assert re.search(r"Written</th><td>20\d\d-", text)
    assert "{{" not in text
    assert not re.search(r"""(src|href)=["']?(https?:|//)""", text), "a page that loads nothing from elsewhere"


def test_names_are_escaped_and_a_page_may_have_no_numbers(tmp_path: Path) -> None:
    result = made("base", ["growth"])
    evil = msgspec.structs.replace(
        result, source="<script>alert(1)</script>", notes=["<b>"], cells=[],
        rows=[*result.rows, msgspec.structs.replace(result.rows[0], name="<u>", refused="<img>")],
    )  # fmt: skip
    text = page(evil, tmp_path)
    assert "&lt;script&gt;" in text
    assert not any(tag in text for tag in ("<script", "<u>", "<img", "<p><b>", "<svg"))
