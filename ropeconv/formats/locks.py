"""Locks on open files, which the system takes back when a process ends."""

from __future__ import annotations

import errno
from typing import BinaryIO, Literal

BUSY = {errno.EWOULDBLOCK, errno.EACCES}
NO_LOCKS = {errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP, errno.EINVAL}


def try_lock(file: int | BinaryIO, shared: bool = False) -> Literal["taken", "busy", "none"]:
    """Locks an open file (flock(2)) without waiting.

    file: or its descriptor; open for writing unless `shared`, since NFS refuses others. shared: a lock that several
    processes can have at once. Returns "busy" where another process has it, "none" where the system or the filesystem
    has no locks. Raises OSError.
    """
    try:
        import fcntl
    except ImportError:
        return "none"
    try:
        fcntl.flock(file, (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | fcntl.LOCK_NB)
    except OSError as problem:
        if problem.errno in BUSY:
            return "busy"
        if problem.errno not in NO_LOCKS:
            raise
        return "none"
    return "taken"
