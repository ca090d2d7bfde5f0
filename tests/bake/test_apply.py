"""`ropeconv.apply` in Python: the same check of the result as the command."""

from __future__ import annotations

import json
import os
from pathlib import Path

import msgspec
import pytest

import ropeconv
from ropeconv.bake import check
from ropeconv.engines.probe import Probe
from ropeconv.errors import Disagreement
from ropeconv.receipts import read_receipt
from ropeconv.rope.methods import REGISTRY
from ropeconv.rope.recipe import Recipe

from ..conftest import Run
from ..support.baking import make_plan
from ..support.gguf_files import write

YARN = Recipe(REGISTRY["yarn"](4.0))


def test_it_is_checked_and_the_receipt_says_so(llama: Path, tmp_path: Path) -> None:
    done = ropeconv.apply(make_plan(llama, YARN, tmp_path / "out"))
    assert done.check is not None
    assert done.check.attention_factor == pytest.approx(1 + 0.1 * 1.3862943611198906, abs=1e-6)
    assert read_receipt(done.path).check == done.check
    assert os.fspath(done) == str(tmp_path / "out")
    assert read_receipt(done) == read_receipt(str(done.path))
    assert ropeconv.Comparison.open(done, str(llama)).baked == done.path


def test_it_is_the_check_of_the_command(llama: Path, tmp_path: Path, run: Run) -> None:
    done = run("apply", llama, "--yarn", "4", "-o", "by_command", "--json")
    here = ropeconv.apply(make_plan(llama, YARN, tmp_path / "out"))
    assert here.check is not None
    assert json.loads(done.stdout)["check"] == msgspec.to_builtins(here.check)


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


def test_the_check_reads_the_config_that_is_there(llama: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A cached answer to the planned config says nothing about another one."""
    asked: list[Path] = []

    class Stub:
        def __enter__(self) -> Stub:
            return self

        def __exit__(self, *given: object) -> None:
            pass

        def stop(self) -> None:
            pass

        def ask(self, folder: Path, context: int, stands_for: str) -> dict[str, str]:
            asked.append(folder)
            return {"error": "asked"}

    monkeypatch.setattr(check, "Probe", Stub)
    monkeypatch.setattr(check.ProbeCache, "get", lambda cache, key: {"modules": {}} if key else None)
    plan = make_plan(llama, YARN, tmp_path / "out")
    query = check.probe_query(plan, Stub())  # type: ignore[arg-type]
    text = next(file.text for file in plan.files if file.name == "config.json") or ""
    (tmp_path / "config.json").write_text(text)
    assert query(tmp_path) == {"modules": {}}
    (tmp_path / "config.json").write_text(text.replace('"factor": 4.0', '"factor": 4.5'))
    assert query(tmp_path) == {"error": "asked"}
    assert asked == [tmp_path]
