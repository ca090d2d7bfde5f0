"""Temporary folders that are removed at the end, and after a kill by the next run that makes one."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from .locks import try_lock

ATTEMPTS = 10
LOCK, FILES = "lock", "files"


@contextmanager
def scratch() -> Iterator[Path]:
    """A new and empty temporary folder. One beside it is locked for as long as this process lives. Raises OSError."""
    clear()
    folder, lock = _made()
    try:
        (folder / FILES).mkdir()
        yield folder / FILES
    finally:
        _remove(folder, lock)


def clear() -> None:
    """Removes the folders of this user that no living process has a lock on. Links are never followed.

    Nothing is removed where there are no locks, since nothing says there which folders are in use.
    """
    for folder in Path(tempfile.gettempdir()).glob(f"{_prefix()}*"):
        with suppress(OSError):
            lock, is_locked = _locked(folder)
            if is_locked:
                _remove(folder, lock)
            else:
                os.close(lock)


def _prefix() -> str:
    return f"ropeconv-{os.getuid()}-"


def _made() -> tuple[Path, int]:
    for _ in range(ATTEMPTS):
        folder = Path(tempfile.mkdtemp(prefix=f"{_prefix()}{os.getpid()}-"))
        try:
            return folder, _locked(folder)[0]
        except OSError:  # another run may have cleared it before it was locked
            shutil.rmtree(folder, ignore_errors=True)
    raise OSError(f"no folder could be kept in {tempfile.gettempdir()}")


def _locked(folder: Path) -> tuple[int, bool]:
    """The descriptor of the lock file in a folder of this user, and whether the system has locked it."""
    place = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    try:
        if os.fstat(place).st_uid != os.getuid():
            raise PermissionError(f"{folder} is another user's")
        lock = os.open(LOCK, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600, dir_fd=place)
        try:
            found = try_lock(lock)
            there = os.stat(LOCK, dir_fd=place, follow_symlinks=False)
            if found == "busy" or not os.path.samestat(os.fstat(lock), there):
                raise BlockingIOError(f"{folder} is another run's")
        except OSError:
            os.close(lock)
            raise
    finally:
        os.close(place)
    return lock, found == "taken"


def _remove(folder: Path, lock: int) -> None:
    shutil.rmtree(folder, ignore_errors=True)
    os.close(lock)
    with suppress(OSError):
        folder.rmdir()  # NFS keeps a removed file in it under another name for as long as that is open
