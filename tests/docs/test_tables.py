"""The tables of README.md and docs/ are those of the data, and have every method: scripts/tables.py writes them."""

from __future__ import annotations

import pytest

from scripts.tables import PAGES, ROOT, filled


@pytest.mark.parametrize("page", PAGES)
def test_a_page_has_the_numbers_of_the_data(page: str) -> None:
    text = (ROOT / page).read_text("utf-8")
    assert filled(page, text) == text, "run python -m scripts.tables"
