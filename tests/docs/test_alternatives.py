"""The table of README.md about other ways has the numbers of its record."""

import json
import re
from typing import Any

import pytest

from scripts.gather_pages import ROOT

RECORD: dict[str, Any] = json.loads((ROOT / "docs/evidence/alternatives.json").read_text("utf-8"))
WAYS = RECORD["ways"]
README = (ROOT / "README.md").read_text("utf-8")
SECTION = README.partition("## Instead of editing by hand")[2].partition("\n## ")[0]


def row(words: str) -> list[str]:
    """The cells of the row of the table that begins with a way."""
    (line,) = [line for line in SECTION.splitlines() if line.startswith(f"| `{words}")]
    return [cell.strip() for cell in line.strip("|").split(" | ")]


def seconds(way: dict[str, Any]) -> str:
    checks = way["seconds"] - way["seconds_unchecked"]
    return f"{way['seconds']:.1f}, of which {checks:.1f} for checks"


def test_the_model_is_that_of_the_record() -> None:
    model = RECORD["model"]
    assert f"{model['bytes'] / 1e6:.0f} MB" in SECTION
    assert f"{model['trained']:,} tokens, extended {model['factor']} times" in SECTION
    assert RECORD["command"] in SECTION


def test_the_rows_of_ropeconv_have_its_numbers() -> None:
    folder = row("ropeconv apply MODEL")
    way = WAYS["apply"]
    assert folder[1:3] == [f"{way['bytes'] / 1e3:.0f} kB", seconds(way)]
    expected = f"{way['exact']} of {way['loading']} runtimes, at {way['declared']:,} tokens"
    assert folder[3].startswith(expected)
    file = row("ropeconv apply FILE.gguf")
    way = WAYS["apply-gguf"]
    assert file[1:3] == [f"{way['bytes'] / 1e3:.0f} kB, its header", seconds(way)]
    assert way["scaled"]
    assert way["declared"] == WAYS["apply"]["declared"]
    assert way["bytes"] < way["size"] / 1000


def test_the_edit_by_hand_is_computed_by_fewer_runtimes() -> None:
    cells = row("rope_scaling")
    way = WAYS["by-hand"]
    assert cells[1] == f"{way['bytes']} bytes"
    assert f"{way['exact']} of {way['loading']} runtimes" in cells[3]
    assert f"the declared {way['declared']:,} tokens" in cells[3]
    ours = WAYS["apply"]["computed_by"]
    worse = [name for name, status in way["computed_by"].items() if ours[name] == "exact" != status]
    assert {name: way["computed_by"][name] for name in worse} == {"exllamav3": "ignored"}
    assert "exllamav3 ignores it" in cells[3]


def test_flags_write_nothing_and_one_of_them_is_not_enough() -> None:
    for words, name in (("vllm serve", "hf-overrides"), ("llama-server", "llama-flags")):
        assert row(words)[1:3] == ["nothing", "at each start"]
        assert WAYS[name]["bytes"] == 0
        assert WAYS[name]["each_start"]
    flags = WAYS["llama-flags"]
    assert flags["all_flags"] == pytest.approx(0, abs=1e-4)
    assert f"up to {flags['without_rope_scaling']:.0f} nats off" in row("llama-server")[3]


def test_gguf_py_sets_the_length_only() -> None:
    cells = row("gguf_set_metadata.py")
    way = WAYS["gguf-set-metadata"]
    assert cells[1:3] == [f"{way['bytes']} bytes", f"{way['seconds']:.1f}"]
    assert way["context_length"] == "set"
    assert re.search("rope.scaling.type' not found", way["rope_scaling_type"])
    assert way["scaled"] is False


def test_every_way_of_the_record_has_a_row() -> None:
    rows = [line for line in SECTION.splitlines() if line.startswith("| `")]
    assert len(rows) == len(WAYS)
