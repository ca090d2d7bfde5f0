"""The record of whole tokenizers, and its table in docs/gguf.md."""

import json
from typing import Any

import pytest

from scripts.gather_pages import ROOT
from scripts.pages.tokenizer_table import (
    NAMES,
    note,
    outcome,
    tokenizer_table,
    tokenizers,
)

ROWS = {row["name"]: row for row in tokenizers()}
CONVERTED = {name: row for name, row in ROWS.items() if "refused" not in row}
FINDINGS = json.loads((ROOT / "docs/evidence/converter-findings.json").read_text("utf-8"))


def test_there_are_25_tokenizers_with_their_packages() -> None:
    assert len(CONVERTED) >= 25
    assert ROWS.keys() == NAMES.keys()
    for row in ROWS.values():
        assert row["strings"] == 200
        assert row["package"]
        assert row["version"]


@pytest.mark.parametrize("name", sorted(CONVERTED))
def test_a_plan_has_an_example_where_tokens_differ_and_nowhere_else(name: str) -> None:
    row = CONVERTED[name]
    assert 0 <= row["differ_composed"] <= row["differ"] <= row["strings"]
    assert bool(row["example"]) is (row["differ"] > 0)
    reasons = set()
    if row["differ"] > row["differ_composed"]:
        reasons.add("NFC")
    if row["differ_composed"]:
        reasons.add("words")
    assert set(row["noted"]) == reasons


def test_the_tokenizers_with_differences_are_these() -> None:
    """Qwen's and Cohere's compose characters, and the others end words in their own way."""
    composing = {"aya_expanse", "command_r_plus", "qwen1_5", "qwen2_5", "qwen3"}
    splitting = {"gpt4o", "gptoss", "mistral_nemo"}
    assert {name for name, row in CONVERTED.items() if "NFC" in row["noted"]} == composing
    assert {name for name, row in CONVERTED.items() if "words" in row["noted"]} == splitting
    assert ROWS.keys() - CONVERTED.keys() == {"claude"}
    assert "NFKC" in ROWS["claude"]["refused"]


def test_the_page_has_the_table_of_the_record() -> None:
    page = (ROOT / "docs/gguf.md").read_text("utf-8")
    assert tokenizer_table() in page


def test_a_row_says_what_differs() -> None:
    """The negative control of the table: other numbers give other cells."""
    row: dict[str, Any] = {"name": "yi", "differ": 0, "differ_composed": 0, "noted": {}}
    assert outcome(row) == "0"
    changed = row | {"differ": 3, "example": "x", "noted": {"NFC": ["xy", 1, 2]}}
    assert outcome(changed) == "3, such as 'x'; 0 after NFC"
    assert outcome(changed | {"differ_composed": 2}) == "3, such as 'x'"
    assert note(changed) == "'xy' 2 in place of 1"
    assert outcome({"refused": "..."}).startswith("not converted")


def test_the_findings_on_tokenizers_name_packages_of_the_record() -> None:
    versions = {f"{row['package']} {row['version']}" for row in ROWS.values()}
    named = [entry["input"] for entry in FINDINGS if "tokenizer-" in entry["input"]]
    assert len(named) == 4
    for words in named:
        assert any(version in words for version in versions), words
