"""What is written reaches the disk: fsync of files and folders, and write-back that begins while a file is written."""

from __future__ import annotations

import ctypes
import errno
import hashlib
import os
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from threading import Event, Thread
from typing import Any

from ..errors import BadSource

WRITE = 2  # SYNC_FILE_RANGE_WRITE of linux/fs.h: begins write-back and does not wait for it
PAUSE = 0.1  # seconds between two looks
NOT_FOR_FOLDERS = {errno.EINVAL, errno.ENOTSUP, errno.EACCES, errno.EISDIR, errno.EBADF}


def sync_file(path: Path) -> None:
    """Wait until the content of a file is on the disk. Raises OSError."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    except OSError as problem:
        raise OSError(problem.errno, problem.strerror, str(path)) from None
    finally:
        os.close(handle)


def sync_folder(path: Path) -> None:
    """Waits until the names in a folder are on the disk; does nothing where the system cannot. Raises OSError."""
    try:
        sync_file(path)
    except OSError as problem:
        if problem.errno not in NOT_FOR_FOLDERS:
            raise


def sync_tree(root: Path) -> None:
    """Waits until the names in a folder and in the folders inside it are on the disk. Raises OSError."""
    for folder, _, _ in os.walk(root, topdown=False):
        sync_folder(Path(folder))


@contextmanager
def writing_back(path: Path) -> Iterator[None]:
    """While it is open, the system writes a growing file to the disk, so that an fsync at its end waits less.

    path: of the file, which need not exist yet. Does nothing where the system cannot.
    """
    call = _libc("sync_file_range", ctypes.c_int, ctypes.c_int64, ctypes.c_int64, ctypes.c_uint)
    if call is None:
        yield
        return
    done = Event()

    def work() -> None:
        while not done.wait(PAUSE):
            with suppress(OSError):
                handle = os.open(path, os.O_RDONLY)
                try:
                    call(handle, 0, 0, WRITE)
                finally:
                    os.close(handle)

    thread = Thread(target=work, daemon=True)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join()


@cache
def _libc(name: str, *types: Any) -> Any:
    """A function of the C library; None where the system does not have it."""
    call = getattr(ctypes.CDLL(None, use_errno=True), name, None) if os.name == "posix" else None
    if call is not None:
        call.argtypes = types
    return call


HERE = -100  # AT_FDCWD
NO_REPLACE, EXCHANGE = 1, 2  # linux/fs.h
UNSUPPORTED = {errno.ENOSYS, errno.EINVAL, errno.EOPNOTSUPP}
NO_LINKS = {errno.EPERM, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK, errno.EACCES}
TAKEN = {errno.EEXIST, errno.ENOTEMPTY, errno.ENOTDIR, errno.EISDIR}
"""What a rename answers where the new name is taken."""


def rename_new(source: Path, target: Path) -> None:
    """Renames a file or folder to a name that is free, or that of an empty folder.

    Raises OSError, of a number in TAKEN where the name is not free.
    """
    if source.is_dir():  # rename(2) replaces no file and no folder with content by a folder
        source.rename(target)
    elif not _renameat2(source, target, NO_REPLACE):
        _link_new(source, target)


def exchange(one: Path, other: Path, spare: Path) -> None:
    """Exchanges the names of two files or folders: in one step where the system can, else by way of a third name.

    spare: a free name on the same filesystem, which `other` has in between. Raises OSError; both names are as before
    then, unless putting them back fails too.
    """
    if _renameat2(one, other, EXCHANGE):
        return
    other.rename(spare)
    try:
        one.rename(other)
    except OSError:
        spare.rename(other)
        raise
    spare.rename(one)


def _link_new(source: Path, target: Path) -> None:
    try:
        os.link(source, target)
    except OSError as problem:
        if problem.errno not in NO_LINKS:
            raise
        if os.path.lexists(target):
            raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), str(target)) from None
        source.rename(target)
        return
    source.unlink()


def _renameat2(source: Path, target: Path, flags: int) -> bool:
    """Calls renameat2(2). Returns False where the system or the filesystem does not have it. Raises OSError."""
    call = _libc("renameat2", ctypes.c_int, ctypes.c_char_p, ctypes.c_int, ctypes.c_char_p, ctypes.c_uint)
    if call is None:
        return False
    if call(HERE, os.fsencode(source), HERE, os.fsencode(target), flags) == 0:
        return True
    number = ctypes.get_errno()
    if number in UNSUPPORTED:
        return False
    raise OSError(number, os.strerror(number), str(source), None, str(target))


BLOCK = 1 << 20
PIECE, PIECES = 1 << 16, 64
OF_TENSOR = 1 << 12
"""Bytes that are read of each tensor."""


def text_digest(*parts: str) -> str:
    """sha256 of texts that have no line ends, in hexadecimal."""
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()


def sha256(path: Path) -> str:
    """sha256 of a file's contents, in hexadecimal."""
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while block := file.read(BLOCK):
            digest.update(block)
    return digest.hexdigest()


def sampled(path: Path) -> str:
    """sha256 of the size of a file, its first and its last 64 kB and 62 evenly spaced pieces of 64 kB between them.

    Takes the same time for every size, and covers files up to 4 MB as a whole.
    """
    with path.open("rb") as file:
        size = file.seek(0, 2)
        digest = hashlib.sha256(str(size).encode())
        last = max(0, size - PIECE)
        for place in sorted({last * number // (PIECES - 1) for number in range(PIECES)}):
            file.seek(place)
            digest.update(file.read(PIECE))
    return digest.hexdigest()


def weights_digest(path: Path, data_start: int, tensors: Iterable[tuple[int, int]]) -> str:
    """sha256 of a part of a file of weights that tells it from others, in hexadecimal; takes constant memory.

    The size, the time of the last change, the whole header, 4 kB from the middle of each tensor, and what `sampled`
    reads: a change of one tensor changes it, and so does a change in place that none of these bytes show.

    path: of the file. data_start: length of the header, in bytes. tensors: where each begins, and its length, in bytes.
    """
    status = path.stat()
    digest = hashlib.sha256(f"{status.st_size} {status.st_mtime_ns} {sampled(path)}".encode())
    with path.open("rb") as file:
        while data_start > 0 and (block := file.read(min(BLOCK, data_start))):
            digest.update(block)
            data_start -= len(block)
        for start, size in tensors:
            file.seek(start + max(0, size - OF_TENSOR) // 2)
            digest.update(file.read(min(size, OF_TENSOR)))
    return digest.hexdigest()


@dataclass(frozen=True)
class FileIdentity:
    """What changes when a file is replaced or written to. mtime_ns: time of the last change, in nanoseconds."""

    inode: int
    size: int
    mtime_ns: int


def identity(path: Path) -> FileIdentity | None:
    """The identity of a file or folder, of a link that of its target; None where there is none."""
    try:
        status = os.stat(path)
    except OSError:
        return None
    return FileIdentity(status.st_ino, status.st_size, status.st_mtime_ns)


def refuse_changed(seen: Mapping[Path, FileIdentity | None]) -> None:
    """Raises BadSource where a file is not the one that was seen. seen: identities of files of the source, by path."""
    for path, before in seen.items():
        if identity(path) != before:
            raise BadSource(f"{path.name} changed while it was read; leave the source alone and run again")
