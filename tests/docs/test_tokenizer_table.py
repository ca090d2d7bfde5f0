"""The record of whole tokenizers, and its table in docs/gguf.md."""

import json
from typing import Any

import pytest

from scripts.gather_pages import ROOT
from scripts.pages.tokenizer_table import (
    NAMES,
    note,
    outcome,
    read_keys,
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


# The keys, beside those of llama.cpp's own converter

KEYS = {row["name"]: row for row in read_keys()}
PREFIX = "tokenizer.ggml."
PIECES = {name for name, row in CONVERTED.items() if row["pre"] == "sentencepiece"}
LISTS = {"scores", "token_type", "tokens"}
"""Keys of SentencePiece with an entry for each token."""


def test_the_keys_are_those_of_the_same_packages() -> None:
    assert KEYS.keys() == ROWS.keys()
    for name, row in KEYS.items():
        assert (row["package"], row["version"]) == (ROWS[name]["package"], ROWS[name]["version"])
        assert len({"own_refuses", "stock_stops", "differ"} & row.keys()) == 1
    assert {name for name, row in KEYS.items() if "own_refuses" in row} == {"claude"}


def test_special_tokens_flags_and_templates_are_equal_everywhere() -> None:
    differing = set()
    for row in KEYS.values():
        differing |= row.get("differ", {}).keys()
    explained = {"add_space_prefix", "merges", "model", "pre", *LISTS}
    assert differing <= {PREFIX + name for name in explained}


@pytest.mark.parametrize("name", sorted(CONVERTED.keys() - PIECES))
def test_byte_level_keys_differ_as_the_page_says(name: str) -> None:
    row = KEYS[name]
    if "stock_stops" in row:
        assert "pre-tokenizer was not recognized" in row["stock_stops"]
        return
    differing = {key.removeprefix(PREFIX): value for key, value in row["differ"].items()}
    assert differing.keys() <= {"pre", "add_space_prefix"}
    if "add_space_prefix" in differing:
        assert differing["add_space_prefix"] == {"own": None, "stock": False}
    if "pre" in differing:
        stock = {"llama-bpe": "smaug-bpe", "deepseek-v3": "joyai-llm"}
        assert stock[differing["pre"]["own"]] == differing["pre"]["stock"]


@pytest.mark.parametrize("name", sorted(PIECES))
def test_keys_of_pieces_differ_as_the_page_says(name: str) -> None:
    row = KEYS[name]
    if "stock_stops" in row:
        assert row["model_type"] in ("gemma", "gemma2")
        assert "tokenizer.model" in row["stock_stops"]
        return
    differing = {key.removeprefix(PREFIX): value for key, value in row["differ"].items()}
    if name == "gemma3":
        assert differing["model"] == {"own": "llama", "stock": "gpt2"}
        return
    assert differing.keys() <= {"add_space_prefix", *LISTS}
    assert differing["add_space_prefix"]["stock"] is None
    assert "scores" in differing
