"""Bytes on the disk: copies by the kernel, renames, fsync, and the identities and digests of files.

A copy is a reflink where the filesystem shares blocks, else copy_file_range. Holes of sparse files
stay holes: https://man7.org/linux/man-pages/man2/lseek.2.html (`SEEK_DATA`, `SEEK_HOLE`).
"""

import ctypes
import errno
import fcntl
import hashlib
import os
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from threading import Event, Thread
from typing import Any, BinaryIO

from ..errors import BadSource

FICLONE = 0x40049409  # linux/fs.h
RANGE_BYTES = 64 << 20
"""Bytes per call of the kernel, after which progress is shown and Ctrl-C is heard."""
BLOCK = 8 << 20
"""Bytes at a time where they pass through Python."""
FULL = (errno.ENOSPC, errno.EDQUOT)
"""Errors of a full disk, or of a used-up quota."""
UNSUPPORTED_ERRORS = {
    errno.EXDEV,
    errno.EINVAL,
    errno.ENOSYS,
    errno.EOPNOTSUPP,
    errno.ENOTTY,
    errno.EPERM,
    errno.EBADF,
}

Advance = Callable[[int], None]
"""Called with the bytes done since the last call."""


def copy_file(source: Path, target: Path, advance: Advance = lambda done: None) -> None:
    """Copy the contents of a file. Raises OSError, and leaves a partial target then."""
    with source.open("rb") as reader, target.open("wb") as writer:
        size = os.fstat(reader.fileno()).st_size
        if _reflink(reader.fileno(), writer.fileno()):
            advance(size)
        else:
            copy_part(reader, 0, writer, 0, size, advance)


def copy_part(
    reader: BinaryIO,
    origin: int,
    writer: BinaryIO,
    goal: int,
    size: int,
    advance: Advance = lambda done: None,
) -> None:
    """Copy a range of one open file into another, and skip the holes of a sparse file.

    Args:
        reader: The file to read.
        origin: The place in `reader` where the range begins, in bytes.
        writer: The file to write, which has only zeros in the range or ends before it. Bytes that
            it buffers are written first.
        goal: The place in `writer` where the range begins.
        size: The number of bytes.
        advance: Called with the number of bytes done since the last call.

    Raises:
        OSError: A file cannot be read or written.
    """
    # Only the parts of the range that have data are copied. In a file of 3 GB with a hole from 1 to
    # 2 GB, these are (0, 1 GB) and (2 GB, 3 GB). In the hole, the writer has zeros already.
    writer.flush()
    shift = goal - origin  # from a place in the reader to its place in the writer
    done_up_to = origin
    for start, stop in _parts_with_data(reader.fileno(), origin, origin + size):
        hole_before = start - done_up_to
        if hole_before > 0:
            advance(hole_before)
        _copy(reader, start, writer, start + shift, stop - start, advance)
        done_up_to = stop

    # the range may end in a hole: nothing is written there, and the writer is made long enough
    bytes_in_reader = os.fstat(reader.fileno()).st_size
    end_of_range = min(origin + size, bytes_in_reader)
    hole_at_end = end_of_range - done_up_to
    if hole_at_end > 0:
        end_in_writer = end_of_range + shift
        bytes_in_writer = os.fstat(writer.fileno()).st_size
        if bytes_in_writer < end_in_writer:
            os.ftruncate(writer.fileno(), end_in_writer)
        writer.seek(end_in_writer)
        advance(hole_at_end)


def _copy(
    reader: BinaryIO, origin: int, writer: BinaryIO, goal: int, size: int, advance: Advance
) -> None:
    """Copy a range without holes: by the kernel as far as that can, then through Python.

    Args:
        reader: The file to read.
        origin: The first byte there.
        writer: The file to write.
        goal: The place of the first byte there.
        size: The number of bytes.
        advance: Called with the number of bytes done since the last call.
    """
    # by the kernel, which may let both files share blocks; copy_file_range fails between
    # filesystems before Linux 5.3, and on some network filesystems
    done = 0
    while hasattr(os, "copy_file_range") and done < size:
        length = min(RANGE_BYTES, size - done)
        try:
            count = os.copy_file_range(
                reader.fileno(), writer.fileno(), length, origin + done, goal + done
            )
        except OSError as problem:
            if problem.errno not in UNSUPPORTED_ERRORS:
                raise
            break
        if count == 0:  # the file ends here, or its filesystem cannot say so (procfs)
            break
        done += count
        advance(count)

    # what is left, in blocks
    reader.seek(origin + done)
    writer.seek(goal + done)
    while done < size:
        block = reader.read(min(BLOCK, size - done))
        if not block:
            break
        writer.write(block)
        done += len(block)
        advance(len(block))
    writer.flush()


def _parts_with_data(file: int, start: int, stop: int) -> Iterator[tuple[int, int]]:
    """Yield the parts of a range of a sparse file that have data, as (first byte, last byte + 1).

    Args:
        file: Descriptor of the file.
        start: The first byte of the range.
        stop: The byte behind the last.
    """
    # a file without holes has at least as many bytes on the disk as it is long
    status = os.fstat(file)
    bytes_on_disk = status.st_blocks * 512  # st_blocks counts 512 bytes, whatever the block size is
    has_no_holes = bytes_on_disk >= status.st_size
    if has_no_holes or not hasattr(os, "SEEK_DATA"):
        yield start, stop
        return

    # lseek also moves the position from which the caller reads on, so that is put back
    position = os.lseek(file, 0, os.SEEK_CUR)
    at = start
    while at < stop:
        try:
            begin, end = _next_data(file, at, stop)
        finally:
            os.lseek(file, position, os.SEEK_SET)
        if begin < end:
            yield begin, end
        at = max(end, at + 1)  # one byte further at least, whatever a filesystem answers


def _next_data(file: int, at: int, stop: int) -> tuple[int, int]:
    """Return where the next data of a sparse file begins and ends, from a byte on (lseek(2)).

    It moves the position of the file.

    Args:
        file: Descriptor of the file.
        at: The first byte to look at.
        stop: The byte behind the last.

    Returns:
        The first byte of the data, and the byte behind its last; an empty range without data.
    """
    try:
        begin = os.lseek(file, at, os.SEEK_DATA)
        end = os.lseek(file, begin, os.SEEK_HOLE)
    except OSError as problem:
        only_a_hole_is_left = problem.errno == errno.ENXIO
        if only_a_hole_is_left:
            return stop, stop
        return at, stop  # the filesystem cannot say, so all of the rest counts as data
    return begin, min(end, stop)


def write_at(file: int, data: bytes | memoryview, place: int) -> int:
    """Write all of the data, of which pwrite(2) may write a part. Raises OSError.

    Returns:
        The number of bytes.
    """
    view = memoryview(data).cast("B")
    done = 0
    while done < len(view):
        done += os.pwrite(file, view[done:], place + done)
    return done


def pieces_of(file: int, start: int, length: int) -> Iterator[tuple[int, bytes]]:
    """Yield a range of a file in pieces, each with the number of bytes before it.

    Raises:
        BadSource: Where the file ends before the range does.
    """
    done = 0
    while done < length:
        block = os.pread(file, min(BLOCK, length - done), start + done)
        if not block:
            raise BadSource("a file was cut off while it was read; run again")
        yield done, block
        done += len(block)


def link_file(source: Path, target: Path) -> bool:
    """Hard-link a file. Returns False where the filesystem cannot."""
    try:
        os.link(source.resolve(), target)
    except OSError as problem:
        if problem.errno in UNSUPPORTED_ERRORS | {errno.EMLINK}:
            return False
        raise
    return True


def nearest_existing(folder: Path) -> Path:
    """Return a folder, or the nearest one above it that exists."""
    while not os.path.lexists(folder):
        folder = folder.parent
    return folder


def obstacle(folder: Path) -> str:
    """Return why a folder cannot be made or written to, for a message; empty where it can."""
    place = nearest_existing(folder)
    if not place.is_dir():
        return f"{place} is not a folder"
    if not os.access(place, os.W_OK | os.X_OK):
        return f"{place} cannot be written to"
    return ""


@contextmanager
def make_folder(folder: Path, fsync: bool = True) -> Iterator[None]:
    """Make a folder, and missing folders above, for a block that writes into the folder.

    New folders that are empty at the end of the block are removed again. Raises OSError.

    Args:
        folder: The folder.
        fsync: Wait until the names of those that stay are on the disk.
    """
    # deepest first, so that one can be removed before the one that it is in
    missing = [place for place in (folder, *folder.parents) if not place.exists()]
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except FileExistsError:  # a file has its name
        raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), str(folder)) from None

    try:
        yield
    finally:
        for place in missing:
            with suppress(OSError):  # it holds what was written, or a folder that does
                place.rmdir()
        if fsync:
            for place in missing:
                if place.exists():
                    sync_folder(place.parent)


def free_bytes(folder: Path) -> int:
    """Return the free bytes on the filesystem of a folder, which need not exist yet."""
    while not folder.exists():
        folder = folder.parent
    return shutil.disk_usage(folder).free


def _reflink(reader: int, writer: int) -> bool:
    """Let a file share the blocks of another; False where the filesystem cannot."""
    try:
        fcntl.ioctl(writer, FICLONE, reader)
    except OSError:
        return False
    return True


def same_blocks(source: Path | None, folder: Path) -> bool:
    """Return whether a copy of `source` into `folder` would share its blocks, by a test there."""
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
    """Format a number of bytes in decimal units: `7.3 GB`."""
    value = float(size)
    units = ["B", "kB", "MB", "GB", "TB"]
    while value >= 1000 and len(units) > 1:
        value /= 1000
        units.pop(0)
    return f"{value:.1f} {units[0]}"


def write_blocks(
    blocks: Callable[[], Iterable[bytes | memoryview]], target: Path, advance: Advance
) -> None:
    """Write a file from the pieces of its content."""
    with target.open("wb") as file:
        for block in blocks():
            file.write(block)
            advance(len(block))


MOST_THREADS = 8
"""More are not faster where each of them reads and writes."""


def cores() -> int:
    """Return the number of cores that this process may use.

    A batch system may grant only some of a machine.
    """
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def threads() -> int:
    """Return the number of threads for work on files: one per core, 8 at most."""
    return min(MOST_THREADS, cores())


WRITE = 2  # SYNC_FILE_RANGE_WRITE of linux/fs.h: begins write-back and does not wait for it
PAUSE = 0.1  # seconds
NOT_FOR_FOLDERS = {errno.EINVAL, errno.ENOTSUP, errno.EACCES, errno.EISDIR, errno.EBADF}


def sync_file(path: Path) -> None:
    """Wait until the content of a file is on the disk. Raises OSError."""
    # fsync(2) waits for all of the file, whichever descriptor wrote it
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    except OSError as problem:  # os.fsync does not name the file
        raise OSError(problem.errno, problem.strerror, str(path)) from None
    finally:
        os.close(handle)


def sync_folder(path: Path) -> None:
    """Wait until the names in a folder are on the disk. Raises OSError.

    Does nothing where the system cannot.
    """
    try:
        sync_file(path)
    except OSError as problem:
        if problem.errno not in NOT_FOR_FOLDERS:
            raise


def sync_tree(root: Path) -> None:
    """Wait until the names in a folder and in its subfolders are on the disk. Raises OSError."""
    for folder, _, _ in os.walk(root, topdown=False):
        sync_folder(Path(folder))


@contextmanager
def writing_back(path: Path) -> Iterator[None]:
    """Let the system write a file to the disk while the block appends to it.

    An fsync at the end then waits less. The file need not exist yet. Does nothing where the system
    cannot.
    """
    call = libc("sync_file_range", ctypes.c_int, ctypes.c_int64, ctypes.c_int64, ctypes.c_uint)
    if call is None:
        yield
        return
    done = Event()

    def begin_writing() -> None:
        while not done.wait(PAUSE):
            with suppress(OSError):  # the file does not exist yet
                handle = os.open(path, os.O_RDONLY)
                try:
                    call(handle, 0, 0, WRITE)  # from byte 0, and 0 for all that follow
                finally:
                    os.close(handle)

    thread = Thread(target=begin_writing, daemon=True)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join()


@cache
def libc(name: str, *types: Any) -> Any:
    """A function of the C library; None where the system lacks it."""
    call = getattr(ctypes.CDLL(None, use_errno=True), name, None)
    if call is not None:
        call.argtypes = types
    return call


CURRENT_FOLDER = -100  # AT_FDCWD
NO_REPLACE = 1  # linux/fs.h
EXCHANGE = 2  # linux/fs.h
NO_RENAMEAT2 = {errno.ENOSYS, errno.EINVAL, errno.EOPNOTSUPP}
NO_LINKS = {errno.EPERM, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK, errno.EACCES}
TAKEN = {errno.EEXIST, errno.ENOTEMPTY, errno.ENOTDIR, errno.EISDIR}
"""Errors of a rename to a name that is taken."""


def rename_new(source: Path, target: Path) -> None:
    """Rename a file or folder to a free name, or to the name of an empty folder.

    Raises OSError, with a number in TAKEN where the name is not free.
    """
    if source.is_dir():  # rename(2) does not replace a file, or a folder with content, by a folder
        source.rename(target)
        return
    if _renameat2(source, target, NO_REPLACE):
        return

    # link(2) refuses a name that is taken, in one step; then the old name goes
    try:
        os.link(source, target)
    except OSError as problem:
        if problem.errno not in NO_LINKS:
            raise
        # without hard links (exFAT), two steps must do: a file that another process makes between
        # them is replaced
        if os.path.lexists(target):
            raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), str(target)) from None
        source.rename(target)
        return
    source.unlink()


def exchange(path: Path, other: Path, spare: Path) -> None:
    """Exchange the names of two files or folders, in one step where the system can.

    Raises OSError; both names are as before then, unless putting them back fails too.

    Args:
        path: One of them.
        other: The other one.
        spare: A free name on the same filesystem, which `other` has in between where the system
            needs more steps.
    """
    if _renameat2(path, other, EXCHANGE):
        return
    other.rename(spare)
    try:
        path.rename(other)
    except OSError:
        spare.rename(other)
        raise
    spare.rename(path)


def _renameat2(source: Path, target: Path, flags: int) -> bool:
    """Call renameat2(2). False where the system or the filesystem lacks it. Raises OSError."""
    call = libc(
        "renameat2", ctypes.c_int, ctypes.c_char_p, ctypes.c_int, ctypes.c_char_p, ctypes.c_uint
    )
    if call is None:
        return False
    if call(CURRENT_FOLDER, os.fsencode(source), CURRENT_FOLDER, os.fsencode(target), flags) == 0:
        return True
    number = ctypes.get_errno()
    if number in NO_RENAMEAT2:
        return False
    raise OSError(number, os.strerror(number), str(source), None, str(target))


SAMPLE = 1 << 16
"""Bytes of a sample of a file."""
SAMPLES = 64
TENSOR_SAMPLE = 1 << 12
"""Bytes of a sample of a tensor."""


def text_digest(*parts: str) -> str:
    """Return the sha256 of texts without line ends, in hexadecimal."""
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()


def sha256(path: Path) -> str:
    """Return the sha256 of a file, in hexadecimal."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def sample_digest(path: Path) -> str:
    """Return the sha256 of the size of a file and of 64 pieces of 64 kB, with both ends.

    It takes the same time for every size, and covers files up to 4 MB completely.
    """
    with path.open("rb") as file:
        size = file.seek(0, 2)
        digest = hashlib.sha256(str(size).encode())

        # 64 places from the first byte to the last piece; a set, as they coincide in small files
        last_place = max(0, size - SAMPLE)
        places = {last_place * number // (SAMPLES - 1) for number in range(SAMPLES)}
        for place in sorted(places):
            file.seek(place)
            digest.update(file.read(SAMPLE))
    return digest.hexdigest()


def weights_digest(path: Path, data_start: int, tensors: Iterable[tuple[int, int]]) -> str:
    """Return a digest that tells a file of weights from others, in constant time per tensor.

    It covers the size, the time of the last change, the whole header (the first `data_start`
    bytes), 4 kB from the middle of each tensor, and what `sample_digest` covers.

    Args:
        path: The file.
        data_start: Where its data begins, in bytes.
        tensors: Start in the file and length of each tensor, in bytes.
    """
    status = path.stat()
    parts = f"{status.st_size} {status.st_mtime_ns} {sample_digest(path)}"
    digest = hashlib.sha256(parts.encode())

    with path.open("rb") as file:
        rest_of_header = data_start
        while rest_of_header > 0:
            block = file.read(min(BLOCK, rest_of_header))
            if not block:
                break
            digest.update(block)
            rest_of_header -= len(block)

        for start, size in tensors:
            before_middle = max(0, size - TENSOR_SAMPLE) // 2
            file.seek(start + before_middle)
            digest.update(file.read(min(size, TENSOR_SAMPLE)))

    return digest.hexdigest()


@dataclass(frozen=True)
class FileIdentity:
    """Properties of a file that change when it is replaced or written to."""

    inode: int
    size: int
    mtime_ns: int
    """In nanoseconds."""


def identity(path: Path) -> FileIdentity | None:
    """Return the identity of a file, for a link that of its target; None where there is none."""
    try:
        status = os.stat(path)
    except OSError:
        return None
    return FileIdentity(status.st_ino, status.st_size, status.st_mtime_ns)


def refuse_changed(identities: Mapping[Path, FileIdentity | None]) -> None:
    """Raise BadSource where a file no longer has the identity that was seen before."""
    for path, before in identities.items():
        if identity(path) != before:
            raise BadSource(
                f"{path.name} changed while it was read; leave the source unchanged and run again"
            )
