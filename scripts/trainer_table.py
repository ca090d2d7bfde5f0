"""Writes the table of trainers in docs/training.md, from ropeconv/training/data.

    python scripts/trainer_table.py

tests/docs/test_training.py compares it with the data.
"""

from __future__ import annotations

import re
from pathlib import Path

from ropeconv.training import trainers

PAGE = Path(__file__).parents[1] / "docs" / "training.md"
TABLE = re.compile(r"\| trainer \| what it does \|.*?(?=\n\n)", re.DOTALL)


def trainer_table() -> str:
    """The table: a line per statement, with how it is known."""
    lines = ["| trainer | what it does | how it is known |", "|---|---|---|"]
    for trainer in trainers().values():
        for fact in trainer.facts:
            known = f"run: {fact.source}" if fact.run else f"{fact.source}"
            lines.append(f"| {trainer.display_name} | {fact.says} | {known} |")
    return "\n".join(lines)


def filled(text: str) -> str:
    """The text of the page with the table of the data. Raises ValueError where there is not one table."""
    text, number = TABLE.subn(lambda _: trainer_table(), text)
    if number != 1:
        raise ValueError(f"{PAGE.name} has {number} tables of trainers, not one")
    return text


if __name__ == "__main__":
    PAGE.write_text(filled(PAGE.read_text("utf-8")), encoding="utf-8")
