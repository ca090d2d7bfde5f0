"""docs/training.md: its table is that of the data, and its commands run one after the other."""

from __future__ import annotations

import pytest

from ropeconv.training import trainers
from scripts.trainer_table import PAGE, filled


def test_the_table_is_that_of_the_data() -> None:
    text = PAGE.read_text("utf-8")
    assert filled(text) == text, "run python scripts/trainer_table.py"


def test_another_version_is_noticed() -> None:
    text = PAGE.read_text("utf-8")
    version = trainers()["trl"].display_name
    assert filled(text.replace(f"| {version} |", "| TRL 0 |")) == text
    with pytest.raises(ValueError, match="0 tables"):
        filled(text.replace("| trainer |", "| gone |"))


def test_every_trainer_has_a_section() -> None:
    text = PAGE.read_text("utf-8")
    assert all(f"\n## {one.title}\n" in text and f"--for {one.name} --model" in text for one in trainers().values())
