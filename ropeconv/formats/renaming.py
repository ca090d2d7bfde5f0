"""Renames that never replace what came meanwhile, and that exchange two names where the system can."""

from __future__ import annotations

import ctypes
import errno
import os
from functools import cache
from pathlib import Path
from typing import Any

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
    call = _function()
    if call is None:
        return False
    if call(HERE, os.fsencode(source), HERE, os.fsencode(target), flags) == 0:
        return True
    number = ctypes.get_errno()
    if number in UNSUPPORTED:
        return False
    raise OSError(number, os.strerror(number), str(source), None, str(target))


@cache
def _function() -> Any:
    call = getattr(ctypes.CDLL(None, use_errno=True), "renameat2", None) if os.name == "posix" else None
    if call is not None:
        call.argtypes = [ctypes.c_int, ctypes.c_char_p, ctypes.c_int, ctypes.c_char_p, ctypes.c_uint]
    return call
