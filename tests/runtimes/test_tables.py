"""The numbers of README.md and docs/runtimes.md are those of the data: scripts/runtime_tables.py writes them."""

from __future__ import annotations

import re

import pytest

from ropeconv.bake.matrix import matrix
from scripts.runtime_tables import PARTS, ROOT, filled


@pytest.mark.parametrize("page", PARTS)
def test_a_page_has_the_numbers_of_the_data(page: str) -> None:
    text = (ROOT / page).read_text("utf-8")
    assert filled(page, text) == text, "run python scripts/runtime_tables.py"


@pytest.mark.parametrize("page", PARTS)
def test_a_number_that_is_not_of_the_data_is_noticed(page: str) -> None:
    text = (ROOT / page).read_text("utf-8")
    wrong = text.replace(f"{len(matrix()):,}", f"{len(matrix()) + 1:,}")
    assert wrong != text
    assert filled(page, wrong) == text


def test_a_page_without_its_table_is_refused() -> None:
    text = re.sub(r"\| runtime \| has \|", "| gone |", (ROOT / "README.md").read_text("utf-8"))
    with pytest.raises(ValueError, match=r"README\.md has 0 parts"):
        filled("README.md", text)
