"""docs/training.md has a section for every trainer."""

from __future__ import annotations

from pathlib import Path

from ropeconv.training import trainers

PAGE = Path(__file__).parents[2] / "docs" / "training.md"


def test_every_trainer_has_a_section() -> None:
    text = PAGE.read_text("utf-8")
    assert all(f"\n## {one.title}\n" in text and f"--for {one.name} --model" in text for one in trainers().values())
