"""Errors on the way from a plan to its output are sentences, and what a conversion leaves out is said."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import ropeconv
from ropeconv.bake import in_place
from ropeconv.bake.execute import ApplyOptions, execute_plan
from ropeconv.bake.export import _notes
from ropeconv.bake.planned import PlannedFile
from ropeconv.bake.writing import files, moves, place
from ropeconv.errors import BadSource, RopeconvError
from ropeconv.rope.methods import REGISTRY
from ropeconv.rope.recipe import Recipe

from ..support.baking import apply, make_plan
from ..support.gguf_files import write as write_gguf
from .writing.plans import SIZE, SmallPlan, small_plan, source_folder, write

KEPT_FREE = 16 << 20
"""Bytes of a disk that an output leaves."""
YARN = Recipe(REGISTRY["yarn"](4.0))


@pytest.fixture
def plan(tmp_path: Path) -> SmallPlan:
    return small_plan(source_folder(tmp_path), tmp_path / "out")


def test_a_disk_with_too_little_space_is_refused_before_anything_is_written(
    plan: SmallPlan, monkeypatch: pytest.MonkeyPatch
) -> None:
    needed = plan.bytes + KEPT_FREE
    monkeypatch.setattr(place, "same_blocks", lambda source, folder: False)
    monkeypatch.setattr(files.Writer, "write", lambda *given: pytest.fail("something was written"))
    monkeypatch.setattr(place, "free_bytes", lambda folder: needed - 1)
    with pytest.raises(RopeconvError, match=r"has .* free and the output needs .*; free some, use -o, or share"):
        write(plan)
    assert not plan.out.exists()
    monkeypatch.undo()
    monkeypatch.setattr(place, "same_blocks", lambda source, folder: False)
    monkeypatch.setattr(place, "free_bytes", lambda folder: needed)
    write(plan)


def test_only_what_is_written_needs_space(plan: SmallPlan, monkeypatch: pytest.MonkeyPatch) -> None:
    copied = SIZE + 5
    monkeypatch.setattr(place, "free_bytes", lambda folder: plan.bytes - copied + KEPT_FREE)
    for shares, link, refused in ((False, False, True), (False, True, False), (True, False, False)):
        monkeypatch.setattr(place, "same_blocks", lambda source, folder, s=shares: s)
        if refused:
            with pytest.raises(RopeconvError, match="share unchanged files with --link"):
                place.refuse_full(plan, plan.files, plan.out.parent, link)
        else:
            place.refuse_full(plan, plan.files, plan.out.parent, link)
    place.refuse_full(plan, plan.files[:1], plan.out.parent, link=False)


@pytest.mark.parametrize("problem", [ConnectionError("network"), TimeoutError(110, "late"), OSError("no number")])
def test_errors_of_the_network_stay_what_they_are(plan: SmallPlan, problem: OSError) -> None:
    def verify(folder: Path) -> None:
        raise problem

    with pytest.raises(type(problem)) as found:
        execute_plan(plan, ApplyOptions(), verify)
    assert found.value is problem


def test_an_error_names_the_file_that_it_is_about(plan: SmallPlan) -> None:
    for name, said in (("/dev/x", "/dev/x"), (None, str(plan.out.parent))):

        def verify(folder: Path, name: str | None = name) -> None:
            raise OSError(errno.EACCES, "Permission denied", name)

        with pytest.raises(
            RopeconvError, match=rf"out cannot be written \(Permission denied: {said}\); check the disk"
        ):
            execute_plan(plan, ApplyOptions(), verify)


def test_a_failed_change_in_place_is_a_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = make_plan(write_gguf(tmp_path / "model.gguf"), YARN, in_place=True)
    for name, said in (("/dev/x", "/dev/x"), (None, str(tmp_path / "model.gguf"))):

        def phases(*given: object, name: str | None = name) -> Any:
            raise OSError(errno.EIO, "Input/output error", name)

        monkeypatch.setattr(in_place, "phases", phases)
        with pytest.raises(
            RopeconvError, match=rf"cannot be changed in place \(Input/output error: {said}\) and is as"
        ):
            apply(made)


def test_hard_links_are_kept_where_nothing_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    given: list[tuple[Any, ...]] = []
    monkeypatch.setattr(in_place, "phases", lambda *one: given.append(one) or ())
    source = ropeconv.open_source(str(write_gguf(tmp_path / "model.gguf")))
    assert in_place.change_in_place(source, "edit") == tmp_path / "model.gguf"  # type: ignore[arg-type]
    assert given == [(source.file, "edit", False)]  # type: ignore[union-attr]


def test_a_place_in_a_folder_that_is_not_there(tmp_path: Path) -> None:
    made = small_plan(source_folder(tmp_path), tmp_path / "none" / "out")
    with pytest.raises(RopeconvError, match="none does not exist; create it, or choose another place with -o"):
        write(made)
    inside = small_plan(tmp_path / "model", tmp_path / "model" / "out")
    with pytest.raises(RopeconvError, match="out and the source lie within each other; choose another place with -o"):
        write(inside)


def test_a_move_that_fails_otherwise_is_an_error_of_the_disk(plan: SmallPlan, monkeypatch: pytest.MonkeyPatch) -> None:
    def rename(source: Path, target: Path) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO), str(target))

    monkeypatch.setattr(moves, "rename_new", rename)
    with pytest.raises(RopeconvError, match=r"out cannot be written \(.*\); check the disk and its permissions"):
        write(plan)
    assert not plan.out.exists()


@pytest.mark.parametrize("fsync", [True, False])
def test_a_text_that_arrives_otherwise_is_noticed(
    plan: SmallPlan, monkeypatch: pytest.MonkeyPatch, fsync: bool
) -> None:
    """As a failing disk would leave it: with its length and other bytes."""
    real = Path.write_bytes
    monkeypatch.setattr(Path, "write_bytes", lambda path, data: real(path, data.replace(b"first", b"fiRst")))
    with pytest.raises(BadSource, match="config.json has another content than was planned; check the disk and the so"):
        write(plan, fsync=fsync)
    monkeypatch.undo()
    assert write(plan, fsync=fsync) == plan.out


def test_a_file_without_a_content_is_a_mistake_of_ours(tmp_path: Path) -> None:
    empty = small_plan(source_folder(tmp_path), tmp_path / "out", extra=(PlannedFile("write", "empty", 3),))
    with pytest.raises(RopeconvError, match="empty is planned without a content; report it"):
        write(empty)


# What is said of a conversion


@pytest.mark.parametrize(("prediction", "windows", "said"), [
    (False, (None, None), []), (True, (None, None), ["layers that predict further tokens (MTP) are left out"]),
    (False, (None, 64), []), (False, (None, 63), ["llama.cpp ignores the sliding window of this model"]),
])  # fmt: skip
def test_what_a_conversion_leaves_out(prediction: bool, windows: tuple[int | None, ...], said: list[str]) -> None:
    seen: Any = SimpleNamespace(spec=SimpleNamespace(windows=windows, context=64))
    exported: Any = SimpleNamespace(
        model={"general.architecture": "llama"}, without_prediction=prediction, composes=False
    )
    for config, vision in (({}, []), ({"vision_config": {}}, ["only the language model is converted"])):
        found = _notes(SimpleNamespace(config=lambda c=config: c), seen, exported)  # type: ignore[arg-type]
        assert [one.startswith(words) for one, words in zip(found, said + vision, strict=True)] == [True] * len(found)
    exported.model = {"general.architecture": "gpt-oss"}
    assert not any("sliding window" in one for one in _notes(SimpleNamespace(config=dict), seen, exported))  # type: ignore[arg-type]
