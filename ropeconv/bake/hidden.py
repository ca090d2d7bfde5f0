"""The place of an output, the hidden folder beside it in which the output is written, and the moves
to final names.
"""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import BinaryIO

import msgspec

from ..errors import BadSource
from ..formats.disk import (
    TAKEN,
    FileIdentity,
    exchange,
    free_bytes,
    human,
    obstacle,
    rename_new,
    same_blocks,
    sync_folder,
)
from ..formats.files import try_lock
from ..formats.gguf.header import read_header
from ..formats.journal import decode_line, encode_line
from ..formats.kind import is_gguf
from ..inspection.receipts.companion import read_companion
from ..inspection.receipts.storage import DRAFT, has_own_card, read_receipt
from ..models.source import CARD, RECEIPT
from ..rope.errors import RopeconvError
from .plan import FilePlan, PlannedFile

MARGIN = 16 * 1024 * 1024
NOT_ADDED = (".cache", DRAFT)
"""Files that the Hub's client and a killed `validate` leave in a folder; --force deletes them."""
LOCK = "lock"
NOT_EMPTY = {errno.ENOTEMPTY, errno.EEXIST, errno.EBUSY}
"""Errors of removing a folder on NFS, where a removed file remains until it is closed."""


def refuse_place(plan: FilePlan) -> None:
    """Raise RopeconvError for a place that cannot have an output: a link, the source, a folder that
    does not exist.
    """
    out = plan.out
    if out.name in ("", ".."):
        raise RopeconvError(f"{out} is a folder without a name of its own; name a new one with -o")
    source = Path(plan.source.reference).resolve()
    if source.exists() and plan.source.kind != "hub":
        place = out.resolve()
        if place == source or (
            plan.is_folder and (source in place.parents or place in source.parents)
        ):
            raise RopeconvError(
                f"{out} and the source lie within each other; choose another place with -o"
            )
    for path in _places(plan):
        if path.is_symlink():
            raise RopeconvError(
                f"{path} is a link to {os.readlink(path)}; give the place itself with -o"
            )
    problem = obstacle(out.parent)
    if problem:
        raise RopeconvError(f"{problem}, so {out} cannot be written; choose another place with -o")


def refuse_occupied(plan: FilePlan, force: bool) -> None:
    """Raise RopeconvError where a file or folder at the place of an output may not be replaced.

    With `force`, an earlier output of ropeconv may be replaced, if no files were added to it.
    """
    for path in _places(plan):
        if not os.path.lexists(path) or is_empty(path):
            continue
        refuse_foreign(path, plan.out, path)
        if not force:
            raise RopeconvError(
                f"{path} exists; choose another place with -o, or replace it with --force"
            )


def refuse_foreign(place: Path, out: Path, known_as: Path) -> None:
    """Raise RopeconvError where `--force` does not replace a file or folder: it is foreign, or has
    added files.

    place: of an earlier output, or one of its shards. out: the place of its first shard. known_as:
    for the message.
    """
    if place.is_dir() or not is_gguf(out if out.exists() else place):
        is_output = (place / RECEIPT).is_file()
    else:
        is_output = False
        with suppress(BadSource):
            is_output = RECEIPT in read_header(out if out.exists() else place).values
    if not is_output:
        raise RopeconvError(
            f"{known_as} exists and has no receipt of ropeconv, so --force will not replace it;"
            " choose another place with -o, or remove it"
        )
    if not place.is_dir():
        return
    if read_companion(place) is not None:
        raise RopeconvError(f"{known_as} exists; remove it, or choose another place with -o")
    receipt = read_receipt(place)
    known = {file.name for file in receipt.files} | {RECEIPT}
    if has_own_card(place, receipt):
        known.discard(CARD)
    added = sorted(
        name for name in _names(place) if name not in known and name.split("/")[0] not in NOT_ADDED
    )
    if added:
        more = f" and {len(added) - 1} more" if len(added) > 1 else ""
        raise RopeconvError(
            f"{known_as} has {added[0]}{more}, which ropeconv did not write and --force would"
            " delete; move it away, or choose another place with -o"
        )


def refuse_full(plan: FilePlan, pending: Sequence[PlannedFile], folder: Path, link: bool) -> None:
    """Raise RopeconvError where the disk of `folder` has less space than the pending files of an
    output need.
    """
    local = (
        None
        if plan.source.kind == "hub"
        else next(filter(None, map(plan.origin, plan.files)), None)
    )
    shared = link or same_blocks(local, folder)
    needed = sum(file.size for file in pending if not (shared and file.action == "copy")) + MARGIN
    free = free_bytes(folder)
    if needed > free:
        raise RopeconvError(
            f"{plan.out.parent} has {human(free)} free and the output needs {human(needed)}; "
            "free some, use -o, or share unchanged files with --link"
        )


def is_empty(place: Path) -> bool:
    """Return whether a path is an empty folder."""
    return place.is_dir() and not place.is_symlink() and not any(place.iterdir())


def _places(plan: FilePlan) -> list[Path]:
    return [plan.out] if plan.is_folder else [plan.out.with_name(file.name) for file in plan.files]


def _names(root: Path) -> Iterator[str]:
    """Names of all files in a folder and of links to folders, relative to it."""
    for folder, subfolders, files in os.walk(root):
        for name in (*files, *(name for name in subfolders if Path(folder, name).is_symlink())):
            yield Path(folder, name).relative_to(root).as_posix()


class HiddenFolder:
    """The hidden folder of an output, which need not exist.

    It has the files `lock` and `journal`, and the folders `drafts` (incomplete files), `new`
    (finished ones), and `old` (files that are being replaced, where a system cannot exchange two
    names).
    """

    def __init__(self, out: Path) -> None:
        self.out = out
        self.root = out.parent / f".{out.name}.ropeconv-partial"
        self.journal, self.drafts, self.new, self.old = (
            self.root / name for name in ("journal", "drafts", "new", "old")
        )

    def clear(self) -> None:
        """Remove everything but the lock, as far as possible."""
        for folder in (self.drafts, self.new, self.old):
            shutil.rmtree(folder, ignore_errors=True)
        with suppress(OSError):
            for path in self.root.iterdir():
                if path.name != LOCK:
                    (
                        shutil.rmtree(path)
                        if path.is_dir() and not path.is_symlink()
                        else path.unlink()
                    )


def discard(out: Path) -> None:
    """Remove the finished files that a stopped run keeps beside an output.

    Raises RopeconvError where another process is writing the output.
    """
    if HiddenFolder(out).root.is_dir():
        with locked(out) as hidden:
            hidden.clear()


@contextmanager
def locked(out: Path) -> Iterator[HiddenFolder]:
    """Make and lock the hidden folder of an output. It is removed at the end, after an error only
    if it is empty.

    Raises RopeconvError where another process has it and where it cannot be removed, OSError where
    it cannot be made.
    """
    hidden = HiddenFolder(out)
    if hidden.root.is_symlink():
        raise RopeconvError(f"{hidden.root} is a link, and ropeconv writes there; remove it")
    lock = _lock(hidden)
    try:
        yield hidden
    except BaseException:
        with suppress(OSError):
            _remove(hidden)
        raise
    else:
        try:
            _remove(hidden)
        except OSError as problem:
            raise RopeconvError(
                f"{out} is complete, and {hidden.root} cannot be removed ({problem.strerror});"
                " check the disk, and remove that"
            ) from None
    finally:
        lock.close()
        with suppress(OSError):
            hidden.root.rmdir()


def _remove(hidden: HiddenFolder) -> None:
    is_cleared = all(
        path.name == LOCK or path.name.startswith(".nfs") for path in hidden.root.iterdir()
    )
    (
        hidden.root / LOCK
    ).unlink()  # the lock holds until it is closed; a waiting process sees that the file is gone
    try:
        hidden.root.rmdir()
    except OSError as problem:
        if not (is_cleared and problem.errno in NOT_EMPTY):
            raise


def _lock(hidden: HiddenFolder) -> BinaryIO:
    path = hidden.root / LOCK
    while True:
        with suppress(FileExistsError):
            hidden.root.mkdir()
        try:
            file = path.open("ab")
        except FileNotFoundError:
            continue  # another process has just removed the folder
        except OSError:
            with suppress(OSError):
                hidden.root.rmdir()
            raise
        if try_lock(file) == "busy":
            file.close()
            raise RopeconvError(
                f"another ropeconv is writing {hidden.out}; wait for it, or choose another place"
                " with -o"
            )
        with suppress(FileNotFoundError):
            if os.path.samestat(os.fstat(file.fileno()), path.stat()):
                return file
        file.close()


class Begun(msgspec.Struct, frozen=True, tag="plan"):
    """The first line. stamp: of the plan."""

    stamp: str


class FinishedFile(msgspec.Struct, frozen=True, tag="file"):
    """A file that is complete, and on the disk.

    name: in the output. sample: as `sampled` returns it. sha256: None where the file was not read
    completely.
    """

    name: str
    identity: FileIdentity
    sample: str
    sha256: str | None = None


class Move(msgspec.Struct, frozen=True):
    """A move to a final name. new: the inode that gets the name. old: the inode that has it; None
    where it is free.
    """

    name: str
    new: int
    old: int | None


class Moves(msgspec.Struct, frozen=True, tag="moves"):
    """Written before the first of the moves."""

    moves: tuple[Move, ...]


Line = Begun | FinishedFile | Moves


@dataclass
class OutputJournal:
    """The state in a journal. stamp: empty without a first line. finished: by name."""

    path: Path
    stamp: str = ""
    finished: dict[str, FinishedFile] = field(default_factory=dict)
    moves: tuple[Move, ...] = ()

    @classmethod
    def read(cls, path: Path) -> OutputJournal:
        """Read a journal without its damaged lines, which a kill or a loss of power leaves; empty
        without one.
        """
        journal = cls(path)
        for text in path.read_bytes().split(b"\n") if path.is_file() else ():
            line: Line | None = decode_line(text, Line)
            if line is not None:
                journal._apply(line)
        return journal

    def add(self, line: Line, sync: bool = False) -> None:
        """Add a line. sync: wait until it is on the disk. Raises OSError."""
        with self.path.open("ab") as file:
            file.write(b"\n" + encode_line(line))  # the line before it may have been cut off
            file.flush()
            if sync:
                os.fsync(file.fileno())
        self._apply(line)

    def _apply(self, line: Line) -> None:
        if isinstance(line, Begun):
            self.stamp = line.stamp
            self.finished = {}
            self.moves = ()
        elif isinstance(line, FinishedFile):
            self.finished[line.name] = line
        else:
            self.moves = line.moves


def take_names(
    hidden: HiddenFolder, journal: OutputJournal, names: Iterable[str], force: bool, fsync: bool
) -> None:
    """Move files or folders to their final names; the replaced ones are kept in the hidden folder.

    While several names are replaced, the last of them is free: shards of two outputs are never
    complete together.

    names: in the order of the moves, the first shard last. force: replace an earlier output. fsync:
    wait until the names are on the disk. Raises RopeconvError where a name was taken meanwhile, and
    where files were added to the replaced output; OSError where a move fails. All moves are undone
    then.
    """
    hidden.old.mkdir(exist_ok=True)
    moves = []
    for name in names:
        final = hidden.out.with_name(name)
        old = _inode(final) if force and not is_empty(final) else None
        moves.append(Move(name, _inode(hidden.new / name) or 0, old))
    journal.add(Moves(tuple(moves)), sync=fsync)
    parent = hidden.out.parent
    if fsync:
        for folder in (hidden.new, hidden.root, parent):
            sync_folder(folder)
    try:
        if len(moves) > 1 and moves[-1].old is not None:
            parent.joinpath(moves[-1].name).rename(hidden.old / moves[-1].name)
        for move in moves:
            _move(hidden, move)
        olds = [hidden.old / move.name for move in moves]
        places = [hidden.new / old.name if _inode(old) is None else old for old in olds]
        for move, place in zip(moves, places, strict=True):
            if move.old is not None:
                refuse_foreign(place, places[-1], parent / move.name)
        if fsync:
            sync_folder(parent)
    except BaseException:
        _undo(hidden, moves)
        raise


def settle(hidden: HiddenFolder, journal: OutputJournal) -> OutputJournal:
    """End the moves of an interrupted run, and return the journal after it: complete moves are
    kept, others undone.

    Raises OSError.
    """
    if not journal.moves:
        return journal
    if all(_inode(hidden.out.with_name(move.name)) == move.new for move in journal.moves):
        hidden.clear()
    else:
        _undo(hidden, journal.moves)
    return OutputJournal.read(hidden.journal)


def _move(hidden: HiddenFolder, move: Move) -> None:
    new = hidden.new / move.name
    final = hidden.out.with_name(move.name)
    old = hidden.old / move.name
    if move.old is not None and _inode(old) is None:
        exchange(new, final, old)
        return
    try:
        rename_new(new, final)
    except OSError as problem:
        if problem.errno not in TAKEN:
            raise
        raise RopeconvError(
            f"{final} was created by another program meanwhile; move that away and run again, or"
            " choose another place with -o"
        ) from None


def _undo(hidden: HiddenFolder, moves: Sequence[Move]) -> None:
    """Undo moves; the name that is taken last is freed first, and restored last."""
    for move in reversed(moves):
        new = hidden.new / move.name
        final = hidden.out.with_name(move.name)
        old = hidden.old / move.name
        if _inode(final) == move.new:
            if (
                _inode(new) == move.new
            ):  # between link and unlink, where the system has no rename without replacing
                final.unlink()
            elif _inode(new) is not None:
                exchange(new, final, old)
            else:
                rename_new(final, new)
    for move in moves:
        final = hidden.out.with_name(move.name)
        for place in (hidden.new / move.name, hidden.old / move.name):
            if move.old is not None and _inode(place) == move.old and _inode(final) is None:
                rename_new(place, final)


def _inode(path: Path) -> int | None:
    try:
        return path.lstat().st_ino
    except FileNotFoundError:
        return None
