"""The way in which files get their names: complete and on the disk, or not at all.

Read `write_file` first. It writes results, reports, pictures, recipes and Modelfiles; `together`
makes the files of one command a set, of which all get their names or none. An output of many files
is written by `bake/execution.py`, and a GGUF file changed in place by `formats/gguf/inplace.py`. No
other module gives a file its final name.
"""

import os
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from contextvars import ContextVar
from pathlib import Path
from typing import BinaryIO

from ..rope.errors import RopeconvError
from .disk import make_folder, sync_file, sync_folder
from .files import try_lock

SUFFIX = ".ropeconv-partial"
PAUSE_SECONDS = 0.01
"""Seconds between two attempts to get a draft that another process is writing."""
PATIENCE_SECONDS = 20.0
"""Seconds that a set waits for a draft, since another set may wait for one of its own."""


_open_set: ContextVar["_FileSet | None"] = ContextVar("_open_set", default=None)
"""The set of files that `together` has begun."""


class _FileSet:
    """The drafts of files that get their names together, by their final names."""

    def __init__(self) -> None:
        self.drafts: dict[Path, Path] = {}
        self.asked_for: set[str] = set()
        """The names in the words of the caller."""

        self.names = ExitStack()
        """Gives each draft its name, or removes it after an error."""

    def add(self, path: Path, draft: Path | None, fsync: bool) -> Path:
        """Add a file, and return its draft, which is opened and locked until the end of the set."""
        target = path.resolve()
        self.asked_for.add(str(path))
        if target not in self.drafts:
            self.drafts[target] = self.names.enter_context(_rename_at_end(path, draft, fsync))
        return self.drafts[target]


@contextmanager
def together() -> Iterator[None]:
    """Let the files that a block writes with `write_file` or `draft_of` appear all at once.

        with together():
            write_file(Path("report.json"), report)  # as .report.json.ropeconv-partial
            write_file(Path("report.png"), picture)  # as .report.png.ropeconv-partial
        # now both have their names

    They are renamed one right after another at the end of the block, so that a full disk or an
    error before that leaves all files as they were. A kill between two renames leaves files of this
    run and of the one before, each of them whole; the same command writes the rest.

    In a block inside of another one, files are renamed at the end of the outer block.

    Raises:
        RopeconvError: After an error, the disk fails so that several drafts cannot be removed.
    """
    is_inner_block = _open_set.get() is not None
    if is_inner_block:
        yield
        return

    files = _FileSet()
    token = _open_set.set(files)
    try:
        # leaving `names` renames the drafts, or removes them after an error
        with files.names:
            yield
    except Exception:
        # where drafts cannot be removed, the error names only one of them
        remaining = [str(draft) for draft in files.drafts.values() if draft.exists()]
        if len(remaining) > 1:
            names = ", ".join(remaining)
            raise RopeconvError(
                f"{names} cannot be removed; check the disk, and remove them"
            ) from None
        raise
    finally:
        _open_set.reset(token)


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
    """Yield a hidden file to write into, which is renamed to `path` at the end of the block.

    The hidden file, the draft, of out/report.json is out/.report.json.ropeconv-partial. After an
    error it is removed. Missing folders above `path` are made. Where two processes write the same
    file, the second waits.

    Inside a block of `together`, all drafts are renamed at the end of the block of `together`.

    Args:
        path: The final name, as for `write_file`, whose errors this raises too.
        draft: Another name for the draft, on the same filesystem as `path`.
        fsync: Wait until the file and its name are on the disk.
    """
    # a device or a FIFO, such as /dev/stdout: the block writes to it directly, without a draft
    if _is_stream(path):
        yield path
        return

    # a file of its own
    files_of_together = _open_set.get()  # None outside a block of `together`
    if files_of_together is None:
        with _rename_at_end(path, draft, fsync) as opened_draft:
            yield opened_draft
        return

    # A file inside a block of `together`. Its content goes to the disk now, since a full disk is
    # then noticed before any of the files is renamed.
    try:
        opened_draft = files_of_together.add(path, draft, fsync)
        yield opened_draft
        if fsync:
            sync_file(opened_draft)
    except OSError as problem:
        # the error names the file that the user asked for, in place of its draft
        raise OSError(problem.errno, problem.strerror, str(path)) from None


@contextmanager
def _rename_at_end(path: Path, draft: Path | None, fsync: bool) -> Iterator[Path]:
    """Yield the draft of a file, and rename it to the final name at the end of the block.

    The draft is a hidden file. After an error in the block it is removed.

    Args:
        path: The final name.
        draft: The name of the draft. None gives .report.json.ropeconv-partial for report.json.
        fsync: Wait until the file and its name are on the disk.

    Raises:
        OSError: A file cannot be written; the error names it as the user did.
    """
    target = path.resolve()  # a link is followed
    if draft is None:
        draft = target.with_name(f".{target.name}{SUFFIX}")

    try:
        with make_folder(target.parent, fsync), _open_locked(draft) as file:
            try:
                file.truncate(0)  # a draft that a killed process left
                yield draft
                _rename_draft(draft, target, fsync)
            except BaseException:
                _remove(draft)
                raise
        if fsync:
            for folder in {draft.parent, target.parent}:
                sync_folder(folder)
    except OSError as problem:
        # in a block of `together`, the error may be about another file, and name that already
        files_of_together = _open_set.get()
        if files_of_together is not None and problem.filename in files_of_together.asked_for:
            raise
        # any other error names the draft, or nothing
        raise OSError(problem.errno, problem.strerror, str(path)) from None


def _is_stream(path: Path) -> bool:
    """Return whether a path is a device or a FIFO.

    /dev/stdout may be a file, which must not be replaced either.
    """
    if path.is_relative_to("/dev") or path.is_relative_to("/proc"):
        return True
    return path.exists() and not path.is_file() and not path.is_dir()


def _rename_draft(draft: Path, target: Path, fsync: bool) -> None:
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


def _final_name(draft: Path) -> str:
    return draft.name.removeprefix(".").removesuffix(SUFFIX)


def _open_locked(draft: Path) -> BinaryIO:
    """Return an open and locked draft. While another process has locked the draft, wait.

    A draft is a hidden file that is renamed to its final name when it is complete.

    Raises:
        OSError: The draft cannot be opened.
        RopeconvError: In a block of `together`, another process has locked the draft for 20
            seconds.
    """
    # In a block of `together` this process has locks on other drafts. Two processes may then wait
    # for each other, so the waiting needs an end.
    has_other_locks = _open_set.get() is not None
    deadline = time.monotonic() + PATIENCE_SECONDS
    while True:
        if has_other_locks and time.monotonic() > deadline:
            raise RopeconvError(
                f"another ropeconv is writing {draft.parent / _final_name(draft)}; wait for it, and"
                " run this again"
            )
        file = draft.open("ab")
        try:
            # a filesystem without locks counts as locked
            is_locked = try_lock(file) != "busy"
            if is_locked:
                # Before the lock, another process may have renamed this file to its final name.
                # Then the name of the draft has another file, or none.
                file_of_name = draft.stat()
                is_still_draft = os.path.samestat(os.fstat(file.fileno()), file_of_name)
                if is_still_draft:
                    return file
        except FileNotFoundError:  # from `draft.stat`
            pass
        except BaseException:
            file.close()
            raise

        # try again with the draft that has the name then, or a new draft
        file.close()
        time.sleep(PAUSE_SECONDS)
