"""Changes a GGUF file in place, so that a kill at any moment can be undone.

The new header overwrites the old one where it fits, which the reserve in headers written by
ropeconv allows. Else space is made at the front by FALLOC_FL_INSERT_RANGE, which moves no data
(ext4, XFS; fallocate(2)); an edit that restores an earlier file removes it again by
FALLOC_FL_COLLAPSE_RANGE.

The file is locked all the time. Before anything changes, all bytes that will be overwritten are
written to a journal beside it, which is removed when the new bytes are on the disk. `recover`
restores a file from its journal:

    "ropeconv journal 3\\n" | sha256 of the rest
    | u64 inode | u64 size | i64 shift | u64 count | entries | neighbour

Each entry is `u64 place | u64 length | bytes`. The neighbour is a small text that changes together
with the model, such as its Modelfile: JSON of a `KeptNeighbour`, or nothing.
"""

import ctypes
import errno
import hashlib
import os
import stat
import struct
from collections.abc import Generator, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import NamedTuple, NoReturn

import msgspec

from ...errors import BadSource, Disagreement, Interruption
from ...rope.errors import RopeconvError, counted
from ..disk import FULL, libc, pieces_of, sync_folder, write_at
from ..drafts import write_file
from ..files import journal_of, try_lock
from .edit import PAGE, Edit, RewrittenHeader, changed_pieces, head_bytes, rewrite
from .file import GgufFile
from .header import GgufHeader, read_header

MAGIC = b"ropeconv journal 3\n"
FIXED_FIELDS = struct.Struct("<QQqQ")
ENTRY_FIELDS = struct.Struct("<QQ")
BODY = len(MAGIC) + hashlib.sha256().digest_size
MAX_KEPT = 1 << 30
"""The most bytes that are kept in a journal."""
MAX_ENTRIES = 1 << 20
MAX_NEIGHBOUR = 1 << 20
"""The most bytes of a neighbour in a journal: its text before and after the change."""
COLLAPSE_RANGE = 0x08  # linux/falloc.h
INSERT_RANGE = 0x20  # linux/falloc.h

Place = tuple[int, int]
"""A range of a file: its first byte, and its length."""
Entry = tuple[int, int, int]
"""A range in a journal: its first byte in the file, its length, its first byte in the journal."""


class Neighbour(NamedTuple):
    """A small text beside a model that gets its name in one set with the change of the model."""

    name: str
    text: str


class KeptNeighbour(msgspec.Struct, frozen=True):
    """The text beside a model in a journal, before and after the change."""

    name: str

    before: str | None
    """Its text before the change; None where it did not exist."""

    after: str


def change_by_phases(
    source: GgufFile, edit: Edit, beside: Neighbour | None = None
) -> Generator[str, None, None]:
    """Change the first shard of a GGUF model in place. Yields the name of each finished phase.

    First all bytes that will be overwritten are written to a journal beside the file. From then on,
    a change that a kill interrupts is undone from the journal, by the next command (`recover`). An
    error that is thrown into this generator before "done" undoes the change at once.

    Args:
        source: The model.
        edit: The change.
        beside: A text beside the model, such as a Modelfile, that changes together with it.

    Raises:
        RopeconvError: Where the edit changes another shard, the file has other names, the
            filesystem cannot make space or the disk fails, and where another process changes the
            file or has changed it since it was read; nothing is changed then.
    """
    # The new header, and by how many bytes it is longer than the old one (`shift`), which is by how
    # much the data moves; then the ranges that will be overwritten (`places`).
    path = source.path
    header = source.header
    rewritten = _rewrite_in_place(header, edit, path)
    head = head_bytes(rewritten, header, edit, keep_data=True)
    shift = len(head) - header.data_start
    size = _final_size(header, edit, rewritten, shift)
    places = _ranges_to_overwrite(header, edit, rewritten)
    changes = {name: change for name, change in edit.changes.items() if name not in edit.removed}

    # under the lock: the file must still be the one for which the change was planned, and the
    # change must be possible and undoable
    with lock_file(path) as file:
        refuse_interrupted(path)
        source.refuse_changed()
        if read_header(path) != header:
            raise RopeconvError(f"{path} was changed since it was read; run again")
        _refuse_no_space(path, shift)
        _refuse_not_undoable(path, header, edit, shift, size)
        if sum(length for _, length in places) > MAX_KEPT:
            raise RopeconvError(
                f"too much of {path.name} changes for doing it in place; write a new file with -o"
            )

        neighbour = _keep_neighbour(path, beside)
        with keep_journal(path, file, shift, places, neighbour):
            yield "journal"

            # The data moves first, to make space for the header. That changes the size of the file,
            # by which `_undo` sees whether it has happened.
            if shift:
                move_data(file, shift)
                yield "room"
            write_at(file, head, 0)
            yield "header"

            # tensors that change, tensors that are added, and the end of the file
            for at, block in changed_pieces(file, header, len(head), changes):
                write_at(file, block, at)
            yield "tensors"
            for name, data in edit.added.items():
                write_at(file, data, len(head) + rewritten.tensors[name].offset)
            if edit.removed or edit.layout:
                os.ftruncate(file, size)
            yield "added"

            # when all that is on the disk, the text beside the model; then the journal can go
            os.fsync(file)
            yield "durable"
            if neighbour is not None and neighbour.before != neighbour.after:
                write_file(path.with_name(neighbour.name), neighbour.after)
                yield "neighbour"
        yield "done"


def _rewrite_in_place(header: GgufHeader, edit: Edit, path: Path) -> RewrittenHeader:
    """Return the header after an edit, if that can be made in place.

    Args:
        header: The header before.
        edit: The changes.
        path: The file, for messages.

    Raises:
        RopeconvError: Where the edit changes another shard, or moves tensors.
    """
    # one file is locked and has one journal
    for name in edit.changes:
        if name not in header.tensors:
            raise RopeconvError(
                f"{name} is in another shard; in place only the first is changed; write new"
                " files with -o"
            )

    # data that moved could not be undone from a journal, which has only the bytes that change
    rewritten = rewrite(header, edit)
    for old_place, new_place, _ in rewritten.moves(header):
        if old_place != new_place:
            raise RopeconvError(
                f"a tensor that goes is before others in {path.name}, which would have to move;"
                " write a new file with -o"
            )
    return rewritten


def _final_size(header: GgufHeader, edit: Edit, rewritten: RewrittenHeader, shift: int) -> int:
    """The size of the file after the edit, in bytes."""
    end_of_tensors = header.data_start + shift + rewritten.data_size
    if edit.layout:
        return end_of_tensors + edit.layout.tail
    if edit.removed:
        return end_of_tensors
    # a file may have padding behind its last tensor, which stays
    return max(header.size + shift, end_of_tensors)


def _ranges_to_overwrite(header: GgufHeader, edit: Edit, rewritten: RewrittenHeader) -> list[Place]:
    """Return the ranges of a file that an edit overwrites or cuts off, as (first byte, length).

    Args:
        header: The header before the edit.
        edit: The changes.
        rewritten: The header after the edit.
    """
    data_start = header.data_start
    ranges = [(0, data_start)]  # the header

    # tensors with new contents
    for name in edit.changes:
        if name not in edit.removed:
            info = header.tensors[name]
            ranges.append((data_start + info.offset, info.size))

    # The end of the file, behind the last tensor that stays: tensors are added or removed there. An
    # edit that restores an earlier file (`layout`) gives the end the length of the earlier one.
    changes_end = edit.added or edit.removed or edit.layout
    if changes_end:
        end_of_kept_tensors = data_start + rewritten.kept_size
        ranges.append((end_of_kept_tensors, header.size - end_of_kept_tensors))
    return ranges


@contextmanager
def lock_file(path: Path, hard_links: bool = False) -> Iterator[int]:
    """Open a file for reading and writing and lock it (flock(2)); yields its descriptor.

    Args:
        path: The file.
        hard_links: Accept a file with several names.

    Raises:
        RopeconvError: Where another process has the lock, for a link, for a file with other hard
            links, and for a filesystem without locks.
        BadSource: For anything but a file.
    """
    # O_NOFOLLOW: the Hub's cache has links to blobs that other programs share.
    # O_NONBLOCK: opening a FIFO would wait for a writer.
    try:
        file = os.open(path, os.O_RDWR | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError as problem:
        if path.is_symlink():
            raise RopeconvError(
                f"{path} is a link, likely into a cache that others read; write a new file with -o"
            ) from None
        raise OSError(problem.errno, problem.strerror, str(path)) from None

    try:
        status = os.fstat(file)
        if not stat.S_ISREG(status.st_mode):
            raise BadSource(f"{path} is not a file; give the path of a GGUF file")
        if not lock(file):
            raise RopeconvError(
                f"another ropeconv is changing {path} in place; run again when that has ended"
            )
        # the lock is on the open file, and the name may have gone to another one before it was got
        if not os.path.samestat(status, os.lstat(path)):
            raise RopeconvError(f"{path} was replaced by another file meanwhile; run again")
        if status.st_nlink > 1 and not hard_links:
            raise RopeconvError(
                f"{path} has {counted(status.st_nlink - 1, 'other hard link')}, which in place"
                " would change too; write a new file with -o"
            )
        yield file
    finally:
        os.close(file)


def lock(file: int) -> bool:
    """Lock an open file without waiting. Returns False where another process has the lock.

    Raises:
        RopeconvError: On a system or filesystem without locks.
    """
    status = try_lock(file)
    if status == "none":
        raise RopeconvError(
            "a file is only changed in place under a lock, and this filesystem has none; write a"
            " new one with -o"
        )
    return status == "taken"


def _is_locked(path: Path) -> bool:
    """Whether another process has the lock of a file."""
    try:
        file = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    except OSError:
        return False
    try:
        return try_lock(file, shared=True) == "busy"
    finally:
        os.close(file)


def _draft_of(path: Path) -> Path:
    """The name of a journal until it is complete."""
    return path.with_name(f".{path.name}.ropeconv-journal.part")


def refuse_changing(path: Path) -> None:
    """Raise BadSource for a file that is being changed in place, or was when that stopped."""
    if not os.path.lexists(journal_of(path.resolve())):
        return
    if _is_locked(path):
        raise BadSource(
            f"another ropeconv is changing {path.name} in place; run again when that has ended"
        )
    refuse_interrupted(path)


def refuse_interrupted(path: Path) -> None:
    """Raise BadSource where a file has a journal, for one that no other process is changing."""
    if os.path.lexists(journal_of(path.resolve())):
        raise BadSource(
            f"a change of {path.name} in place was interrupted; run that command again, which"
            " undoes it first"
        )


def _open_journal(path: Path, flags: int) -> int:
    """Open and lock a journal or its draft.

    Args:
        path: The journal or its draft.
        flags: How it is opened, as in `os.open`.

    Raises:
        RopeconvError: Where another process has it.
        BadSource: For a link.
    """
    try:
        journal_file = os.open(path, flags | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, 0o600)
    except OSError as problem:
        if problem.errno == errno.ELOOP:
            raise BadSource(f"{path} is a link, so it is not of ropeconv; remove it") from None
        raise

    # another process may have renamed or removed the file between opening and locking it
    is_locked = lock(journal_file)
    if is_locked and path.exists():
        has_its_name = os.path.samestat(os.fstat(journal_file), path.lstat())
        if has_its_name:
            return journal_file
    os.close(journal_file)
    raise RopeconvError(f"another ropeconv is at work with {path}; run again when that has ended")


def _keep_neighbour(path: Path, beside: Neighbour | None) -> KeptNeighbour | None:
    """Return the text beside a model before and after its change, for the journal.

    Args:
        path: The model.
        beside: The text that changes together with it, such as a Modelfile; None without one.

    Raises:
        RopeconvError: For a present one that is not text, and for texts that are too long.
    """
    if beside is None:
        return None
    place = path.with_name(beside.name)
    before = None
    if os.path.lexists(place):
        try:
            before = place.read_bytes().decode()
        except UnicodeDecodeError:
            raise RopeconvError(f"{place} is not text; move it away and run again") from None

    # JSON has up to six bytes for a character, and names of its own beside the texts
    characters = len(before or "") + len(beside.text)
    most_bytes = 6 * characters + 1000
    if most_bytes > MAX_NEIGHBOUR:
        raise RopeconvError(f"{place} is too long to be changed together with {path.name}")
    return KeptNeighbour(beside.name, before, beside.text)


def _write_journal(
    journal_file: int, file: int, shift: int, places: list[Place], neighbour: KeptNeighbour | None
) -> None:
    """Write the journal of a file that is about to be changed, and wait until it is on the disk.

    Args:
        journal_file: Descriptor of the journal.
        file: Descriptor of the file.
        shift: Bytes that will be inserted at its front, negative where they are removed.
        places: The ranges that are overwritten or cut off.
        neighbour: The text that changes together with the file.
    """
    os.ftruncate(journal_file, 0)
    digest = hashlib.sha256()
    end = BODY  # where the body begins, behind the magic word and the digest
    for data in _journal_body(file, shift, places, neighbour):
        digest.update(data)
        end += write_at(journal_file, data, end)

    # the digest is at the front and written last: a journal that a kill cut off has none
    write_at(journal_file, MAGIC + digest.digest(), 0)
    os.fsync(journal_file)


def _journal_body(
    file: int, shift: int, places: list[Place], neighbour: KeptNeighbour | None
) -> Iterator[bytes]:
    """Yield the content of a journal, from which a change to a file can be undone.

    The journal begins with a magic string and the SHA-256 of this content, which the caller writes.

    Args:
        file: Descriptor of the file, which has not changed yet.
        shift: The number of bytes that will be inserted at the front of the file; negative if
            bytes will be removed there.
        places: The ranges that the change overwrites or cuts off, as (first byte, length).
        neighbour: A small text beside the file, such as its Modelfile, that changes with it; None
            without such a text.
    """
    # the file: its inode and its size, then the shift and the number of ranges
    status = os.fstat(file)
    yield FIXED_FIELDS.pack(status.st_ino, status.st_size, shift, len(places))

    # for each range its place, its length, and the bytes that the file has there now
    for place, length in places:
        yield ENTRY_FIELDS.pack(place, length)
        for _, block in pieces_of(file, place, length):
            yield block

    # the text beside the file before and after the change, as JSON
    if neighbour is not None:
        yield msgspec.json.encode(neighbour)


class KeptChange(NamedTuple):
    """The content of a journal, checked."""

    size: int
    """The size of the file before its change, in bytes."""

    shift: int
    """Bytes that were to be inserted at its front, negative where they were to be removed."""

    entries: list[Entry]
    neighbour: KeptNeighbour | None


def _read_journal(path: Path, file: int, journal_file: int) -> KeptChange:
    """Read and check the journal of a file.

    Args:
        path: The file.
        file: Its descriptor.
        journal_file: Descriptor of the journal.

    Raises:
        BadSource: Where the journal is damaged or that of another file.
    """
    name = journal_of(path)
    journal_size = os.fstat(journal_file).st_size
    status = os.fstat(file)
    damaged = BadSource(
        f"{name} is damaged, or not of this ropeconv; fetch the model again and remove it"
    )
    largest = MAX_KEPT + MAX_ENTRIES * ENTRY_FIELDS.size + MAX_NEIGHBOUR
    if not BODY + FIXED_FIELDS.size <= journal_size <= largest:
        raise damaged

    # a journal that a kill cut off has no digest
    digest = hashlib.sha256()
    for _, block in pieces_of(journal_file, BODY, journal_size - BODY):
        digest.update(block)
    if os.pread(journal_file, BODY, 0) != MAGIC + digest.digest():
        raise damaged

    # a model that was downloaded again has the name, and must not get bytes of the earlier one
    inode, size, shift, count = FIXED_FIELDS.unpack(os.pread(journal_file, FIXED_FIELDS.size, BODY))
    if inode != status.st_ino:
        raise BadSource(
            f"{name} is of another file than the present {path.name}; if that is complete, remove"
            " the journal, else fetch the model again"
        )

    # the ranges that were to be overwritten: first byte, length, and the old bytes behind them
    entries = []
    at = BODY + FIXED_FIELDS.size
    for _ in range(count):
        if at + ENTRY_FIELDS.size > journal_size:
            raise damaged
        place, length = ENTRY_FIELDS.unpack(os.pread(journal_file, ENTRY_FIELDS.size, at))
        at += ENTRY_FIELDS.size
        if place + length > size:
            raise damaged
        entries.append((place, length, at))
        at += length

    # the text beside the model is all that may follow
    neighbour = None
    if at != journal_size:
        neighbour = _read_neighbour(path, journal_file, at, journal_size - at)
        if neighbour is None:
            raise damaged

    # Numbers that no change of ropeconv has. Data moves by whole pages, and neither the old file
    # nor the one with moved data is empty.
    is_possible_shift = shift % PAGE == 0 and abs(shift) <= MAX_KEPT
    if not is_possible_shift:
        raise damaged
    size_after_shift = size + shift
    if size <= 0 or size_after_shift <= 0:
        raise damaged

    # The old file cannot have been larger than the present one together with the bytes that may
    # have been cut off at its end, which are in the journal, and those removed in front. Undoing
    # would fill the rest with zeros.
    kept_bytes = sum(length for _, length, _ in entries)
    removed_in_front = max(0, -shift)
    if size > status.st_size + kept_bytes + removed_in_front:
        raise damaged
    return KeptChange(size, shift, entries, neighbour)


def _read_neighbour(path: Path, journal_file: int, at: int, length: int) -> KeptNeighbour | None:
    """Return the text beside the file from the end of a journal; None for other bytes."""
    if not 0 < length <= MAX_NEIGHBOUR:
        return None
    try:
        neighbour = msgspec.json.decode(os.pread(journal_file, length, at), type=KeptNeighbour)
    except (msgspec.MsgspecError, UnicodeDecodeError):
        return None
    # a name that leaves the folder, or that of the model, was not written by ropeconv
    name = neighbour.name
    if not name or name.startswith(".") or "/" in name or "\0" in name or name == path.name:
        return None
    return neighbour


def move_data(file: int, shift: int) -> None:
    """Insert `shift` bytes at the front of an open file, or remove -shift bytes. Raises OSError.

    `shift` is a multiple of the filesystem's block size.
    """
    # os.posix_fallocate has no modes, so this is the function of the C library
    call = libc("fallocate", ctypes.c_int, ctypes.c_int, ctypes.c_int64, ctypes.c_int64)
    mode = INSERT_RANGE if shift > 0 else COLLAPSE_RANGE
    if call(file, mode, 0, abs(shift)) != 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))


def _refuse_no_space(path: Path, shift: int) -> None:
    """Raise RopeconvError where the filesystem cannot move the data.

    Args:
        path: The file.
        shift: Bytes that must be inserted at its front, negative where they must be removed.
    """
    if shift == 0:
        return
    # fallocate(2) moves whole blocks of the filesystem, of which a PAGE is a multiple
    if shift % PAGE == 0 and can_insert(path):
        return
    if shift > 0:
        raise RopeconvError(
            f"the new header of {path.name} needs {shift} more bytes, and this filesystem cannot"
            " insert them; write a new file with -o"
        )
    raise RopeconvError(
        f"the header of {path.name} has {-shift} bytes too many, and this filesystem cannot remove"
        " them; write a new file with -o"
    )


def _refuse_not_undoable(path: Path, header: GgufHeader, edit: Edit, shift: int, size: int) -> None:
    """Raise RopeconvError where `_undo` could not tell from the size that the data has moved."""
    if shift == 0:
        return
    passes_old_size = shift < 0 and bool(edit.added)
    if size == header.size or passes_old_size:
        raise RopeconvError(
            f"{path.name} would have moved data and the size of before, so that a kill could"
            " not be undone; write a new file with -o"
        )


def can_insert(path: Path) -> bool:
    """Return whether the filesystem can insert bytes at the front of a file, without moving data.

    ext4 and XFS can (fallocate(2), FALLOC_FL_INSERT_RANGE). It is tried on a file without a name.
    """
    # O_TMPFILE opens a file that has no name and goes when it is closed; some filesystems lack it,
    # and so do other systems than Linux
    try:
        probe = os.open(path.resolve().parent, os.O_TMPFILE | os.O_RDWR | os.O_CLOEXEC)
    except (OSError, AttributeError):
        return False

    # a file of two pages has three after one was inserted
    try:
        write_at(probe, bytes(2 * PAGE), 0)
        move_data(probe, PAGE)
        return os.fstat(probe).st_size == 3 * PAGE
    except (OSError, TypeError):  # the latter where the system has no fallocate
        return False
    finally:
        os.close(probe)


@contextmanager
def keep_journal(
    path: Path,
    file: int,
    shift: int,
    places: list[Place],
    neighbour: KeptNeighbour | None = None,
) -> Iterator[None]:
    """Make the block, which changes a file in place, happen as a whole or not at all.

    The bytes that the change overwrites are copied to a journal, a file beside the model, before
    the block begins. An error in the block restores them from there. After a kill, the next run
    does that (`recover`). The journal is removed when the change is on the disk.

    Args:
        path: The file.
        file: Its locked descriptor.
        shift: Bytes that will be inserted at its front, negative where they are removed.
        places: The ranges that are overwritten or cut off.
        neighbour: The text that changes together with the file.

    Raises:
        RopeconvError: Where the disk fails, which says whether the file has changed.
    """
    draft = _draft_of(path)
    journal = journal_of(path)
    folder = path.resolve().parent
    journal_file = _open_journal(draft, os.O_RDWR | os.O_CREAT)

    block_has_ended = False
    try:
        # the journal is complete under a hidden name (the draft) before it gets its own, and both
        # are on the disk before the first byte of the model changes
        _write_journal(journal_file, file, shift, places, neighbour)
        os.replace(draft, journal)
        sync_folder(folder)
        yield

        # the block has waited until its last byte is on the disk, so the journal can go
        block_has_ended = True
        journal.unlink()
        sync_folder(folder)
    except (Exception, KeyboardInterrupt) as problem:
        # without its journal the change cannot be undone, and the error says that it was made
        is_final = block_has_ended and not os.path.lexists(journal)
        if is_final:
            _raise_after_change(path, problem)
        # any other error undoes the change; the one that is raised says whether that worked
        raise _undo_failed(path, file, journal_file, problem) from None
    finally:
        os.close(journal_file)


def _raise_after_change(path: Path, problem: BaseException) -> NoReturn:
    """Raise the error for a problem that came after a change had become final.

    Args:
        path: The file, which has its new content.
        problem: A signal, or an error of the disk when the removal of the journal was synced.
    """
    if isinstance(problem, KeyboardInterrupt):
        raise Interruption(f"interrupted; {path} is changed in place as a whole") from None
    raise RopeconvError(
        f"{path} is changed in place, but a loss of power may undo that, since the disk"
        " fails; check it"
    ) from problem


def recover(path: Path) -> bool:
    """Undo an interrupted change of a file, from its journal. Returns False where there was none.

    Raises:
        BadSource: For a journal that is damaged or of another file.
        RopeconvError: While another process is at work and where the disk fails.
    """
    draft = _draft_of(path)
    journal = journal_of(path)
    if not os.path.lexists(journal) and not os.path.lexists(draft):
        return False

    with lock_file(path, hard_links=True) as file:
        # A draft is a journal that is not complete, so nothing of the model has changed, and it is
        # removed. It is opened first, which fails for a link and while another process has it.
        if os.path.lexists(draft):
            os.close(_open_journal(draft, os.O_RDONLY))
            draft.unlink()
        if not os.path.lexists(journal):
            return False

        journal_file = _open_journal(journal, os.O_RDONLY)
        try:
            _undo(path, file, journal_file)
        except OSError as problem:
            raise RopeconvError(
                f"an interrupted change of {path} could not be undone ({problem.strerror}); do not"
                " use it before the same command has run again, which undoes it first from"
                f" {journal.name}"
            ) from None
        finally:
            os.close(journal_file)
    return True


def _undo(path: Path, file: int, journal_file: int) -> None:
    """Restore a file from its journal, and remove the journal.

    After a kill, the same steps can run again from the beginning.

    Args:
        path: The file.
        file: Descriptor of the file, which is locked.
        journal_file: Descriptor of the journal.
    """
    # `shift` is the number of bytes that the change inserted at the front of the file, negative for
    # removed bytes. `neighbour` is a small text beside the file that changed with it.
    old_size, shift, entries, neighbour = _read_journal(path, file, journal_file)

    # Move the data back. A file with its old size is not moved: the change had not moved the data
    # yet, or an undo that was killed has moved it back. (`_refuse_not_undoable` refuses changes
    # that move the data and keep the size.)
    has_old_size = os.fstat(file).st_size == old_size
    if shift != 0 and not has_old_size:
        # cut off the bytes that were added at the end, so that the move alone gives the old size
        os.ftruncate(file, old_size + shift)
        move_data(file, -shift)
    os.ftruncate(file, old_size)

    # write the old bytes of each range, which the journal has at `place_in_journal`
    for place, length, place_in_journal in entries:
        for done, block in pieces_of(journal_file, place_in_journal, length):
            write_at(file, block, place + done)
    os.fsync(file)

    # restore the text beside the file, and remove the journal
    if neighbour is not None:
        _undo_neighbour(path.with_name(neighbour.name), neighbour)
    journal_of(path).unlink()
    sync_folder(path.resolve().parent)


def _undo_neighbour(place: Path, neighbour: KeptNeighbour) -> None:
    """Restore the text beside a model, unless another program has changed it since.

    Args:
        place: The file with the text.
        neighbour: The text before and after the change of the model.
    """
    try:
        is_ours = place.is_file() and place.read_bytes() == neighbour.after.encode()
    except FileNotFoundError:
        return
    if not is_ours:
        return
    if neighbour.before is None:
        place.unlink()
    else:
        write_file(place, neighbour.before)


def _undo_failed(path: Path, file: int, journal_file: int, problem: BaseException) -> BaseException:
    """Undo a change that failed, and return an error that says which content the file has now.

    Args:
        path: The file.
        file: Descriptor of the file, which is locked.
        journal_file: Descriptor of the journal.
        problem: The error that ended the change.
    """
    # A file without a journal has its old content: the journal is written before the first byte of
    # the file changes, and is removed after the last byte is restored.
    reason = _reason_of(problem)
    journal = journal_of(path)
    try:
        if journal.exists():
            _undo(path, file, journal_file)
    except (OSError, RopeconvError) as undo_problem:
        # if the journal is removed already, only the sync of its folder has failed, and the old
        # content is restored
        is_not_restored = journal.exists()
        if is_not_restored:
            why_not = getattr(undo_problem, "strerror", None) or undo_problem
            return RopeconvError(
                f"{path} could not be changed in place ({reason}), nor restored ({why_not}); do not"
                " use it before the same command has run again, which undoes the change first from"
                f" {journal.name}"
            )

    # an error while the journal was written leaves its draft, a file with another name
    draft = _draft_of(path)
    with suppress(OSError):
        draft.unlink()
    advice = ""
    if os.path.lexists(draft):
        advice = f"; remove {draft.name}"
    return _error_without_change(path, problem, reason, advice)


def _error_without_change(
    path: Path, problem: BaseException, reason: str, advice: str
) -> BaseException:
    """Return the error of a change that has failed and left a file with its old content.

    Args:
        path: The file.
        problem: The error that ended the change.
        reason: The error in a few words.
        advice: Another thing that the user should do, after a semicolon; empty for none.
    """
    if isinstance(problem, KeyboardInterrupt):
        return Interruption(f"interrupted; {path} has not changed{advice}")
    if not isinstance(problem, OSError | RopeconvError):  # an error of the program
        return problem
    message = (
        f"{path} could not be changed in place ({reason}) and has not changed; write a new file"
        f" with -o{advice}"
    )
    # a check of the changed file that failed keeps its exit code
    if isinstance(problem, Disagreement):
        return Disagreement(message)
    return RopeconvError(message)


def _reason_of(problem: BaseException) -> str:
    """Why a change failed, in a few words."""
    if isinstance(problem, RopeconvError):
        return str(problem)
    if isinstance(problem, OSError) and problem.errno in FULL:
        return "the disk is full"
    return getattr(problem, "strerror", "") or "stopped"
