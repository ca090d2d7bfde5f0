"""The way in which a single file gets its name: complete and on the disk, or not at all.

Read `write_file` first. It writes results, reports, pictures, recipes and Modelfiles. An output of
many files is written by `bake/execution.py`, and a GGUF file changed in place by
`formats/gguf/inplace.py`. No other module gives a file its final name.
"""

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

from ..rope.errors import RopeconvError
from .disk import make_folder, sync_file, sync_folder
from .files import try_lock

PAUSE = 0.01
"""Seconds between two attempts to get a draft that another process is writing."""


def write_file(path: Path, content: str | bytes) -> None:
    """Write a file, in place of one that is there.

    Args:
        path: The final name. A link is followed, so that its target is replaced. A device or a
            FIFO, such as /dev/stdout, is written to directly.
        content: All of it; text is written as UTF-8.

    Raises:
        OSError: Where it cannot be written; a file that was there before is unchanged then.
        RopeconvError: Where the disk fails so that the draft stays.
    """
    data = content.encode() if isinstance(content, str) else content
    with draft_of(path) as draft:
        draft.write_bytes(data)


@contextmanager
def draft_of(path: Path, draft: Path | None = None, fsync: bool = True) -> Iterator[Path]:
    """Yield the hidden file that gets the name `path` at the end of the block.

    Missing folders above it are made.

    A draft that a killed process left is written over. After an error the draft is removed. Where
    two processes write the same file, the second waits.

    Args:
        path: As for `write_file`, and so are the errors.
        draft: The hidden file, on the same filesystem; by default beside `path`.
        fsync: Wait until the file and its name are on the disk.
    """
    if _is_stream(path):
        yield path
        return

    target = path.resolve()
    draft = draft or target.with_name(f".{target.name}.ropeconv-partial")

    try:
        with make_folder(target.parent, fsync), _open_locked(draft) as file:
            try:
                file.truncate(0)
                yield draft
                _take_name(draft, target, fsync)
            except BaseException:
                _remove(draft)
                raise
        if fsync:
            for folder in {draft.parent, target.parent}:
                sync_folder(folder)
    except OSError as problem:
        # the user knows the name that was asked for, and not that of the draft
        raise OSError(problem.errno, problem.strerror, str(path)) from None


def _is_stream(path: Path) -> bool:
    """Return whether a path is a device or a FIFO.

    /dev/stdout may be a file, which must not be replaced either.
    """
    if path.is_relative_to("/dev") or path.is_relative_to("/proc"):
        return True
    return path.exists() and not path.is_file() and not path.is_dir()


def _take_name(draft: Path, target: Path, fsync: bool) -> None:
    """Rename a draft to its final name; it gets the permissions of a file that it replaces."""
    if target.is_file():
        draft.chmod(target.stat().st_mode & 0o777)
    if fsync:
        sync_file(draft)
    draft.replace(target)


def _remove(draft: Path) -> None:
    """Remove a draft after an error."""
    try:
        draft.unlink(missing_ok=True)
    except OSError:
        raise RopeconvError(f"{draft} cannot be removed; check the disk, and remove that") from None


def _open_locked(draft: Path) -> BinaryIO:
    """Open and lock a draft, after other processes have given theirs its name. Raises OSError."""
    while True:
        file = draft.open("ab")
        try:
            # the lock first: until then, another process may give the file its final name
            is_mine = try_lock(file) != "busy"
            if is_mine and os.path.samestat(os.fstat(file.fileno()), draft.stat()):
                return file
        except FileNotFoundError:
            pass  # another process has renamed it since it was opened
        except BaseException:
            file.close()
            raise
        file.close()
        time.sleep(PAUSE)
