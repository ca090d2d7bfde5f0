"""Undoes changes in place from their journals: at once where the change fails, at the next start after a kill."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from ...errors import Interrupted, RopeconvError
from ..copying import FULL, pieces_of, write_at
from ..durable import sync_folder
from .journal import Place, draft_of, journal_of, open_journal, read_journal, write_journal
from .lock import locked
from .mark import remove_mark, set_mark
from .room import move_data


@contextmanager
def journaled(path: Path, file: int, shift: int, places: list[Place]) -> Iterator[None]:
    """Keeps what a change in place overwrites, until the change is on the disk; where it fails, it is undone at once.

    path: the file. file: its locked descriptor. shift: bytes that will be inserted at its front, negative where they
    are taken away. places: that are overwritten or cut off. Raises RopeconvError where the disk fails, which says
    whether the file is as it was.
    """
    kept, changed = open_journal(draft_of(path), os.O_RDWR | os.O_CREAT), False
    try:
        write_journal(kept, file, shift, places)
        os.replace(draft_of(path), journal_of(path))
        sync_folder(path.resolve().parent)
        set_mark(file, journal_of(path.resolve()))
        yield
        journal_of(path).unlink()
        changed = True
        remove_mark(file)
        sync_folder(path.resolve().parent)
    except (Exception, KeyboardInterrupt) as problem:
        if changed:
            raise RopeconvError(
                f"{path} is changed in place, but a loss of power may bring it back, since the disk fails; check it"
            ) from problem
        raise _undone(path, file, kept, problem) from None
    finally:
        os.close(kept)


def recover(path: Path) -> bool:
    """Undoes an interrupted change of a file. Returns False where there was none.

    Raises BadSource for a journal that is damaged or of another file, RopeconvError while another process is at work
    and where the disk fails.
    """
    if not any(os.path.lexists(name) for name in (journal_of(path), draft_of(path))):
        return False
    with locked(path, hard_links=True) as file:
        if os.path.lexists(draft_of(path)):
            os.close(open_journal(draft_of(path), os.O_RDONLY))
            draft_of(path).unlink()
        if not os.path.lexists(journal_of(path)):
            return False
        kept = open_journal(journal_of(path), os.O_RDONLY)
        try:
            _undo(path, file, kept)
        except OSError as problem:
            raise RopeconvError(
                f"an interrupted change of {path} could not be undone ({problem.strerror}); do not use it before the "
                f"same command has run again, which undoes it first from {journal_of(path).name}"
            ) from None
        finally:
            os.close(kept)
    return True


def _undo(path: Path, file: int, kept: int) -> None:
    """Brings a file back from its journal and removes that. Each step can be repeated after a kill."""
    size, shift, entries = read_journal(path, file, kept)
    if shift and os.fstat(file).st_size != size:  # the data has moved; see `refuse_same_size`
        os.ftruncate(file, size + shift)
        move_data(file, -shift)
    os.ftruncate(file, size)
    for place, length, at in entries:
        for done, block in pieces_of(kept, at, length):
            write_at(file, block, place + done)
    os.fsync(file)
    journal_of(path).unlink()
    remove_mark(file)
    sync_folder(path.resolve().parent)


def _undone(path: Path, file: int, kept: int, problem: BaseException) -> BaseException:
    """Undoes a change that failed, and returns the error to raise: a sentence, or what nobody expected."""
    reason = str(problem) if isinstance(problem, RopeconvError) else getattr(problem, "strerror", "") or "stopped"
    if isinstance(problem, OSError) and problem.errno in FULL:
        reason = "the disk is full"
    try:
        if journal_of(path).exists():
            _undo(path, file, kept)
    except (OSError, RopeconvError) as worse:
        if journal_of(path).exists():
            return RopeconvError(
                f"{path} could not be changed in place ({reason}), nor put back "
                f"({getattr(worse, 'strerror', None) or worse}); do not use it before the same command has run again, "
                f"which undoes the change first from {journal_of(path).name}"
            )
    with suppress(OSError):
        draft_of(path).unlink()
    left = f"; remove {draft_of(path).name}" if os.path.lexists(draft_of(path)) else ""
    if isinstance(problem, KeyboardInterrupt):
        return Interrupted(f"interrupted; {path} is as it was{left}")
    if not isinstance(problem, OSError | RopeconvError):
        return problem
    return RopeconvError(
        f"{path} could not be changed in place ({reason}) and is as it was; write a new file with -o{left}"
    )
