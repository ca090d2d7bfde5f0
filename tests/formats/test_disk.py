"""Copies whose bytes and holes are equal whatever the kernel offers, and renames and exchanges that
replace nothing.
"""

import errno
import fcntl
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from ropeconv.errors import BadSource
from ropeconv.formats import disk
from ropeconv.formats.disk import (
    TAKEN,
    copy_file,
    copy_part,
    exchange,
    human,
    link_file,
    pieces_of,
    rename_new,
    same_blocks,
)

from .conftest import fails

RANGE = os.copy_file_range
Call = Callable[..., int]


def at_most(count: int) -> Call:
    """The kernel copies less than it is asked for, each time: copy_file_range(2)."""
    return lambda reader, writer, size, origin, goal: RANGE(
        reader, writer, min(size, count), origin, goal
    )


def until(end: int, number: int) -> Call:
    """It stops there, and says nothing, or that it cannot."""

    def call(reader: int, writer: int, size: int, origin: int, goal: int) -> int:
        if origin < end:
            return RANGE(reader, writer, min(size, end - origin), origin, goal)
        return int(fails(number)()) if number else 0

    return call


@pytest.mark.parametrize(
    "call",
    [
        RANGE,
        at_most(7),
        at_most(999),
        until(5, 0),
        until(5, errno.EXDEV),
        None,
        *(fails(number) for number in (errno.EXDEV, errno.ENOSYS, errno.EINVAL)),
    ],
)
def test_a_copy_is_equal_and_flushed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: Call | None
) -> None:
    """Of a whole file, and of a part to another place, by blocks of any size where bytes pass
    through us.
    """
    if call is None:
        monkeypatch.delattr(os, "copy_file_range")
    else:
        monkeypatch.setattr(os, "copy_file_range", call)
    monkeypatch.setattr(disk, "BLOCK", 64)
    data = os.urandom(1000)
    (tmp_path / "source").write_bytes(data)
    done: list[int] = []
    copy_file(tmp_path / "source", tmp_path / "whole", done.append)
    assert ((tmp_path / "whole").read_bytes(), sum(done)) == (data, len(data))
    assert call is not RANGE or done == [len(data)], "the kernel copies all of it at once"
    done.clear()
    with (tmp_path / "source").open("rb") as reader, (tmp_path / "part").open("wb") as writer:
        writer.write(b"a" * 700)
        copy_part(reader, 3, writer, 2, 600, done.append)
        assert (tmp_path / "part").read_bytes() == b"aa" + data[3:603] + b"a" * 98, "flushed"
        writer.write(b"!")
    assert (tmp_path / "part").read_bytes()[600:604] == data[601:603] + b"!a"
    assert sum(done) == 600


def test_a_filesystem_that_shares_blocks_copies_no_byte(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They are asked for from the writer."""
    calls: list[tuple[str, int, str]] = []

    def shared(writer: int, request: int, reader: int) -> int:
        calls.append(
            (
                os.readlink(f"/proc/self/fd/{writer}"),
                request,
                os.readlink(f"/proc/self/fd/{reader}"),
            )
        )
        os.pwrite(writer, os.pread(reader, 100, 0), 0)
        return 0

    monkeypatch.setattr(fcntl, "ioctl", shared)
    monkeypatch.delattr(os, "copy_file_range")
    (tmp_path / "source").write_bytes(b"12345")
    done: list[int] = []
    copy_file(tmp_path / "source", tmp_path / "target", done.append)
    assert calls == [(str(tmp_path / "target"), disk.FICLONE, str(tmp_path / "source"))]
    assert ((tmp_path / "target").read_bytes(), done) == (b"12345", [5])
    assert same_blocks(tmp_path / "source", tmp_path)
    assert not same_blocks(None, tmp_path)
    assert not same_blocks(tmp_path / "absent", tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["source", "target"]


# Sparse files


def sparse(path: Path, *data: tuple[int, int], size: int) -> Path:
    """A file with random bytes at some places, as (first byte, number), and holes elsewhere."""
    with path.open("wb") as file:
        for begin, count in data:
            file.seek(begin)
            file.write(os.urandom(count))
        file.truncate(size)
        os.fsync(file.fileno())
    if path.stat().st_blocks * 512 > size // 2:
        pytest.skip("this filesystem has no sparse files")
    return path


LARGE = 1 << 25


@pytest.mark.parametrize("through_us", [False, True])
@pytest.mark.parametrize(
    "data",
    [
        (),
        ((0, 8192),),
        ((LARGE - 5, 5),),
        ((4096, 4096), (LARGE // 2 + 77, 1_000_000), (LARGE - 10_000_000, 5000)),
    ],
)
def test_holes_stay_holes(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    data: tuple[tuple[int, int], ...],
    through_us: bool,
) -> None:
    if through_us:
        monkeypatch.setattr(os, "copy_file_range", fails(errno.ENOSYS))
    source = sparse(tmp_path / "source", *data, size=LARGE)
    target = tmp_path / "target"
    done: list[int] = []
    copy_file(source, target, done.append)
    assert sum(done) == LARGE
    assert target.read_bytes() == source.read_bytes()
    with target.open("rb") as file:
        os.fsync(file.fileno())
    assert target.stat().st_blocks <= source.stat().st_blocks + 64


# Pieces, links and sizes


def test_a_file_that_ends_early_is_said_to_be_cut_off(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(disk, "BLOCK", 4)
    (tmp_path / "a").write_bytes(bytes(range(10)))
    with (tmp_path / "a").open("rb") as file:
        assert list(pieces_of(file.fileno(), 1, 9)) == [
            (0, b"\1\2\3\4"),
            (4, b"\5\6\7\x08"),
            (8, b"\t"),
        ]
        assert list(pieces_of(file.fileno(), 1, 6)) == [
            (0, b"\1\2\3\4"),
            (4, b"\5\6"),
        ], "and no byte behind it"
        assert list(pieces_of(file.fileno(), 3, 0)) == []
        with pytest.raises(BadSource, match="cut off"):
            list(pieces_of(file.fileno(), 1, 10))


def test_links_resolve_symlinks_where_they_can_be_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "source").write_bytes(b"1")
    (tmp_path / "alias").symlink_to("source")
    assert link_file(tmp_path / "alias", tmp_path / "linked")
    assert (tmp_path / "linked").samefile(tmp_path / "source")
    assert not (tmp_path / "linked").is_symlink()
    with pytest.raises(FileNotFoundError):
        link_file(tmp_path / "absent", tmp_path / "target")
    for number in (errno.EXDEV, errno.EMLINK, errno.EPERM):
        monkeypatch.setattr(os, "link", fails(number))
        assert link_file(tmp_path / "source", tmp_path / "target") is False


@pytest.mark.parametrize(
    ("size", "text"),
    [
        (0, "0.0 B"),
        (999, "999.0 B"),
        (1000, "1.0 kB"),
        (7_340_000_000, "7.3 GB"),
        (10**12, "1.0 TB"),
        (10**15, "1000.0 TB"),
    ],
)
def test_sizes_in_messages_have_decimal_units(size: int, text: str) -> None:
    assert human(size) == text


# Renames


@pytest.fixture(params=["renameat2", "none"])
def system(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    if request.param == "none":
        monkeypatch.setattr(disk, "libc", lambda *types: None)
    return str(request.param)


def place(path: Path, kind: str, text: str) -> Path:
    if kind == "file":
        path.write_text(text)
    else:
        path.mkdir()
        (path / "inside").write_text(text)
    return path


def text(path: Path) -> str:
    return (path / "inside" if path.is_dir() else path).read_text()


@pytest.mark.parametrize("there", ["nothing", "file", "folder", "link to nowhere"])
@pytest.mark.parametrize("kind", ["file", "folder"])
def test_a_free_name_is_taken_and_another_is_not_replaced(
    tmp_path: Path, system: str, kind: str, there: str
) -> None:
    source = place(tmp_path / "a", kind, "new")
    target = tmp_path / "b"
    if there == "nothing":
        rename_new(source, target)
        assert (text(target), source.exists()) == ("new", False)
        return
    if there == "link to nowhere":
        target.symlink_to("nowhere")
    else:
        place(target, there, "old")
    with pytest.raises(OSError) as caught:
        rename_new(source, target)
    assert caught.value.errno in TAKEN
    assert text(source) == "new"
    assert target.is_symlink() or text(target) == "old"


@pytest.mark.parametrize("other", ["file", "folder"])
@pytest.mark.parametrize("kind", ["file", "folder"])
def test_two_names_are_exchanged(tmp_path: Path, system: str, kind: str, other: str) -> None:
    first = place(tmp_path / "a", kind, "one")
    second = place(tmp_path / "b", other, "other")
    exchange(first, second, tmp_path / "spare")
    assert (text(first), text(second)) == ("other", "one")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a", "b"]


def test_a_large_copy_advances_in_pieces_of_at_most_64_mib(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    size = 3 * (64 << 20) + 5
    asked = list[int]()
    done = list[int]()

    def copied(reader: int, writer: int, count: int, origin: int, goal: int) -> int:
        asked.append(count)
        return count

    with (tmp_path / "source").open("wb") as file:
        file.truncate(size)
    monkeypatch.setattr(disk, "_reflink", lambda reader, writer: False)
    monkeypatch.setattr(disk, "_parts_with_data", lambda file, start, stop: iter([(start, stop)]))
    monkeypatch.setattr(os, "copy_file_range", copied)
    copy_file(tmp_path / "source", tmp_path / "target", done.append)
    assert asked == done == [64 << 20] * 3 + [5]
