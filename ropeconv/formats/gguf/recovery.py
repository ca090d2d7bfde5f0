"""Undoes changes in place from their journals: at once where the change fails, at the next start after a kill.

The journal of a change in place: the bytes that will be overwritten, until the new ones are on the disk.

A journal is `"ropeconv journal 2\n" | sha256 of the rest | u64 inode | u64 size | i64 shift | u64 count | entries`,
each entry `u64 place | u64 length | bytes`. It stands beside the file, and both are locked while a process is at work.

The mark on a file whose change in place is not finished: an extended attribute, which all its hard links share.

Where the filesystem has none, or the system, only the name under which the file was changed leads to the journal.
"""

from __future__ import annotations

import ctypes
import errno
import hashlib
import os
import stat
import struct
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from ...errors import BadSource, Interrupted
from ...rope.errors import RopeconvError, counted
from ..disk import FULL, pieces_of, sync_folder, write_at
from ..files import try_lock
from .edit import PAGE


@contextmanager
def locked(path: Path, hard_links: bool = False) -> Iterator[int]:
    """Opens a file for reading and writing and locks it (flock(2)); yields its descriptor.

    path: the file. hard_links: accept one with several names. Raises RopeconvError where another process has the lock,
    for a link, for a file with other hard links, and for a filesystem without locks; BadSource for what is not a file.
    """
    file = _opened(path)
    try:
        if not lock(file):
            raise RopeconvError(f"another ropeconv is changing {path} in place; run again when that has ended")
        status = os.fstat(file)
        if not os.path.samestat(status, os.lstat(path)):
            raise RopeconvError(f"{path} was replaced by another file meanwhile; run again")
        if status.st_nlink > 1 and not hard_links:
            raise RopeconvError(
                f"{path} has {counted(status.st_nlink - 1, 'other hard link')}, which in place would change too; "
                "write a new file with -o, or accept that with --allow-hard-links"
            )
        yield file
    finally:
        os.close(file)


def lock(file: int) -> bool:
    """Locks an open file without waiting. Returns False where another process has it.

    Raises RopeconvError on a system or filesystem without locks.
    """
    found = try_lock(file)
    if found == "none":
        raise RopeconvError(
            "a file is only changed in place under a lock, and this filesystem has none; write a new one with -o"
        )
    return found == "taken"


def is_locked(path: Path) -> bool:
    """Whether a process changes a file in place at the moment. False where there are no locks or no such file."""
    try:
        file = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    except OSError:
        return False
    try:
        return try_lock(file, shared=True) == "busy"
    finally:
        os.close(file)


def _opened(path: Path) -> int:
    try:
        file = os.open(path, os.O_RDWR | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError as problem:
        if path.is_symlink():
            raise RopeconvError(
                f"{path} is a link, likely into a cache that others read; write a new file with -o"
            ) from None
        raise OSError(problem.errno, problem.strerror, str(path)) from None
    if not stat.S_ISREG(os.fstat(file).st_mode):
        os.close(file)
        raise BadSource(f"{path} is not a file; give the path of a GGUF file")
    return file


MARK = "user.ropeconv.journal"
"""The attribute, which holds the path of the journal."""


def set_mark(file: int, journal: Path) -> None:
    """Marks an open file as one that is restored from a journal."""
    with suppress(AttributeError, OSError):
        os.setxattr(file, MARK, os.fsencode(journal))


def remove_mark(file: int) -> None:
    """Removes the mark from an open file."""
    with suppress(AttributeError, OSError):
        os.removexattr(file, MARK)


def marked_journal(path: Path) -> Path | None:
    """The journal that the mark on a file names; None where there is no mark, or no such journal any more."""
    try:
        journal = Path(os.fsdecode(os.getxattr(path, MARK)))
    except (AttributeError, OSError):
        return None
    return journal if os.path.lexists(journal) else None


MAGIC = b"ropeconv journal 2\n"
FIXED, ENTRY = struct.Struct("<QQqQ"), struct.Struct("<QQ")
BODY = len(MAGIC) + hashlib.sha256().digest_size
MAX_KEPT = 1 << 30
MAX_ENTRIES = 1 << 20

Place = tuple[int, int]
"""A range of a file: where it begins, and its length, in bytes."""

Entry = tuple[int, int, int]
"""A range of a file that a journal keeps: where it begins, its length, and where its bytes are in the journal."""


def journal_of(path: Path) -> Path:
    """The path of the journal of a file, which exists while the file is being changed."""
    return path.with_name(f".{path.name}.ropeconv-journal")


def draft_of(path: Path) -> Path:
    """The path of the journal of a file while it is written."""
    return path.with_name(f".{path.name}.ropeconv-journal.part")


def refuse_changing(path: Path) -> None:
    """Raises BadSource where a file is being changed in place, or that was interrupted: it cannot be read then."""
    journals = os.path.lexists(journal_of(path.resolve())) or marked_journal(path)
    if not journals and os.stat(path).st_nlink == 1:
        return
    if is_locked(path):
        raise BadSource(f"another ropeconv is changing {path.name} in place; run again when that has ended")
    refuse_interrupted(path)


def refuse_interrupted(path: Path) -> None:
    """Raises BadSource where a file has a journal, for one that no other process is changing."""
    if os.path.lexists(journal_of(path.resolve())):
        raise BadSource(
            f"a change of {path.name} in place was interrupted; run that command again, which undoes it first"
        )
    journal = marked_journal(path)
    if journal is not None:
        raise BadSource(
            f"a change of {path.name} in place was interrupted under another of its names, and {journal} has what "
            "undoes it; run that command again, which undoes it first"
        )


def open_journal(path: Path, flags: int) -> int:
    """Opens a journal or its draft, locks it, and returns the descriptor.

    path: of the journal. flags: as for open(2). Raises RopeconvError where another process has it, BadSource for a
    link.
    """
    try:
        kept = os.open(path, flags | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, 0o600)
    except OSError as problem:
        if problem.errno == errno.ELOOP:
            raise BadSource(f"{path} is a link, so it is not of ropeconv; remove it") from None
        raise
    if lock(kept) and path.exists() and os.path.samestat(os.fstat(kept), path.lstat()):
        return kept
    os.close(kept)
    raise RopeconvError(f"another ropeconv is at work with {path}; run again when that has ended")


def write_journal(kept: int, file: int, shift: int, places: list[Place]) -> None:
    """Writes the journal of a file that is about to be changed, and waits until it is on the disk.

    kept: descriptor of the journal. file: that of the file. shift: bytes that will be inserted at its front, negative
    where they are taken away. places: that will be overwritten or cut off.
    """
    status, digest = os.fstat(file), hashlib.sha256()
    at = BODY
    os.ftruncate(kept, 0)

    def put(data: bytes) -> None:
        nonlocal at
        digest.update(data)
        write_at(kept, data, at)
        at += len(data)

    put(FIXED.pack(status.st_ino, status.st_size, shift, len(places)))
    for place, length in places:
        put(ENTRY.pack(place, length))
        for _, block in pieces_of(file, place, length):
            put(block)
    write_at(kept, MAGIC + digest.digest(), 0)
    os.fsync(kept)


def read_journal(path: Path, file: int, kept: int) -> tuple[int, int, list[Entry]]:
    """The size of a file before its change, by how many bytes the data was to move, and what is kept: all checked.

    path: the file. file: its descriptor. kept: that of the journal. Raises BadSource for a journal that is damaged,
    that no change can have written, or that is of another file.
    """
    name, whole, status = journal_of(path), os.fstat(kept).st_size, os.fstat(file)
    damaged = BadSource(f"{name} is damaged, or not of this ropeconv; fetch the model again and remove it")
    if not BODY + FIXED.size <= whole <= MAX_KEPT + MAX_ENTRIES * ENTRY.size:
        raise damaged
    digest = hashlib.sha256()
    for _, block in pieces_of(kept, BODY, whole - BODY):
        digest.update(block)
    if os.pread(kept, BODY, 0) != MAGIC + digest.digest():
        raise damaged
    inode, size, shift, count = FIXED.unpack(os.pread(kept, FIXED.size, BODY))
    if inode != status.st_ino:
        raise BadSource(
            f"{name} is of another file than the {path.name} that is there now; where that is whole, remove the "
            "journal, else fetch the model again"
        )
    at, entries = BODY + FIXED.size, []
    for _ in range(count):
        if at + ENTRY.size > whole:
            raise damaged
        place, length = ENTRY.unpack(os.pread(kept, ENTRY.size, at))
        at += ENTRY.size
        if place + length > size:
            raise damaged
        entries.append((place, length, at))
        at += length
    cut_off = sum(length for _, length, _ in entries)
    possible = min(size, size + shift) > 0 and shift % PAGE == 0 and abs(shift) <= MAX_KEPT
    if at != whole or not possible or size > status.st_size + cut_off + max(0, -shift):
        raise damaged
    return size, shift, entries


COLLAPSE_RANGE, INSERT_RANGE = 0x08, 0x20  # linux/falloc.h


def move_data(file: int, shift: int) -> None:
    """Inserts `shift` bytes at the front of a file, or takes -shift bytes away there. Raises OSError.

    file: a descriptor for reading and writing. shift: a multiple of the filesystem's block size.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    call = libc.fallocate
    call.argtypes = [ctypes.c_int, ctypes.c_int, ctypes.c_int64, ctypes.c_int64]
    if call(file, INSERT_RANGE if shift > 0 else COLLAPSE_RANGE, 0, abs(shift)) != 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))


def refuse_no_room(path: Path, shift: int) -> None:
    """Raises RopeconvError where the filesystem cannot move the data. shift: by how many bytes."""
    if not shift or (shift % PAGE == 0 and can_insert(path)):
        return
    raise RopeconvError(
        f"the new header of {path.name} needs {shift} bytes more than there are, and this filesystem cannot insert "
        "them; write a new file with -o"
        if shift > 0
        else f"the header of {path.name} has {-shift} bytes too many, which cannot be taken away on this filesystem; "
        "write a new file with -o"
    )


def refuse_same_size(path: Path, size: int, shift: int, final: int, grows: bool) -> None:
    """Raises RopeconvError where the size of a file would not tell whether its data has moved, as undoing has to know.

    path: the file. size, final: of it, before and after the change. shift: by how many bytes its data moves. grows:
    whether tensors are appended, so that the file has many sizes meanwhile.
    """
    if shift and (final == size or (shift < 0 and grows)):
        raise RopeconvError(
            f"{path.name} would have moved data and the size of before, so that a kill could not be undone; write a "
            "new file with -o"
        )


def can_insert(path: Path) -> bool:
    """Whether the filesystem inserts ranges, tried on a file beside `path` that never has a name."""
    try:
        probe = os.open(path.resolve().parent, os.O_TMPFILE | os.O_RDWR | os.O_CLOEXEC)
    except (OSError, AttributeError):
        return False
    try:
        write_at(probe, bytes(2 * PAGE), 0)
        move_data(probe, PAGE)
        return os.fstat(probe).st_size == 3 * PAGE
    except (OSError, AttributeError):
        return False
    finally:
        os.close(probe)


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
