"""Whether a file is still the one that was seen before."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from ..errors import BadSource


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
