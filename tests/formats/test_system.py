"""What the system answers: files that change, fsync, write-back, samples, threads, locks and
temporary folders.
"""

import errno
import fcntl
import hashlib
import os
import shutil
import tempfile
import time
from itertools import pairwise
from pathlib import Path

import pytest

from ropeconv.errors import BadSource
from ropeconv.formats import disk
from ropeconv.formats import files as regular
from ropeconv.formats import files as scratch
from ropeconv.formats.disk import sample_digest, sync_folder, weights_digest, writing_back
from ropeconv.formats.files import read_bytes, read_text, try_lock

from .conftest import fails

# Files of a source


def test_texts_have_a_longest_length(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert regular.LONGEST == 64 << 20
    monkeypatch.setattr(regular, "LONGEST", 5)
    (tmp_path / "a").write_bytes(b"12345")
    assert (read_bytes(tmp_path / "a", "a"), read_text(tmp_path / "a", "a")) == (b"12345", "12345")
    (tmp_path / "a").write_bytes(b"123456")
    with pytest.raises(BadSource, match="b is longer than 5 bytes"):
        read_bytes(tmp_path / "a", "b")
    (tmp_path / "a").write_bytes(b"\xff")
    with pytest.raises(BadSource, match="b is not UTF-8"):
        read_text(tmp_path / "a", "b")
    assert regular.expand_home("~/a") == Path.home() / "a"
    with pytest.raises(BadSource, match="'~no-such-user/a' .*unknown user"):
        regular.expand_home("~no-such-user/a")


# Digests and samples

PIECE, PIECES = 65536, 64
"""Bytes of a piece, and how many are read of a large file."""


@pytest.mark.parametrize("size", [0, 1, PIECE, PIECE + 1, 3 * PIECE, PIECE * PIECES, 6_553_601])
def test_a_sample_is_the_size_and_64_evenly_spaced_pieces_of_64_kb(
    tmp_path: Path, size: int
) -> None:
    """Together they are the whole of a file of up to 4 MB."""
    data = os.urandom(size)
    (tmp_path / "a").write_bytes(data)
    begin = sorted({max(0, size - PIECE) * number // 63 for number in range(64)})
    read = b"".join(data[place : place + PIECE] for place in begin)
    assert sample_digest(tmp_path / "a") == hashlib.sha256(str(size).encode() + read).hexdigest()
    whole = max((later - earlier for earlier, later in pairwise(begin)), default=0) <= PIECE
    assert whole is (size <= PIECE * PIECES)


MIDDLE = (1 << 29) + (1 << 27)


@pytest.mark.parametrize(
    ("place", "noticed"),
    [
        (0, True),
        (99_999, True),
        (100_000, False),
        (MIDDLE - 2048, True),
        (MIDDLE + 2047, True),
        (MIDDLE + 2048, False),
    ],
)
def test_weights_are_told_apart_by_their_header_and_the_middle_of_tensors(
    tmp_path: Path, place: int, noticed: bool
) -> None:
    """Of a file of a gigabyte the 100,000 bytes of the header, and 4 kB in the middle of the only
    tensor.
    """
    path = tmp_path / "a"
    digests = []
    for byte in (b"\0", b"\1"):
        with path.open("wb") as file:
            file.truncate(1 << 30)
            file.seek(place)
            file.write(byte)
        os.utime(path, ns=(0, 0))
        digests.append(weights_digest(path, 100_000, [(1 << 29, 1 << 28)]))
    assert (digests[0] != digests[1]) is noticed


# fsync and write-back


@pytest.mark.parametrize("number", [errno.EINVAL, errno.EIO, errno.ENOSPC])
def test_folders_that_do_not_sync(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    """A folder that cannot be synced is no error, and a failing disk is."""
    monkeypatch.setattr(os, "fsync", fails(number))
    if number == errno.EINVAL:
        sync_folder(tmp_path)
        return
    with pytest.raises(OSError) as caught:
        sync_folder(tmp_path)
    assert (caught.value.errno, caught.value.filename) == (number, str(tmp_path))


def test_write_back_begins_while_a_file_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[tuple[int, ...]] = []
    monkeypatch.setattr(disk, "PAUSE", 0.01)
    monkeypatch.setattr(disk, "libc", lambda *types: lambda *given: calls.append(given[1:]))
    with writing_back(tmp_path / "a"):
        time.sleep(0.03)
        assert calls == []  # there is no file yet
        (tmp_path / "a").write_text("first")
        end = time.monotonic() + 20
        while not calls and time.monotonic() < end:
            time.sleep(0.01)
    assert set(calls) == {(0, 0, disk.WRITE)}
    ended = len(calls)
    time.sleep(0.03)
    assert len(calls) == ended


# Temporary folders


@pytest.fixture(autouse=True)
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return tmp_path


def left_by_a_kill(temporary: Path) -> Path:
    folder = temporary / f"ropeconv-{os.getuid()}-1-dead"
    (folder / "files").mkdir(parents=True)
    (folder / "files" / "weights").write_bytes(b"x")
    return folder


@pytest.mark.parametrize("nfs", [False, True])
def test_a_temporary_folder_is_private_and_goes_as_does_what_a_kill_left(
    temporary: Path, monkeypatch: pytest.MonkeyPatch, nfs: bool
) -> None:
    """Also on NFS, which locks only what is open for writing; what is in use is not removed."""
    real = fcntl.flock
    dead = left_by_a_kill(temporary)

    def flock(file: int, operation: int) -> None:
        if (
            nfs
            and operation & fcntl.LOCK_EX
            and fcntl.fcntl(file, fcntl.F_GETFL) & os.O_ACCMODE == os.O_RDONLY
        ):
            raise OSError(errno.EBADF, os.strerror(errno.EBADF))
        real(file, operation)

    monkeypatch.setattr(fcntl, "flock", flock)
    with scratch.scratch() as folder:
        assert list(folder.iterdir()) == []
        assert [
            path.stat().st_mode & 0o777 for path in (folder.parent, folder.parent / scratch.LOCK)
        ] == [0o700, 0o600]
        assert list(temporary.iterdir()) == [folder.parent]
        assert not dead.exists()
        (folder / "file").write_text("x")
        scratch.clear()
        assert folder.is_dir()
    assert list(temporary.iterdir()) == []


def test_a_temporary_folder_that_another_run_cleared_before_it_was_locked_is_made_again(
    temporary: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = tempfile.mkdtemp
    cleared = list[str]()

    def mkdtemp(prefix: str) -> str:
        folder = real(prefix=prefix)
        if not cleared:
            cleared.append(folder)
            os.rmdir(folder)
        return folder

    monkeypatch.setattr(tempfile, "mkdtemp", mkdtemp)
    with scratch.scratch() as folder:
        assert list(temporary.iterdir()) == [folder.parent] != [Path(cleared[0])]


def test_folders_of_others_are_left_alone(temporary: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = os.getuid()
    folder = temporary / f"ropeconv-{real}-1-a"
    other = temporary / f"ropeconv-{real + 1}-1-a"
    folder.mkdir()
    other.mkdir()  # the name is of that user, and the folder of another
    monkeypatch.setattr(os, "getuid", lambda: real + 1)
    scratch.clear()
    assert sorted(temporary.iterdir()) == [folder, other]
    monkeypatch.setattr(os, "getuid", lambda: real)
    scratch.clear()
    assert list(temporary.iterdir()) == [other]
    link = temporary / f"ropeconv-{real}-1-b"
    link.symlink_to(other)
    scratch.clear()
    assert link.is_symlink()
    assert list(other.iterdir()) == [], "a link is not followed"


def test_one_core_is_assumed_where_the_system_does_not_say(monkeypatch: pytest.MonkeyPatch) -> None:
    assert disk.cores() >= 1
    monkeypatch.delattr(os, "sched_getaffinity", raising=False)
    for known, cores in ((6, 6), (None, 1)):
        monkeypatch.setattr(os, "cpu_count", lambda known=known: known)
        assert disk.cores() == cores


# Locks


@pytest.mark.parametrize("first", [False, True])
@pytest.mark.parametrize("second", [False, True])
def test_locks_shut_others_out_unless_both_are_shared(
    temporary: Path, first: bool, second: bool
) -> None:
    with (temporary / "a").open("w") as file, (temporary / "a").open("r+") as other:
        assert try_lock(file.fileno(), first) == "taken"
        assert try_lock(other.fileno(), second) == ("taken" if first and second else "busy")


def test_a_disk_error_at_the_removal_of_a_temporary_folder_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    rmtree = shutil.rmtree
    failed = list[Path]()

    def fails_once(folder: Path, **more: bool) -> None:
        if failed:
            rmtree(folder, **more)  # type: ignore[arg-type]
        failed.append(folder)

    monkeypatch.setattr(shutil, "rmtree", fails_once)
    with scratch.scratch() as folder:
        (folder / "file").write_text("x")
    assert failed
    assert list(tmp_path.iterdir()) == []
