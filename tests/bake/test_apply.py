"""`ropeconv.apply` in Python: what it writes, and the check of the result."""

from __future__ import annotations

import os
from importlib import import_module
from pathlib import Path

import pytest

import ropeconv
from ropeconv.bake import check
from ropeconv.bake.export import ExportPlan
from ropeconv.bake.planned import PlannedFile
from ropeconv.engines.probe import Probe
from ropeconv.errors import Disagreement, RopeconvError
from ropeconv.receipts import read_receipt
from ropeconv.rope.methods import REGISTRY
from ropeconv.rope.recipe import Recipe

from ..support.baking import make_plan
from ..support.gguf_files import write

YARN = Recipe(REGISTRY["yarn"](4.0))
applying = import_module("ropeconv.bake.apply")


def test_it_is_checked_and_the_receipt_says_so(llama: Path, tmp_path: Path) -> None:
    done = ropeconv.apply(make_plan(llama, YARN, tmp_path / "out"))
    assert done.check is not None
    assert done.check.attention_factor == pytest.approx(1 + 0.1 * 1.3862943611198906, abs=1e-6)
    assert read_receipt(done.path).check == done.check
    assert os.fspath(done) == str(tmp_path / "out")
    assert read_receipt(done) == read_receipt(str(done.path))
    assert ropeconv.Comparison.open(done, str(llama)).baked == done.path


def test_a_wrong_output_keeps_nothing(llama: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The negative control: an encoding that writes another factor than the plan has."""
    import ropeconv.encode.checkpoint.encodings.native as native

    right = native._yarn
    monkeypatch.setattr(native, "_yarn", lambda *given: right(*given) | {"factor": 3.9})
    monkeypatch.setattr("ropeconv.runtimes.verdict.difference", lambda *given: "")
    plan = make_plan(llama, YARN, tmp_path / "out", encoding="native")
    with pytest.raises(Disagreement, match=r"computes other global frequencies than the schedule.*nothing was kept"):
        ropeconv.apply(plan)
    assert not (tmp_path / "out").exists()


def test_without_transformers_it_says_why_there_is_no_check(
    llama: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Probe, "available", staticmethod(lambda: False))
    done = ropeconv.apply(make_plan(llama, YARN, tmp_path / "out"))
    assert done.check is None
    assert done.reason == "transformers is not installed; pip install 'ropeconv[validate]'"


def test_gguf_is_written_by_the_same_function(tmp_path: Path) -> None:
    path = write(tmp_path / "model.gguf", "llama")
    done = ropeconv.apply(make_plan(path, YARN, tmp_path / "new.gguf"))
    assert (done.path, done.check) == (tmp_path / "new.gguf", None)
    done = ropeconv.apply(make_plan(path, YARN, in_place=True))
    assert done.path == path
    assert read_receipt(path).recipe == YARN.to_dict()


@pytest.mark.parametrize(
    ("available", "problem", "reason"),
    [
        (True, ("no tensor", ""), None), (True, ("", ""), ""), (True, ("", "too large"), "too large"),
        (False, ("no tensor", ""), ""),
    ],
)  # fmt: skip
def test_a_conversion_is_run_by_the_installed_llama_cpp(
    monkeypatch: pytest.MonkeyPatch, available: bool, problem: tuple[str, str], reason: str | None
) -> None:
    """Before it has its name: `execute_plan` calls the check with the folder of what was written."""
    made = object.__new__(ExportPlan)
    object.__setattr__(made, "files", (PlannedFile("convert", "a.gguf", 1),))
    monkeypatch.setattr(applying, "execute_plan", lambda plan, options, verify, advance: verify(Path("made")))
    monkeypatch.setattr(check.loading, "available", lambda: available)
    monkeypatch.setattr(check.loading, "why_not_run", lambda path: {Path("made/a.gguf"): problem}[path])
    if reason is not None:
        assert applying.apply(made).reason == reason
        return
    with pytest.raises(RopeconvError, match="llama.cpp cannot run what was converted: no tensor; convert it with"):
        applying.apply(made)
