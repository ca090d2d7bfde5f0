"""What a run counts, records and needs of the disk; tests/faults takes the power away at every call."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from ropeconv.bake.execute import ApplyOptions, execute_plan
from ropeconv.bake.planned import PlannedFile
from ropeconv.bake.writing import files
from ropeconv.bake.writing import place as places
from ropeconv.bake.writing.journal import Journal
from ropeconv.errors import BadSource, RopeconvError

from .plans import SIZE, SmallPlan, interrupted, small_plan, source_folder, write

HIDDEN = ".out.ropeconv-partial"


@pytest.fixture
def plan(tmp_path: Path) -> SmallPlan:
    return small_plan(source_folder(tmp_path), tmp_path / "out")


def test_without_fsync_nothing_is_waited_for(plan: SmallPlan, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "fsync", lambda handle: pytest.fail("something was waited for"))
    write(plan, fsync=False)
    assert (plan.out / "model.safetensors").stat().st_size == SIZE


def test_every_byte_is_counted_once_also_where_a_run_goes_on(plan: SmallPlan, tmp_path: Path) -> None:
    done: list[int] = []
    execute_plan(plan, ApplyOptions(), advance=done.append)
    assert sum(done) == plan.bytes
    plan.out.rename(tmp_path / "first")
    interrupted(plan)
    done.clear()
    execute_plan(plan, ApplyOptions(), advance=done.append)
    assert done == [plan.bytes]
    linked = small_plan(Path(plan.source.reference), tmp_path / "linked")
    done.clear()
    execute_plan(linked, ApplyOptions(link=True), advance=done.append)
    assert sum(done) == linked.bytes


def test_a_run_whose_files_are_all_there_has_a_journal_of_them(plan: SmallPlan) -> None:
    found = Journal.read(interrupted(plan).parents[1] / "journal").finished
    assert found.keys() == {file.name for file in plan.files}
    unknown = {name for name, one in found.items() if one.sha256 is None}
    assert unknown == {"LICENSE", "model.safetensors", "patched.bin"}


@pytest.mark.parametrize(("link", "shares"), [(False, False), (True, False), (False, True)])
def test_a_disk_needs_room_for_what_is_not_shared(
    plan: SmallPlan, monkeypatch: pytest.MonkeyPatch, link: bool, shares: bool
) -> None:
    """Before anything is written. 16 MiB of the disk are left free."""
    copied = sum(file.size for file in plan.files if file.action == "copy")
    needed = plan.bytes - (copied if link or shares else 0) + (16 << 20)
    monkeypatch.setattr(places, "same_blocks", lambda source, folder: shares)
    monkeypatch.setattr(places, "free_bytes", lambda folder: needed - 1)
    with monkeypatch.context() as patch:
        patch.setattr(files.Writer, "write", lambda *given: pytest.fail("something was written"))
        said = r"has 17\.\d MB free and the output needs 17\.\d MB; free some, use -o, or share"
        with pytest.raises(RopeconvError, match=said):
            write(plan, link=link)
    assert not plan.out.exists()
    monkeypatch.setattr(places, "free_bytes", lambda folder: needed)
    write(plan, link=link)


@pytest.mark.parametrize("checksum", [True, False])
def test_a_copy_is_hashed_where_that_is_asked_for(tmp_path: Path, checksum: bool) -> None:
    folder = source_folder(tmp_path)
    wrong = PlannedFile("copy", "more/weights.bin", SIZE // 3, "0" * 64)
    plan = small_plan(folder, tmp_path / "out", extra=(wrong,))
    if not checksum:
        write(plan)
        return
    with pytest.raises(BadSource, match=r"more/weights\.bin has another content than was planned"):
        write(plan, checksum=True)
    assert not (tmp_path / "out").exists()
