"""Temporary folders that are removed at the end, and after a kill by the next run that makes one."""

from __future__ import annotations

import fcntl
import os
import shutil
import stat
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

ATTEMPTS = 10


@contextmanager
def scratch() -> Iterator[Path]:
    """A new folder among the temporary ones, with a lock on it for as long as this process lives."""
    clear()
    folder, lock = _made()
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        os.close(lock)


def clear() -> None:
    """Removes the folders of this user that no living process has a lock on. Links are never followed."""
    for path in Path(tempfile.gettempdir()).glob(f"{_prefix()}*"):
        with suppress(OSError):
            lock = _locked(path, wait=False)
            try:
                shutil.rmtree(path, ignore_errors=True)
            finally:
                os.close(lock)


def _prefix() -> str:
    return f"ropeconv-{os.getuid()}-"


def _made() -> tuple[Path, int]:
    for _ in range(ATTEMPTS):
        folder = Path(tempfile.mkdtemp(prefix=f"{_prefix()}{os.getpid()}-"))
        with suppress(OSError):  # another run may have cleared it before it was locked
            return folder, _locked(folder, wait=True)
    raise OSError(f"no folder could be kept in {tempfile.gettempdir()}")


def _locked(folder: Path, wait: bool) -> int:
    """The descriptor of a folder of this user with a lock on it.

    folder: its path. wait: for another process to release it. Raises OSError for a link, for what is another user's,
    for one that another process holds, and for one that is gone.
    """
    found = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    try:
        fcntl.flock(found, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
        opened, there = os.fstat(found), os.lstat(folder)
        if opened.st_uid != os.getuid() or not stat.S_ISDIR(there.st_mode) or opened.st_ino != there.st_ino:
            raise PermissionError(f"{folder} is not a folder of this run")
    except OSError:
        os.close(found)
        raise
    return found
