"""The table of docs/exports.md has every family that becomes GGUF, and nothing in it is far from transformers."""

from __future__ import annotations

from pathlib import Path

import pytest

from ropeconv.families.registry import by_model_type

from ..support.llamacpp import EXPORTED

DOCS = Path(__file__).parents[2] / "docs" / "exports.md"
ROWS = [
    [cell.strip() for cell in line.strip("|\n").split("|")]
    for line in DOCS.read_text().partition("begin of the table")[2].partition("<!-- end")[0].splitlines()[3:]
    if line.startswith("| ")
]


def test_every_exported_model_type_has_a_row_with_its_architecture() -> None:
    rules = {name: by_model_type()[name].gguf for name in EXPORTED}
    assert [(row[0], row[1]) for row in ROWS] == [(name, rule.arch) for name, rule in rules.items() if rule]


@pytest.mark.parametrize("row", ROWS, ids=[row[0] for row in ROWS])
def test_measured_divergences_are_small_and_the_control_is_not(row: list[str]) -> None:
    measured = [float(cell) for cell in row[2:-1] if cell != "-"]
    assert measured
    assert max(measured) <= 2e-5  # gemma2's activation is a table of 16-bit floats in llama.cpp
    assert float(row[-1]) > 100 * max(measured)
