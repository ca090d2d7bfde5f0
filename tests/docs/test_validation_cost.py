"""The costs in docs/validating.md are those of their record, and within what is promised."""

import json
from typing import Any

from scripts.gather_pages import ROOT

RECORD: dict[str, Any] = json.loads(
    (ROOT / "docs/evidence/validation-cost.json").read_text("utf-8")
)
PAGE = (ROOT / "docs/validating.md").read_text("utf-8")
PROMISED = 2.2
"""The most of two bare passes that a validation costs."""


def test_the_page_has_the_numbers_of_the_record() -> None:
    seconds = RECORD["llama-60M"]["cpu_seconds"]
    words = " ".join(PAGE.split())
    assert f"takes {seconds['ratio of the command']:.2f} times the processor time" in words
    assert f"without the rest takes {seconds['ratio of the comparison']:.2f} times theirs" in words


def test_the_ratios_follow_from_the_seconds_and_are_small_enough() -> None:
    for model, entry in RECORD.items():
        seconds = entry["cpu_seconds"]
        command = seconds["whole command"] / seconds["two bare passes, with imports"]
        comparison = seconds["comparison of logits"] / seconds["two bare passes"]
        assert round(command, 2) == seconds["ratio of the command"], model
        assert round(comparison, 2) == seconds["ratio of the comparison"], model
        assert max(command, comparison) <= PROMISED, model
