"""What is written reaches the disk: fsync of files and folders, and write-back that begins while a file is written."""

from __future__ import annotations

import ctypes
import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path
from threading import Event, Thread
from typing import Any

WRITE = 2  # SYNC_FILE_RANGE_WRITE of linux/fs.h: begins write-back and does not wait for it
PAUSE = 0.1  # seconds between two looks
NOT_FOR_FOLDERS = {errno.EINVAL, errno.ENOTSUP, errno.EACCES, errno.EISDIR, errno.EBADF}


def sync_file(path: Path) -> None:
    """Waits until the content of a file is on the disk. Raises OSError."""
    _sync(path)


def sync_folder(path: Path) -> None:
    """Waits until the names in a folder are on the disk; does nothing where the system cannot. Raises OSError."""
    try:
        _sync(path)
    except OSError as problem:
        if problem.errno not in NOT_FOR_FOLDERS:
            raise


def sync_tree(root: Path) -> None:
    """Waits until the names in a folder and in the folders inside it are on the disk. Raises OSError."""
    for folder, _, _ in os.walk(root, topdown=False):
        sync_folder(Path(folder))


def _sync(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    except OSError as problem:
        raise OSError(problem.errno, problem.strerror, str(path)) from None
    finally:
        os.close(handle)


@contextmanager
def writing_back(path: Path) -> Iterator[None]:
    """While it is open, the system writes a growing file to the disk, so that an fsync at its end waits less.

    path: of the file, which need not exist yet. Does nothing where the system cannot.
    """
    call = _sync_file_range()
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
def _sync_file_range() -> Any:
    call = getattr(ctypes.CDLL(None), "sync_file_range", None) if os.name == "posix" else None
    if call is not None:
        call.argtypes = [ctypes.c_int, ctypes.c_int64, ctypes.c_int64, ctypes.c_uint]
    return call
