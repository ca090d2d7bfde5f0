"""The costs in docs/validating.md are those of their record, and within what is promised."""

import json
from typing import Any

import pytest

from ropeconv.validate.sampling import MAIN_PASSES, PART_TOKENS, SPREAD_TOKENS, VARIANT_PASSES
from scripts.gather_pages import ROOT

RECORD: dict[str, Any] = json.loads(
    (ROOT / "docs/evidence/validation-cost.json").read_text("utf-8")
)
PAGE = (ROOT / "docs/validating.md").read_text("utf-8")
PROMISED = 2.2
"""The most of two bare passes that a validation costs."""


ROWS = {"SmolLM2-135M": "SmolLM2-135M", "llama-60M": "a Llama of 60M random weights"}
"""The rows of the page by the names of the record."""


def test_the_page_has_the_numbers_of_the_record() -> None:
    assert ROWS.keys() == RECORD.keys()
    for model, words in ROWS.items():
        seconds = RECORD[model]["cpu_seconds"]
        comparison = f"{seconds['ratio of the comparison']:.2f}"
        command = f"{seconds['ratio of the command']:.2f}"
        assert f"| {words} | {comparison} | {command} |" in PAGE


def test_the_ratios_follow_from_the_seconds_and_are_small_enough() -> None:
    for model, entry in RECORD.items():
        seconds = entry["cpu_seconds"]
        command = seconds["whole command"] / seconds["two bare passes, with imports"]
        comparison = seconds["comparison of logits"] / seconds["two bare passes"]
        assert round(command, 2) == seconds["ratio of the command"], model
        assert round(comparison, 2) == seconds["ratio of the comparison"], model
        assert max(command, comparison) <= PROMISED, model


def test_the_passes_by_which_a_plan_estimates_are_those_of_the_record() -> None:
    """A run of 512 tokens and its part of 128 cost 3.5 passes, over two bare ones."""
    part = PART_TOKENS / SPREAD_TOKENS
    passes = MAIN_PASSES + (MAIN_PASSES + VARIANT_PASSES) * part
    for model, entry in RECORD.items():
        measured = entry["cpu_seconds"]["ratio of the comparison"]
        assert passes / 2 == pytest.approx(measured, rel=0.1), model
