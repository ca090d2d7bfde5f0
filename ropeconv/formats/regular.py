"""Opens files of a source: regular ones alone, since a FIFO would never end and a device has no size."""

from __future__ import annotations

import os
import stat
from pathlib import Path
from typing import BinaryIO

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
