"""The journal of a change in place: the bytes that will be overwritten, until the new ones are on the disk.

A journal is `"ropeconv journal 2\\n" | sha256 of the rest | u64 inode | u64 size | i64 shift | u64 count | entries`,
each entry `u64 place | u64 length | bytes`. It stands beside the file, and both are locked while a process is at work.
"""

from __future__ import annotations

import errno
import hashlib
import os
import struct
from pathlib import Path

from ...errors import BadSource, RopeconvError
from ..copying import pieces_of, write_at
from .edit import PAGE
from .lock import is_locked, lock
from .mark import marked_journal

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
