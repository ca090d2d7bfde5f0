"""The lock on a GGUF file while it is changed in place: one writer at a time, and readers learn of it."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from ...errors import BadSource, RopeconvError, counted
from ..locks import try_lock


@contextmanager
def locked(path: Path, hard_links: bool = False) -> Iterator[int]:
    """Opens a file for reading and writing and locks it (flock(2)); yields its descriptor.

    path: the file. hard_links: accept one with several names. Raises RopeconvError where another process has the lock,
    for a link, for a file with other hard links, and for a filesystem without locks; BadSource for what is not a file.
    """
    file = _opened(path)
    try:
        if not lock(file):
            raise RopeconvError(f"another ropeconv is changing {path} in place; run again when that has ended")
        status = os.fstat(file)
        if not os.path.samestat(status, os.lstat(path)):
            raise RopeconvError(f"{path} was replaced by another file meanwhile; run again")
        if status.st_nlink > 1 and not hard_links:
            raise RopeconvError(
                f"{path} has {counted(status.st_nlink - 1, 'other hard link')}, which in place would change too; "
                "write a new file with -o, or accept that with --allow-hard-links"
            )
        yield file
    finally:
        os.close(file)


def lock(file: int) -> bool:
    """Locks an open file without waiting. Returns False where another process has it.

    Raises RopeconvError on a system or filesystem without locks.
    """
    found = try_lock(file)
    if found == "none":
        raise RopeconvError(
            "a file is only changed in place under a lock, and this filesystem has none; write a new one with -o"
        )
    return found == "taken"


def is_locked(path: Path) -> bool:
    """Whether a process changes a file in place at the moment. False where there are no locks or no such file."""
    try:
        file = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    except OSError:
        return False
    try:
        return try_lock(file, shared=True) == "busy"
    finally:
        os.close(file)


def _opened(path: Path) -> int:
    try:
        file = os.open(path, os.O_RDWR | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError as problem:
        if path.is_symlink():
            raise RopeconvError(
                f"{path} is a link, likely into a cache that others read; write a new file with -o"
            ) from None
        raise OSError(problem.errno, problem.strerror, str(path)) from None
    if not stat.S_ISREG(os.fstat(file).st_mode):
        os.close(file)
        raise BadSource(f"{path} is not a file; give the path of a GGUF file")
    return file
