"""Copies of files by the kernel: a reflink where the filesystem shares blocks, else copy_file_range.

Holes of sparse files stay holes. https://man7.org/linux/man-pages/man2/lseek.2.html (`SEEK_DATA`, `SEEK_HOLE`).
"""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from ..errors import BadSource

FICLONE = 0x40049409  # linux/fs.h
RANGE = 1 << 30  # per call of the kernel
BLOCK = 8 << 20  # where bytes pass through us
FULL = (errno.ENOSPC, errno.EDQUOT)
"""What the system answers where there is no room, or no more of it for this user."""
UNSUPPORTED = {errno.EXDEV, errno.EINVAL, errno.ENOSYS, errno.EOPNOTSUPP, errno.ENOTTY, errno.EPERM, errno.EBADF}

Advance = Callable[[int], None]


def copy_file(source: Path, target: Path, advance: Advance = lambda done: None) -> None:
    """Copies a file's contents; `advance` is called with the bytes done since the last call.

    Raises OSError, and leaves a partial target behind then.
    """
    with source.open("rb") as reader, target.open("wb") as writer:
        size = os.fstat(reader.fileno()).st_size
        if _reflink(reader.fileno(), writer.fileno()):
            advance(size)
            return
        copy_part(reader, 0, writer, 0, size, advance)


def copy_part(
    reader: BinaryIO, origin: int, writer: BinaryIO, goal: int, size: int, advance: Advance = lambda done: None
) -> None:
    """Copies a range of bytes from one open file into another, and flushes the writer.

    reader: open for reading, writer: open for writing, both binary. origin, goal: where the range begins in the reader
    and in the writer, which has nothing but zeros there yet. size: of the range. advance: called with the bytes done
    since the last call. All in bytes. Raises OSError.
    """
    writer.flush()
    done = 0
    for start, stop in _data(reader.fileno(), origin, origin + size):
        if start - origin > done:
            advance(start - origin - done)
        _copy(reader, start, writer, goal + start - origin, stop - start, advance)
        done = stop - origin
    there = os.fstat(reader.fileno()).st_size - origin
    hole = min(size, there) - done
    if hole > 0:  # at the end
        if os.fstat(writer.fileno()).st_size < goal + done + hole:
            os.ftruncate(writer.fileno(), goal + done + hole)
        writer.seek(goal + done + hole)
        advance(hole)


def _copy(reader: BinaryIO, origin: int, writer: BinaryIO, goal: int, size: int, advance: Advance) -> None:
    done = _copy_range(reader.fileno(), origin, writer.fileno(), goal, size, advance)
    reader.seek(origin + done)
    writer.seek(goal + done)
    while done < size and (block := reader.read(min(BLOCK, size - done))):
        writer.write(block)
        done += len(block)
        advance(len(block))
    writer.flush()


def _data(file: int, start: int, stop: int) -> Iterator[tuple[int, int]]:
    """Yields the parts of a range that are not holes, as (first byte, last byte + 1)."""
    status = os.fstat(file)
    if not hasattr(os, "SEEK_DATA") or status.st_blocks * 512 >= status.st_size:
        yield start, stop
        return
    position, at = os.lseek(file, 0, os.SEEK_CUR), start
    while at < stop:
        try:
            begin = os.lseek(file, at, os.SEEK_DATA)
            end = min(os.lseek(file, begin, os.SEEK_HOLE), stop)
        except OSError as problem:
            begin = stop if problem.errno == errno.ENXIO else at  # no data behind it, or a filesystem that cannot say
            end = stop
        finally:
            os.lseek(file, position, os.SEEK_SET)
        if begin < end:
            yield begin, end
        at = max(end, at + 1)


def write_at(file: int, data: bytes | memoryview, place: int) -> int:
    """Writes all of the data, where pwrite(2) may write a part, and returns how many bytes that are. Raises OSError.

    file: a descriptor. data: contiguous bytes. place: in the file.
    """
    view, done = memoryview(data).cast("B"), 0
    while done < len(view):
        done += os.pwrite(file, view[done:], place + done)
    return done


def pieces_of(file: int, start: int, length: int) -> Iterator[tuple[int, bytes]]:
    """Reads a range of a file in pieces; yields how many bytes came before each of them, and the piece.

    file: a descriptor. start, length: of the range. Raises BadSource where the file ends before it.
    """
    done = 0
    while done < length:
        block = os.pread(file, min(BLOCK, length - done), start + done)
        if not block:
            raise BadSource("a file was cut off while it was read; run again")
        yield done, block
        done += len(block)


def link_file(source: Path, target: Path) -> bool:
    """Hard-links a file. Returns False, and makes nothing, where the filesystem cannot."""
    try:
        os.link(source.resolve(), target)
    except OSError as problem:
        if problem.errno in UNSUPPORTED | {errno.EMLINK}:
            return False
        raise
    return True


def free_bytes(folder: Path) -> int:
    """Free bytes on the filesystem of a folder, which need not exist yet."""
    while not folder.exists():
        folder = folder.parent
    return shutil.disk_usage(folder).free


def _reflink(reader: int, writer: int) -> bool:
    try:
        import fcntl

        fcntl.ioctl(writer, FICLONE, reader)
    except (ImportError, OSError):
        return False
    return True


def _copy_range(reader: int, origin: int, writer: int, goal: int, size: int, advance: Advance) -> int:
    if not hasattr(os, "copy_file_range"):
        return 0
    done = 0
    while done < size:
        try:
            count = os.copy_file_range(reader, writer, min(RANGE, size - done), origin + done, goal + done)
        except OSError as problem:
            if problem.errno in UNSUPPORTED:
                return done
            raise
        if count == 0:
            return done
        done += count
        advance(count)
    return done


def same_blocks(source: Path | None, folder: Path) -> bool:
    """Whether a copy of `source` into `folder` would share blocks with it, tried with a file that is removed again."""
    if source is None:
        return False
    probe = folder / ".reflink-probe"
    try:
        with source.open("rb") as reader, probe.open("wb") as writer:
            return _reflink(reader.fileno(), writer.fileno())
    except OSError:
        return False
    finally:
        probe.unlink(missing_ok=True)


def human(size: int) -> str:
    """A number of bytes in decimal units, for messages: `7.3 GB`."""
    value, units = float(size), ["B", "kB", "MB", "GB", "TB"]
    while value >= 1000 and len(units) > 1:
        value /= 1000
        units.pop(0)
    return f"{value:.1f} {units[0]}"


@dataclass(frozen=True)
class Splice:
    """Other bytes in the place of a range of a file. start, stop: the range. data: what stands there instead."""

    start: int
    stop: int
    data: bytes

    def size(self, before: int) -> int:
        """The size of the file with it. before: without it, in bytes."""
        return before - (self.stop - self.start) + len(self.data)

    def applied(self, blocks: Iterable[bytes]) -> Iterator[bytes]:
        """The content of the file with it. blocks: the content without it."""
        at, inserted = 0, False
        for block in blocks:
            yield block[: max(0, self.start - at)]
            after = block[max(0, self.stop - at) :]
            at += len(block)
            if at >= self.stop and not inserted:
                yield self.data
                inserted = True
            yield after
        if not inserted:
            yield self.data

    def read(self, before: Callable[[int, int], bytes], start: int, stop: int) -> bytes:
        """Bytes start .. stop - 1 of the file with it. before: reads the file without it, likewise."""
        end = self.start + len(self.data)
        found = before(start, min(stop, self.start)) if start < self.start else b""
        found += self.data[max(0, start - self.start) : max(0, stop - self.start)]
        moved = self.stop - end
        return found + (before(max(start, end) + moved, stop + moved) if stop > end else b"")


def write_blocks(blocks: Callable[[], Iterable[bytes]], target: Path, advance: Callable[[int], None]) -> None:
    """Writes a file. blocks: gives its content in pieces. advance: called with the bytes of each of them."""
    with target.open("wb") as file:
        for block in blocks():
            file.write(block)
            advance(len(block))


MOST = 8
"""More are not faster where each of them reads and writes."""


def cores() -> int:
    """Those that this process may use: a batch system may give a job some cores of a machine."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def threads() -> int:
    """One for each processor core that this process may use, 8 at most."""
    return min(MOST, cores())
