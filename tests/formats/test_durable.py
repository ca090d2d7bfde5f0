"""fsync of files and folders, and write-back that begins early."""

from __future__ import annotations

import ctypes
import errno
import os
import stat
import time
from pathlib import Path

import pytest

from ropeconv.formats import durable
from ropeconv.formats.durable import sync_file, sync_folder, sync_tree, writing_back


@pytest.fixture
def synced(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Names of what fsync was called with."""
    found: list[str] = []

    def fsync(handle: int) -> None:
        found.append(Path(os.readlink(f"/proc/self/fd/{handle}")).name)

    monkeypatch.setattr(os, "fsync", fsync)
    return found


def test_a_tree_is_synced_from_below(tmp_path: Path, synced: list[str]) -> None:
    (tmp_path / "a" / "b").mkdir(parents=True)
    (tmp_path / "a" / "file").write_text("")
    sync_file(tmp_path / "a" / "file")
    sync_tree(tmp_path / "a")
    assert synced == ["file", "b", "a"]


@pytest.mark.parametrize(("number", "passes"), [(errno.EINVAL, True), (errno.EIO, False), (errno.ENOSPC, False)])
def test_a_folder_that_cannot_be_synced_is_no_error_and_a_failing_disk_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int, passes: bool
) -> None:
    def fsync(handle: int) -> None:
        assert stat.S_ISDIR(os.fstat(handle).st_mode)
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(os, "fsync", fsync)
    if passes:
        sync_folder(tmp_path)
        return
    with pytest.raises(OSError) as caught:
        sync_folder(tmp_path)
    assert (caught.value.errno, caught.value.filename) == (number, str(tmp_path))


def test_write_back_begins_while_a_file_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[tuple[int, ...]] = []
    monkeypatch.setattr(durable, "PAUSE", 0.01)
    monkeypatch.setattr(durable, "_sync_file_range", lambda: lambda *given: calls.append(given[1:]))
    with writing_back(tmp_path / "a"):
        time.sleep(0.05)
        assert calls == []  # there is no file yet
        (tmp_path / "a").write_text("first")
        time.sleep(0.1)
    assert set(calls) == {(0, 0, durable.WRITE)}
    ended = len(calls)
    time.sleep(0.05)
    assert len(calls) == ended


def test_a_system_that_cannot_begin_early_is_fine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(durable, "_sync_file_range", lambda: None)
    with writing_back(tmp_path / "a"):
        (tmp_path / "a").write_text("first")
    assert (tmp_path / "a").read_text() == "first"


def test_linux_has_the_call(tmp_path: Path) -> None:
    assert durable.WRITE == 2, "SYNC_FILE_RANGE_WRITE of linux/fs.h"
    (tmp_path / "a").write_text("first")
    call = durable._sync_file_range()
    handle = os.open(tmp_path / "a", os.O_RDONLY)
    assert call(handle, 0, 0, durable.WRITE) == 0
    os.close(handle)


def test_places_in_a_file_are_told_to_the_system_in_64_bits() -> None:
    """As sync_file_range(2) declares them: a descriptor, an offset, a length and flags."""
    call = durable._sync_file_range()
    assert call is not None
    assert [ctypes.sizeof(kind) for kind in call.argtypes] == [4, 8, 8, 4]
