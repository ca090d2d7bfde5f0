"""Opens files of a source: regular ones alone, since a FIFO would never end and a device has no size."""

from __future__ import annotations

import errno
import os
import shutil
import stat
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO, Literal

from ..errors import BadSource

LONGEST = 64 << 20
"""Bytes of a text file; the longest published tokenizer.json has 37 million."""
KINDS = {
    stat.S_IFIFO: "a FIFO", stat.S_IFSOCK: "a socket", stat.S_IFCHR: "a device", stat.S_IFBLK: "a device",
    stat.S_IFDIR: "a folder",
}  # fmt: skip


def expanded(path: str) -> Path:
    """A path in which `~` stands for a home. Raises BadSource for the home of a user who is not known."""
    try:
        return Path(path).expanduser()
    except RuntimeError:
        raise BadSource(f"{path!r} is in the home of a user who is not known here; write the whole path") from None


def check_regular(mode: int, path: Path) -> None:
    """Raises BadSource for what is not a regular file. mode: as `os.stat` gives it. path: for the message."""
    if not stat.S_ISREG(mode):
        kind = KINDS.get(stat.S_IFMT(mode), "not a file")
        raise BadSource(f"{path} is {kind}, and a regular file is needed there; remove it or give another source")


def open_regular(path: Path) -> BinaryIO:
    """A file, open for reading. Raises BadSource where it is not a regular one, and OSError where it is not there."""
    descriptor = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_CLOEXEC", 0))
    try:
        check_regular(os.fstat(descriptor).st_mode, path)
        return os.fdopen(descriptor, "rb")
    except BaseException:
        os.close(descriptor)
        raise


def read_bytes(path: Path, name: str) -> bytes:
    """The content of a small file. name: for messages. Raises BadSource where it is not regular, or too long."""
    with open_regular(path) as file:
        found = file.read(LONGEST + 1)
    if len(found) > LONGEST:
        raise BadSource(f"{name} is longer than {LONGEST:,} bytes, which no such file is; download it again")
    return found


def read_text(path: Path, name: str) -> str:
    """The text of a small file with its own line ends.

    path: of the file. name: for messages. Raises BadSource where it is not regular, too long, or not UTF-8.
    """
    try:
        return read_bytes(path, name).decode()
    except UnicodeDecodeError:
        raise BadSource(f"{name} is not UTF-8 text; fix it or download it again") from None


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
