"""What the system may answer: shared blocks, no locks, files that end early; and no descriptor stays open."""

from __future__ import annotations

import errno
import fcntl
import os
import struct
from pathlib import Path

import gguf
import numpy as np
import pytest
from safetensors.numpy import save_file

from ropeconv.errors import BadSource, RopeconvError, UsageError
from ropeconv.formats import copying, locks, regular, scratch
from ropeconv.formats.copying import FICLONE, copy_file, pieces_of, write_at
from ropeconv.formats.durable import sync_file, sync_folder
from ropeconv.formats.gguf import Edit, GgufFile, Header, room
from ropeconv.formats.gguf.inplace import phases, recover
from ropeconv.formats.gguf.lock import is_locked, locked
from ropeconv.formats.gguf.values import Value, array, boolean, u32
from ropeconv.formats.identity import FileIdentity, identity, refuse_changed
from ropeconv.formats.locks import try_lock
from ropeconv.formats.regular import open_regular, read_bytes, read_text
from ropeconv.formats.typed import typed
from ropeconv.formats.vectors import LONGEST, read_lists

from .conftest import fails

# Copies


def test_shared_blocks_are_asked_for_from_the_writer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[str, int, str]] = []

    def shared(writer: int, request: int, reader: int) -> int:
        asked.append((os.readlink(f"/proc/self/fd/{writer}"), request, os.readlink(f"/proc/self/fd/{reader}")))
        return 0

    monkeypatch.setattr(fcntl, "ioctl", shared)
    (tmp_path / "source").write_bytes(b"12345")
    done: list[int] = []
    copy_file(tmp_path / "source", tmp_path / "target", done.append)
    assert asked == [(str(tmp_path / "target"), FICLONE, str(tmp_path / "source"))]
    assert done == [5]
    assert copying.same_blocks(tmp_path / "source", tmp_path)


def test_a_system_without_copy_file_range_copies_through_us(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(copying, "_reflink", lambda *given: False)
    monkeypatch.delattr(os, "copy_file_range")
    (tmp_path / "source").write_bytes(b"12345")
    copy_file(tmp_path / "source", tmp_path / "target")
    assert (tmp_path / "target").read_bytes() == b"12345"


def test_a_file_that_ends_early_is_said_to_be_cut_off(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(copying, "BLOCK", 4)
    (tmp_path / "a").write_bytes(bytes(range(10)))
    with (tmp_path / "a").open("rb") as file:
        assert list(pieces_of(file.fileno(), 1, 9)) == [(0, b"\1\2\3\4"), (4, b"\5\6\7\x08"), (8, b"\t")]
        assert list(pieces_of(file.fileno(), 1, 6)) == [(0, b"\1\2\3\4"), (4, b"\5\6")], "and no byte behind it"
        assert list(pieces_of(file.fileno(), 3, 0)) == []
        with pytest.raises(BadSource, match="cut off while it was read"):
            list(pieces_of(file.fileno(), 1, 10))


def test_a_system_that_writes_a_part_is_asked_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pwrite = os.pwrite
    monkeypatch.setattr(os, "pwrite", lambda file, data, place: pwrite(file, bytes(data)[:3], place))
    with (tmp_path / "a").open("w+b") as file:
        assert write_at(file.fileno(), np.arange(5, dtype=np.uint16).data, 2) == 10
    assert (tmp_path / "a").read_bytes() == bytes(2) + np.arange(5, dtype=np.uint16).tobytes()


# Files of a source


def test_a_file_is_known_by_what_changes_with_it(tmp_path: Path) -> None:
    path = tmp_path / "a"
    assert identity(path) is None
    path.write_text("one")
    status = path.stat()
    assert identity(path) == FileIdentity(status.st_ino, 3, status.st_mtime_ns)
    refuse_changed({path: identity(path), tmp_path / "absent": None})
    os.utime(path, ns=(0, 1))
    with pytest.raises(BadSource, match="a changed while it was read; leave the source alone"):
        refuse_changed({path: FileIdentity(status.st_ino, 3, status.st_mtime_ns)})


def test_texts_have_a_longest_length(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert regular.LONGEST == 64 << 20
    monkeypatch.setattr(regular, "LONGEST", 5)
    (tmp_path / "a").write_bytes(b"12345")
    assert (read_bytes(tmp_path / "a", "a"), read_text(tmp_path / "a", "a")) == (b"12345", "12345")
    (tmp_path / "a").write_bytes(b"123456")
    with pytest.raises(BadSource, match="b is longer than 5 bytes, which no such file is"):
        read_bytes(tmp_path / "a", "b")
    (tmp_path / "a").write_bytes(b"\xff")
    with pytest.raises(BadSource, match="b is not UTF-8 text"):
        read_text(tmp_path / "a", "b")


def test_types_are_those_that_are_needed() -> None:
    assert typed({"a": [1, 2]}, dict[str, list[int]], "a.json") == {"a": [1, 2]}
    for wrong in ({"a": ["1"]}, {"a": [True]}, [], {"a": [1.5]}):
        with pytest.raises(BadSource, match=r"a\.json is not as it has to be \(Expected"):
            typed(wrong, dict[str, list[int]], "a.json")


def test_lists_of_numbers_of_other_types_and_of_any_length(tmp_path: Path) -> None:
    save_file({"a": np.array([1, 2], np.int8), "b": np.array([True])}, tmp_path / "a.safetensors")
    with pytest.raises(UsageError, match="'b' is BOOL; write it as F32 or F64"):
        read_lists(tmp_path / "a.safetensors")
    save_file({"b": np.array([3, 4], np.int8), "a": np.array([1.5], np.float64)}, tmp_path / "a.safetensors")
    assert read_lists(tmp_path / "a.safetensors") == {"a": [1.5], "b": [3.0, 4.0]}
    for count in (0, 1, LONGEST):
        np.save(tmp_path / "a.npy", np.ones(count, np.float32))
        assert read_lists(tmp_path / "a.npy")["inv_freq"] == [1.0] * count
    np.save(tmp_path / "a.npy", np.ones(LONGEST + 1, np.float32))
    with pytest.raises(UsageError, match="at most 65,536 numbers are read"):
        read_lists(tmp_path / "a.npy")
    np.save(tmp_path / "a.npy", np.array([1j]))
    with pytest.raises(UsageError, match="holds complex128, and real numbers are needed"):
        read_lists(tmp_path / "a.npy")


# Headers


def test_bools_as_gguf_py_reads_them() -> None:
    assert [(boolean(on).kind, boolean(on).raw, boolean(on).decode()) for on in (False, True)] == [
        (int(gguf.GGUFValueType.BOOL), b"\0", False), (int(gguf.GGUFValueType.BOOL), b"\1", True),
    ]  # fmt: skip


def test_arrays_that_are_longer_than_any_vocabulary_are_not_decoded() -> None:
    most = 1 << 24

    def with_count(count: int) -> Header:
        return Header(3, {"a": Value(9, struct.pack("<IQ", 0, count) + bytes(10))}, {}, 32, 0, 0)

    assert Header(3, {"a": array(0, [1, 2])}, {}, 32, 0, 0).get("a") == [1, 2]
    longest = Value(9, struct.pack("<IQ", 0, 1 << 20) + bytes(1 << 20))
    assert len(Header(3, {"a": longest}, {}, 32, 0, 0).get("a")) == 1 << 20
    with pytest.raises(BadSource, match=r"the header has 1,048,577 values under 'a'"):
        with_count((1 << 20) + 1).get("a")
    with pytest.raises(BadSource, match=r"the header has [\d,]+ values under 'a', too many there"):
        with_count(most * 1000).get("a")


# Locks


@pytest.mark.parametrize(
    ("number", "found"),
    [(errno.EWOULDBLOCK, "busy"), (errno.EACCES, "busy"), (errno.ENOLCK, "none"), (errno.EOPNOTSUPP, "none")],
)
def test_what_a_filesystem_answers_about_locks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int, found: str
) -> None:
    monkeypatch.setattr(fcntl, "flock", fails(number))
    with (tmp_path / "a").open("w") as file:
        assert try_lock(file.fileno()) == found
    monkeypatch.setattr(fcntl, "flock", fails(errno.EIO))
    with (tmp_path / "a").open("w") as file, pytest.raises(OSError, match="Input/output error"):
        try_lock(file.fileno())


def test_locks_shut_others_out_unless_both_are_shared(tmp_path: Path) -> None:
    for first, second, found in (
        (False, False, "busy"),
        (True, False, "busy"),
        (False, True, "busy"),
        (True, True, "taken"),
    ):
        with (tmp_path / "a").open("w") as one, (tmp_path / "a").open("r+") as other:
            assert try_lock(one.fileno(), first) == "taken"
            assert try_lock(other.fileno(), second) == found


def test_a_system_without_locks_has_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "fcntl", None)
    with (tmp_path / "a").open("w") as file:
        assert locks.try_lock(file.fileno()) == "none"
    assert not copying.same_blocks(tmp_path / "a", tmp_path)


def test_an_absent_file_is_not_locked(tmp_path: Path) -> None:
    assert is_locked(tmp_path / "a") is False
    with pytest.raises(FileNotFoundError) as caught, locked(tmp_path / "a"):
        pass
    assert caught.value.filename == str(tmp_path / "a")


def test_folders_of_others_are_left_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scratch.tempfile, "gettempdir", lambda: str(tmp_path))
    folder = tmp_path / f"ropeconv-{os.getuid()}-1-a"
    folder.mkdir()
    real = os.getuid()
    monkeypatch.setattr(os, "getuid", lambda: real + 1)
    (tmp_path / f"ropeconv-{real + 1}-1-a").mkdir()  # the name is of that user, and the folder of another
    scratch.clear()
    assert len(list(tmp_path.iterdir())) == 2
    monkeypatch.setattr(os, "getuid", lambda: real)
    scratch.clear()
    assert [path.name for path in tmp_path.iterdir()] == [f"ropeconv-{real + 1}-1-a"]


def test_readers_that_look_at_once_do_not_take_each_other_for_a_writer(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"1")
    with (tmp_path / "a").open("r+b") as other:
        assert try_lock(other.fileno(), shared=True) == "taken"
        assert not is_locked(tmp_path / "a")
        assert try_lock(other.fileno()) == "taken"
        assert is_locked(tmp_path / "a")
    assert not is_locked(tmp_path / "a")


# Descriptors


def test_nothing_stays_open(model: Path, tmp_path: Path) -> None:
    def descriptors() -> set[str]:
        return set(os.listdir("/proc/self/fd"))

    os.mkfifo(tmp_path / "fifo")
    (tmp_path / "link").symlink_to(model)
    (tmp_path / "other").mkdir()
    before = descriptors()
    sync_file(model)
    sync_folder(tmp_path)
    assert not is_locked(model)
    room.can_insert(model)
    for attempt in (
        lambda: open_regular(tmp_path / "fifo"), lambda: open_regular(tmp_path),
        lambda: locked(tmp_path / "link").__enter__(), lambda: locked(tmp_path / "fifo").__enter__(),
    ):  # fmt: skip
        with pytest.raises((BadSource, RopeconvError)):
            attempt()
    walk = phases(GgufFile.open(model), Edit({"llama.context_length": u32(4096)}))
    next(walk)
    with pytest.raises(RopeconvError, match="another ropeconv is changing"):
        recover(model)
    walk.close()  # type: ignore[attr-defined]
    assert recover(model)
    assert list(phases(GgufFile.open(model), Edit({"llama.context_length": u32(4096)})))[-1] == "done"
    with scratch.scratch():
        scratch.clear()
    assert descriptors() == before
