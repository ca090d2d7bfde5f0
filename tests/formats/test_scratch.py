"""Temporary folders, with locks and on filesystems without them."""

from __future__ import annotations

import errno
import fcntl
import os
import shutil
import sys
import tempfile
from pathlib import Path

import pytest

from ropeconv.formats import scratch
from ropeconv.formats.gguf.lock import is_locked, locked
from ropeconv.formats.locks import try_lock

from .conftest import fails


@pytest.fixture(autouse=True)
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty folder for temporary ones."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return tmp_path


def left_by_a_kill(temporary: Path) -> Path:
    folder = temporary / f"ropeconv-{os.getuid()}-1-dead"
    (folder / "files").mkdir(parents=True)
    (folder / "files" / "weights").write_bytes(b"x")
    return folder


def test_a_folder_is_empty_and_is_removed_with_what_was_written(temporary: Path) -> None:
    with scratch.scratch() as folder:
        assert list(folder.iterdir()) == []
        (folder / "file").write_text("x")
        assert folder.is_relative_to(temporary)
    assert list(temporary.iterdir()) == []


def test_what_a_kill_left_is_removed_and_what_is_in_use_is_not(temporary: Path) -> None:
    dead = left_by_a_kill(temporary)
    with scratch.scratch() as folder:
        assert not dead.exists()
        scratch.clear()
        assert folder.is_dir()


def test_nfs_which_locks_only_what_is_open_for_writing(temporary: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = fcntl.flock

    def flock_on_nfs(file: int, how: int) -> None:
        if how & fcntl.LOCK_EX and fcntl.fcntl(file, fcntl.F_GETFL) & os.O_ACCMODE == os.O_RDONLY:
            raise OSError(errno.EBADF, os.strerror(errno.EBADF))
        real(file, how)

    monkeypatch.setattr(fcntl, "flock", flock_on_nfs)
    dead = left_by_a_kill(temporary)
    with scratch.scratch() as folder:
        (folder / "file").write_text("x")
        assert not dead.exists()
    assert list(temporary.iterdir()) == []


def test_without_locks_a_folder_is_made_and_none_is_cleared(temporary: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fcntl, "flock", fails(errno.ENOLCK))
    other = left_by_a_kill(temporary)
    with scratch.scratch() as folder:
        (folder / "file").write_text("x")
    assert list(temporary.iterdir()) == [other], "which another process may be using"
    assert (other / "files" / "weights").exists()


@pytest.mark.parametrize("number", [errno.EIO, errno.EWOULDBLOCK])
def test_attempts_that_fail_leave_no_folders(temporary: Path, number: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fcntl, "flock", fails(number))
    made, mkdtemp = list[str](), tempfile.mkdtemp
    monkeypatch.setattr(tempfile, "mkdtemp", lambda prefix: made.append(mkdtemp(prefix=prefix)) or made[-1])
    with pytest.raises(OSError, match="no folder could be kept in"), scratch.scratch():
        pass
    assert list(temporary.iterdir()) == []
    assert len(made) == 10
    assert all(Path(name).name.startswith(f"ropeconv-{os.getuid()}-{os.getpid()}-") for name in made)


def test_nobody_else_reads_or_locks_what_is_in_a_folder(temporary: Path) -> None:
    with scratch.scratch() as folder:
        assert folder.parent.stat().st_mode & 0o777 == 0o700
        assert (folder.parent / scratch.LOCK).stat().st_mode & 0o777 == 0o600


def test_a_folder_that_somebody_else_has_removed_is_gone_without_an_error(temporary: Path) -> None:
    with scratch.scratch() as folder:
        shutil.rmtree(folder.parent)
    assert list(temporary.iterdir()) == []


def test_folders_of_others_are_left_alone(temporary: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = os.getuid()
    own, other = temporary / f"ropeconv-{real}-1-a", temporary / f"ropeconv-{real + 1}-1-a"
    own.mkdir()
    other.mkdir()  # the name is of that user, and the folder of another
    monkeypatch.setattr(os, "getuid", lambda: real + 1)
    scratch.clear()
    assert sorted(temporary.iterdir()) == [own, other]
    monkeypatch.setattr(os, "getuid", lambda: real)
    scratch.clear()
    assert list(temporary.iterdir()) == [other]


# Locks


@pytest.mark.parametrize(
    ("number", "found"),
    [(errno.EWOULDBLOCK, "busy"), (errno.EACCES, "busy"), (errno.ENOLCK, "none"), (errno.EOPNOTSUPP, "none")],
)
def test_what_a_filesystem_answers_about_locks(
    temporary: Path, monkeypatch: pytest.MonkeyPatch, number: int, found: str
) -> None:
    with (temporary / "a").open("w") as file:
        monkeypatch.setattr(fcntl, "flock", fails(number))
        assert try_lock(file.fileno()) == found
        monkeypatch.setattr(fcntl, "flock", fails(errno.EIO))
        with pytest.raises(OSError, match="Input/output error"):
            try_lock(file.fileno())
        monkeypatch.setitem(sys.modules, "fcntl", None)
        assert try_lock(file.fileno()) == "none", "a system without locks"


@pytest.mark.parametrize("first", [False, True])
@pytest.mark.parametrize("second", [False, True])
def test_locks_shut_others_out_unless_both_are_shared(temporary: Path, first: bool, second: bool) -> None:
    with (temporary / "a").open("w") as one, (temporary / "a").open("r+") as other:
        assert try_lock(one.fileno(), first) == "taken"
        assert try_lock(other.fileno(), second) == ("taken" if first and second else "busy")


def test_readers_that_look_at_once_do_not_take_each_other_for_a_writer(temporary: Path) -> None:
    path = temporary / "a"
    assert is_locked(path) is False, "it is absent"
    with pytest.raises(FileNotFoundError) as caught, locked(path):
        pass
    assert caught.value.filename == str(path)
    path.write_bytes(b"1")
    with path.open("r+b") as other:
        assert try_lock(other.fileno(), shared=True) == "taken"
        assert not is_locked(path)
        assert try_lock(other.fileno()) == "taken"
        assert is_locked(path)
    assert not is_locked(path)
