"""Changes a GGUF file itself, for apply and restore."""

from __future__ import annotations

from pathlib import Path

from ..errors import RopeconvError
from ..formats.gguf import Edit
from ..formats.gguf.inplace import phases
from ..sources import GgufSource


def change_in_place(source: GgufSource, edit: Edit, hard_links: bool = False) -> Path:
    """Changes the first shard of a GGUF file in place. After a kill at any moment, running again undoes it first.

    source: the file. edit: what to change. hard_links: change a file that has other names as well. Raises RopeconvError
    for links into a cache, for a file that another process changes or has changed since it was planned, where the
    filesystem cannot make room and where the disk fails; the file is as it was then.
    """
    try:
        for _ in phases(source.file, edit, hard_links):
            pass
    except OSError as problem:
        place = problem.filename or source.path
        raise RopeconvError(
            f"{source.path} cannot be changed in place ({problem.strerror}: {place}) and is as it was; write a new "
            "file with -o"
        ) from None
    return source.path
