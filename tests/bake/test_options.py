"""How a plan is executed where nothing is said, what each option changes, and errors on the way as sentences."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import ropeconv
from ropeconv.bake import check, execute
from ropeconv.bake.apply import Applied
from ropeconv.bake.execute import ApplyOptions, _stamp
from ropeconv.bake.export import ExportPlan
from ropeconv.bake.planned import PlannedFile
from ropeconv.bake.restore import RestorePlan, restore, restore_plan
from ropeconv.errors import RopeconvError
from ropeconv.rope.methods import REGISTRY
from ropeconv.rope.recipe import Recipe

from ..conftest import CONFIGS
from ..support.baking import apply, make_plan
from ..support.gguf_files import write as write_gguf
from .writing.plans import SmallPlan, small_plan, source_folder, tree, write

YARN = Recipe(REGISTRY["yarn"](4.0))
applying, restoring = (import_module(f"ropeconv.bake.{name}") for name in ("apply", "restore"))
EACH = ("link", "force", "checksum", "staged", "fsync")


@pytest.fixture
def plan(tmp_path: Path) -> SmallPlan:
    return small_plan(source_folder(tmp_path), tmp_path / "out")


def remembered(into: list[Any]) -> Callable[..., Path]:
    """In place of what executes a plan: remembers what it is given."""

    def run(*given: Any, **named: Any) -> Path:
        into.append((*given, named))
        return Path("written")

    return run


# Options


def test_what_holds_where_nothing_is_said() -> None:
    """Everything is copied and on the disk, nothing is replaced."""
    options = ApplyOptions()
    assert {name: getattr(options, name) for name in EACH} == {**dict.fromkeys(EACH, False), "fsync": True}


def test_options_of_apply_reach_the_execution(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Any] = []
    monkeypatch.setattr(applying, "execute_plan", remembered(asked))
    made = make_plan(CONFIGS / "meta-llama--Llama-2-7b-hf.json", YARN)
    assert applying.apply(made, check=False) == Applied(Path("written"))
    assert asked[-1][:2] == (made, ApplyOptions())
    for name in EACH:
        value = name != "fsync"
        applying.apply(made, check=False, **{name: value})
        assert asked[-1][1] == replace(ApplyOptions(), **{name: value})


def test_it_is_checked_unless_the_caller_says_no(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without transformers no probe is started, and the check is the one that says so."""
    asked: list[Any] = []
    monkeypatch.setattr(applying, "execute_plan", remembered(asked))
    monkeypatch.setattr(applying.Probe, "available", staticmethod(lambda: False))
    made = make_plan(CONFIGS / "meta-llama--Llama-2-7b-hf.json", YARN)
    applying.apply(made)
    assert isinstance(asked[-1][2], check.OutputCheck)
    assert asked[-1][2].query is None
    applying.apply(made, check=False)
    assert len(asked[-1]) == 3  # nothing but the plan, the options and what is named


def test_a_probe_of_the_caller_is_asked_and_none_is_started(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Any] = []
    monkeypatch.setattr(applying, "execute_plan", remembered(asked))
    monkeypatch.setattr(applying, "Probe", SimpleNamespace(available=lambda: pytest.fail("looked for another")))
    monkeypatch.setattr(applying, "probe_query", lambda plan, probe: ("query of", probe))
    made, mine = make_plan(CONFIGS / "meta-llama--Llama-2-7b-hf.json", YARN), SimpleNamespace()
    applying.apply(made, probe=mine)  # type: ignore[arg-type]
    assert asked[-1][2].query == ("query of", mine)


def conversion() -> ExportPlan:
    """A conversion of which only the names of files are there."""
    found = object.__new__(ExportPlan)
    object.__setattr__(found, "files", (PlannedFile("convert", "a.gguf", 1),))
    return found


@pytest.mark.parametrize(("available", "problem"), [(True, "no tensor"), (True, ""), (False, "no tensor")])
def test_a_conversion_is_run_by_the_installed_llama_cpp(
    monkeypatch: pytest.MonkeyPatch, available: bool, problem: str
) -> None:
    made, asked, loaded = conversion(), list[Any](), list[Path]()
    monkeypatch.setattr(applying, "execute_plan", remembered(asked))
    monkeypatch.setattr(check.loading, "available", lambda: available)
    monkeypatch.setattr(check.loading, "why_not_run", lambda path: loaded.append(path) or (problem, "too large"))
    applying.apply(made)
    verify = asked[-1][2]
    if available and problem:
        with pytest.raises(RopeconvError, match="llama.cpp cannot run what was converted: no tensor; convert it with"):
            verify(Path("made"))
    else:
        assert verify(Path("made")) is None
    assert loaded == [Path("made/a.gguf")] * available
    applying.apply(made, check=False)
    assert len(asked[-1]) == 3


def test_restoring_keeps_what_is_there_and_waits_for_the_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    baked = apply(make_plan(write_gguf(tmp_path / "model.gguf"), YARN, tmp_path / "baked.gguf"))
    asked: list[Any] = []
    monkeypatch.setattr(restoring, "execute_plan", remembered(asked))
    monkeypatch.setattr(restoring, "change_in_place", remembered(asked))
    source = ropeconv.open_source(str(baked))
    made = restore_plan(source)
    assert (made.in_place, made.out, made.is_folder, made.resume_key) == (
        False,
        Path("model-restored.gguf"),
        False,
        "restore",
    )
    restore(made)
    assert asked[-1][1] == ApplyOptions()
    restore(made, force=True, fsync=False)
    assert asked[-1][1] == ApplyOptions(force=True, fsync=False)
    here = restore_plan(source, in_place=True)
    for hard_links in (False, True):
        restore(here, **({"allow_hard_links": True} if hard_links else {}))
        assert asked[-1] == (source, here.edit, hard_links, {})
    bare = RestorePlan(source=source, out=baked, files=(), skipped=(), first=made.first)  # type: ignore[arg-type]
    assert (bare.in_place, bare.absent, bare.edit) == (False, (), None)


def test_a_staged_output_is_what_is_not_copied(plan: SmallPlan) -> None:
    out = write(plan, staged=True)
    assert tree(out).keys() == {"config.json", "more/made.bin", "patched.bin"}
    names = {file.name: file.sha256 for file in ropeconv.read_receipt(out).files}
    assert names.keys() == {*tree(out), "LICENSE", "model.safetensors"}
    hashed = {"config.json", "more/made.bin"}  # what is copied is hashed with `checksum` alone
    assert {name for name, digest in names.items() if digest} == hashed


def test_a_gguf_file_has_its_receipt_within(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(execute, "write_receipt", lambda *given: pytest.fail("a receipt was written beside it"))
    out = apply(make_plan(write_gguf(tmp_path / "model.gguf"), YARN, tmp_path / "out.gguf"))
    assert ropeconv.read_receipt(out).recipe == YARN.to_dict()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["model.gguf", "out.gguf"]


# Going on after an interruption


def test_a_stamp_tells_runs_apart_that_do_not_go_on_from_each_other(
    plan: SmallPlan, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "boot").write_text("first start")
    monkeypatch.setattr(execute, "BOOT", tmp_path / "boot")
    kinds = [ApplyOptions(), ApplyOptions(link=True), ApplyOptions(checksum=True), ApplyOptions(fsync=False)]
    first = [_stamp(plan, options) for options in kinds]
    assert len(set(first)) == 4
    assert _stamp(plan, ApplyOptions(force=True)) == first[0]
    (tmp_path / "boot").write_text("second start")
    second = [_stamp(plan, options) for options in kinds]
    assert [one == other for one, other in zip(first, second, strict=True)] == [True, True, True, False]
    monkeypatch.setattr(execute, "BOOT", tmp_path / "none")
    assert [_stamp(plan, options) for options in kinds[:3]] == first[:3]
    assert _stamp(plan, kinds[3]) not in (first[3], second[3])
    assert _stamp(small_plan(Path(plan.source.reference), plan.out, "second"), ApplyOptions()) != first[0]


def test_a_plan_as_data(tmp_path: Path) -> None:
    """As `--json` prints it: without what is only known afterwards."""
    made = make_plan(CONFIGS / "meta-llama--Llama-2-7b-hf.json", YARN, tmp_path / "out")
    found = json.loads(json.dumps(made.to_dict()))
    assert not {"ropeconv", "check", "validation", "servers", "evaluations", "original", "target"} & found.keys()
    assert found["files"] == [{"name": "config.json", "action": "write", "size": made.bytes}]
    assert (found["bytes"], found["skipped"], found["out"]) == (made.bytes, [], str(tmp_path / "out"))
    assert found["kv_cache"] is not None
    assert {one["encoding"] for one in found["considered"] if one["selected"]} == {"native"}
    silent = replace(made, kv_cache=None)
    assert silent.to_dict()["kv_cache"] is None
    assert made.resume_key == silent.resume_key
    assert made.resume_key != make_plan(CONFIGS / "meta-llama--Llama-2-7b-hf.json", YARN, tmp_path / "x").resume_key
