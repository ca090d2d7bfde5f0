"""The lab: the row that it drafts for a new version, the changes that it prints, and tables of cos and sin."""

import shutil
import sys
import tomllib
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from ropeconv.runtimes.evidence import ModelRecord, Record
from ropeconv.runtimes.runtime import newest, runtimes
from scripts.laboratory import draft as module
from scripts.laboratory.draft import changes, draft, previous, row_of
from scripts.laboratory.environment import PROGRAMS

NAME = "vllm"
LAST = newest(NAME)
FILE = f"{NAME}-{LAST.version}.toml"


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    shutil.copy(module.DATA / FILE, tmp_path / FILE)
    monkeypatch.setattr(module, "DATA", tmp_path)
    return tmp_path


def problem(family: str) -> Any:
    cell = SimpleNamespace(family=SimpleNamespace(name=family), model=family, name="yarn / native")
    return SimpleNamespace(cell=cell, answered="refused")


def test_a_new_version_is_judged_by_the_last_row() -> None:
    row, covered = row_of(NAME, "0.99.1")
    assert (row.version, row.through, row.rules, covered) == ("0.99.1", "0.99.1", LAST.rules, False)
    assert row_of(NAME, LAST.version)[1]
    earlier = previous(NAME, "0.99.1")
    assert earlier is not None
    assert LAST.covers(earlier.version)
    assert previous(NAME, "0.1") is None


def test_a_version_before_the_first_row_gets_a_row_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = next(row for row in runtimes() if row.name == NAME)
    monkeypatch.setattr(module, "DATA", tmp_path)
    assert row_of(NAME, "0.1.2")[1] is False
    assert draft(NAME, "0.1.2", []).startswith(f"{NAME}-0.1.toml is a draft; 0 families disagree with ")
    written = tomllib.loads((tmp_path / f"{NAME}-0.1.toml").read_text())
    assert written["inherits"] == f"{NAME}-{first.version}"


def test_without_disagreements_the_last_row_is_extended(folder: Path) -> None:
    assert draft(NAME, "0.99.1", []) == f"{FILE} now goes through 0.99; nothing disagrees with it"
    written = tomllib.loads((folder / FILE).read_text())
    assert (written["version"], written["through"]) == (LAST.version, "0.99")
    assert draft(NAME, "0.100.0", [])
    assert tomllib.loads((folder / FILE).read_text())["through"] == "0.100"


def test_with_disagreements_a_row_is_drafted_that_names_their_families(folder: Path) -> None:
    message = draft(NAME, "0.99.1", [problem("llama"), problem("llama"), problem("phi3")])
    assert message.startswith(f"{NAME}-0.99.toml is a draft; 2 families disagree with {FILE}")
    text = (folder / f"{NAME}-0.99.toml").read_text()
    assert tomllib.loads(text) == {
        "inherits": f"{NAME}-{LAST.version}", "version": "0.99", "source": f"{LAST.title} 0.99.1",
    }  # fmt: skip
    assert "# llama: the table says otherwise for 2 cells, such as llama, yarn / native: refused" in text


def test_changes_name_the_cells_whose_status_changed() -> None:
    old = {
        "same": ModelRecord("d", ("yarn",), "exact"),
        "worse": ModelRecord("d", ("yarn",), "exact", {"differs": {"why": ("linear",)}}),
        "gone": ModelRecord("d", ("yarn",), "exact"),
    }
    new = {
        "same": ModelRecord("e", ("yarn",), "exact"),
        "worse": ModelRecord("d", ("yarn",), "exact", {"refused": {"why": ("linear", "yarn")}}),
        "gone": ModelRecord("d", ("yarn",), "unsupported"),
        "new": ModelRecord("d", ("yarn",), "exact"),
    }
    assert list(changes(Record("made", "1", "date", "how", old), new)) == [
        "worse: linear: differs -> refused; yarn: exact -> refused",
        "gone: most cells: exact -> unsupported",
    ]


@pytest.mark.parametrize("layout", ["once", "halves", "neighbours"])
def test_each_pair_is_read_once_from_any_layout(monkeypatch: pytest.MonkeyPatch, layout: str) -> None:
    """gpt-oss has every pair once, Llama in two halves, Cohere beside each other."""
    torch = pytest.importorskip("torch")
    monkeypatch.setattr(sys, "path", [str(PROGRAMS), *sys.path])
    import transformers_backend

    frequencies = torch.tensor([1.0, 0.5, 0.25, 0.125])
    angles = {"once": frequencies, "halves": frequencies.repeat(2), "neighbours": frequencies.repeat_interleave(2)}
    cos, sin = (1.5 * function(angles[layout])[None, None] for function in (torch.cos, torch.sin))
    inv_freq, attention_factor = transformers_backend._first(cos, sin)
    assert inv_freq == pytest.approx(frequencies.tolist(), rel=1e-6)
    assert attention_factor == pytest.approx(1.5, rel=1e-6)
