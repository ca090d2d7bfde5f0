"""The order in which a change in place reaches the disk: what restores a file is there first, and goes last."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from ropeconv.formats.gguf import Added, Change, Edit, GgufFile, u32
from ropeconv.formats.gguf.inplace import phases, recover
from ropeconv.formats.gguf.write import write_new

from ...support.gguf_files import write

EDIT = Edit(
    {"llama.context_length": u32(4096)},
    changes={"blk.0.attn_norm.weight": Change(512, lambda old: old[::-1])},
    added=(Added.f32("rope_freqs.weight", bytes(128)),),
)
JOURNAL = ".model.gguf.ropeconv-journal"
CHANGE = [
    f"sync {JOURNAL}.part", f"name {JOURNAL}", "sync folder", "sync model.gguf", f"remove {JOURNAL}", "sync folder",
]  # fmt: skip


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A file with a reserve, which any filesystem changes in place."""
    (tmp_path / "folder").mkdir()
    write_new(GgufFile.open(write(tmp_path / "plain.gguf")), 0, Edit(), tmp_path / "folder" / "model.gguf")
    return tmp_path / "folder" / "model.gguf"


@pytest.fixture
def calls(path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What is asked of the system, in order: fsync with the name of the file, new names, and names that go."""
    found: list[str] = []
    fsync, replace, unlink = os.fsync, os.replace, os.unlink

    def synced(handle: int) -> None:
        found.append(f"sync {Path(os.readlink(f'/proc/self/fd/{handle}')).name}")
        fsync(handle)

    def named(source: Path, target: Path) -> None:
        found.append(f"name {Path(target).name}")
        replace(source, target)

    def removed(name: Path) -> None:
        unlink(name)
        found.append(f"remove {Path(name).name}")

    monkeypatch.setattr(os, "fsync", synced)
    monkeypatch.setattr(os, "replace", named)
    monkeypatch.setattr(os, "unlink", removed)
    return found


def test_a_change_begins_when_its_journal_is_on_the_disk_and_the_journal_goes_when_the_change_is(
    path: Path, calls: list[str]
) -> None:
    assert list(phases(GgufFile.open(path), EDIT)) == ["journal", "header", "tensors", "added", "durable", "done"]
    assert calls == CHANGE


def test_nothing_of_the_file_changes_before_its_journal_is_on_the_disk(path: Path, calls: list[str]) -> None:
    before, walk = path.read_bytes(), phases(GgufFile.open(path), EDIT)
    assert next(walk) == "journal"
    assert calls == CHANGE[:3]
    assert path.read_bytes() == before
    walk.close()  # type: ignore[attr-defined]


def test_a_journal_goes_when_what_it_restores_is_on_the_disk(path: Path, calls: list[str]) -> None:
    before, walk = path.read_bytes(), phases(GgufFile.open(path), EDIT)
    while next(walk) != "durable":
        pass
    walk.close()  # type: ignore[attr-defined]
    assert path.read_bytes() != before
    calls.clear()
    assert recover(path)
    assert calls == CHANGE[3:]
    assert path.read_bytes() == before
    assert not recover(path)
