"""The tables of README.md and docs/ are those of the data: scripts/tables.py writes them."""

from __future__ import annotations

import re

import pytest

from ropeconv.bake.matrix import matrix
from ropeconv.training import trainers
from scripts.tables import PARTS, ROOT, filled

CELLS = f"{len(matrix()):,}"
SHOWN = {"README.md": CELLS, "docs/runtimes.md": CELLS, "docs/training.md": f"| {trainers()['trl'].display_name} |"}
"""A text of the data that each page shows."""


@pytest.mark.parametrize("page", PARTS)
def test_a_page_has_the_numbers_of_the_data(page: str) -> None:
    text = (ROOT / page).read_text("utf-8")
    assert filled(page, text) == text, "run python scripts/tables.py"


@pytest.mark.parametrize("page", PARTS)
def test_another_text_is_noticed(page: str) -> None:
    text = (ROOT / page).read_text("utf-8")
    wrong = text.replace(SHOWN[page], re.sub(r"\d", "0", SHOWN[page]))
    assert wrong != text
    assert filled(page, wrong) == text


def test_a_page_without_its_table_is_refused() -> None:
    text = re.sub(r"\| runtime \| has \|", "| gone |", (ROOT / "README.md").read_text("utf-8"))
    with pytest.raises(ValueError, match=r"README\.md has 0 parts"):
        filled("README.md", text)
