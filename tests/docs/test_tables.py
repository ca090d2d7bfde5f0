"""The tables of README.md and docs/ are those of the data, and have every method: scripts/tables.py writes them."""

from __future__ import annotations

import msgspec
import pytest

from ropeconv.bake.advice import evidence
from ropeconv.cli.screen import Screen
from ropeconv.evaluate.result import Result
from ropeconv.views.results import show_result
from scripts.tables import PAGES, ROOT, filled


@pytest.mark.parametrize("page", PAGES)
def test_a_page_has_the_numbers_of_the_data(page: str) -> None:
    text = (ROOT / page).read_text("utf-8")
    assert filled(page, text) == text, "run python -m scripts.tables"


def test_the_page_and_advise_have_the_numbers_that_were_measured(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    result = msgspec.json.decode((ROOT / "docs/evidence/smollm2-2T.json").read_bytes(), type=Result)
    monkeypatch.setenv("COLUMNS", "110")
    show_result(result, Screen())
    page = (ROOT / "docs/evaluating.md").read_text("utf-8")
    rows = page.partition("--methods base,linear:2")[2].partition("```")[0].splitlines()[2:]
    assert len(rows) == 20
    assert set(rows) - {"..."} <= set(capsys.readouterr().out.splitlines())
    study = next(study for study in evidence().studies if study.source.endswith("a real model"))
    for column, numbers in ((16384, study.beyond), (8192, study.inside)):
        for name, number in numbers.items():
            cell = result.cell(f"{name}:2", "growth", "loss", column)
            assert number == (round(cell.difference or 0, 3) if cell else 0), (name, column)
