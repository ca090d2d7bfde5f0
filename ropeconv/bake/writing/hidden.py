"""The hidden folder in which an output is written, the lock on it, and the moves to the final names."""

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

from ...formats.disk import TAKEN, FileIdentity, exchange, rename_new, sync_folder
from ...formats.files import try_lock
from ...formats.journal import decoded, encoded
from ...rope.errors import RopeconvError
from .place import is_empty, refuse_foreign

LOCK, JOURNAL, NEW, OLD, DRAFTS = "lock", "journal", "new", "old", "drafts"
NOT_EMPTY = {errno.ENOTEMPTY, errno.EEXIST, errno.EBUSY}
"""What the removal of a folder answers on NFS, where a removed file stays in it until it is closed."""


@dataclass(frozen=True)
class HiddenFolder:
    """The hidden folder of an output.

    out: the output. root: the folder. In it are `lock`, `journal`, `drafts`, `new` with what is to stand beside `out`,
    and `old` for what stood there, where a system cannot exchange two names.
    """

    out: Path
    root: Path

    @classmethod
    def beside(cls, out: Path) -> HiddenFolder:
        """The hidden folder of an output, which need not exist."""
        return cls(out, out.parent / f".{out.name}.ropeconv-partial")

    @property
    def journal(self) -> Path:
        """The path of the journal."""
        return self.root / JOURNAL

    @property
    def drafts(self) -> Path:
        """The folder of files that are not complete yet."""
        return self.root / DRAFTS

    def final(self, name: str) -> Path:
        """The path that something has in the end. name: beside `out`."""
        return self.out.with_name(name)

    def new(self, name: str = "") -> Path:
        """The path that something has before it is moved. name: beside `out`, empty for the folder of all."""
        return self.root / NEW / name

    def old(self, name: str = "") -> Path:
        """The path that something has while it is replaced. name: beside `out`, empty for the folder of all."""
        return self.root / OLD / name

    def clear(self) -> None:
        """Removes everything in the folder but the lock. What cannot be removed stays for the next start."""
        for folder in (self.drafts, self.new(), self.old()):
            shutil.rmtree(folder, ignore_errors=True)
        with suppress(OSError):
            for place in self.root.iterdir():
                if place.name != LOCK:
                    shutil.rmtree(place) if place.is_dir() and not place.is_symlink() else place.unlink()


def discard(out: Path) -> None:
    """Removes what a run that was stopped keeps beside an output, for the same run to go on from.

    out: the output. Raises RopeconvError where another process is writing it.
    """
    if HiddenFolder.beside(out).root.is_dir():
        with locked(out) as hidden:
            hidden.clear()


@contextmanager
def locked(out: Path) -> Iterator[HiddenFolder]:
    """Makes the hidden folder of an output and locks it. It is removed at the end, after an error only if it is empty.

    Raises RopeconvError where another process has it and where it cannot be removed, OSError where it cannot be made.
    """
    hidden = HiddenFolder.beside(out)
    if hidden.root.is_symlink():
        raise RopeconvError(f"{hidden.root} is a link, and ropeconv writes there; remove it")
    lock = _take(hidden)
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
                f"{out} is complete, and {hidden.root} cannot be removed ({problem.strerror}); check the disk, and "
                "remove that"
            ) from None
    finally:
        lock.close()
        with suppress(OSError):
            hidden.root.rmdir()


def _remove(hidden: HiddenFolder) -> None:
    is_cleared = not (hidden.new().exists() or hidden.old().exists())
    (hidden.root / LOCK).unlink()  # it holds until it is closed; who waits for it sees that it is gone
    try:
        hidden.root.rmdir()
    except OSError as problem:
        if not (is_cleared and problem.errno in NOT_EMPTY):
            raise


def _take(hidden: HiddenFolder) -> BinaryIO:
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
                f"another ropeconv is writing {hidden.out}; wait for it, or choose another place with -o"
            )
        try:
            if os.path.samestat(os.fstat(file.fileno()), path.stat()):
                return file
        except FileNotFoundError:
            pass
        file.close()


class Begun(msgspec.Struct, frozen=True, tag="plan"):
    """The first line. stamp: of the plan."""

    stamp: str


class FinishedFile(msgspec.Struct, frozen=True, tag="file"):
    """A file that is complete, and on the disk.

    name: in the output. identity: of it. sample: as `sampled` has it. sha256: of the whole, None where it was not read.
    """

    name: str
    identity: FileIdentity
    sample: str
    sha256: str | None = None


class Move(msgspec.Struct, frozen=True):
    """A move to a final name. new: the inode that takes the name. old: the one that has it; None where it is free."""

    name: str
    new: int
    old: int | None


class Moves(msgspec.Struct, frozen=True, tag="moves"):
    """Written before the first of the moves."""

    moves: tuple[Move, ...]


Line = Begun | FinishedFile | Moves


@dataclass
class OutputJournal:
    """What a journal says. path: of the file. stamp: empty without a first line. finished: by name."""

    path: Path
    stamp: str = ""
    finished: dict[str, FinishedFile] = field(default_factory=dict)
    moves: tuple[Move, ...] = ()

    @classmethod
    def read(cls, path: Path) -> OutputJournal:
        """Reads a journal without its damaged lines, which a kill or a loss of power leaves; empty without one."""
        found = cls(path)
        for text in path.read_bytes().split(b"\n") if path.is_file() else ():
            line: Line | None = decoded(text, Line)
            if line is not None:
                found._take(line)
        return found

    def add(self, line: Line, sync: bool = False) -> None:
        """Adds a line. sync: wait until it is on the disk. Raises OSError."""
        with self.path.open("ab") as file:
            file.write(b"\n" + encoded(line))  # the line before it may have been cut off
            file.flush()
            if sync:
                os.fsync(file.fileno())
        self._take(line)

    def _take(self, line: Line) -> None:
        if isinstance(line, Begun):
            self.stamp, self.finished, self.moves = line.stamp, {}, ()
        elif isinstance(line, FinishedFile):
            self.finished[line.name] = line
        else:
            self.moves = line.moves


def take_names(hidden: HiddenFolder, journal: OutputJournal, names: Iterable[str], force: bool, fsync: bool) -> None:
    """Moves files or folders to their final names; what is there is kept in the hidden folder.

    While several names are replaced, the last of them is free: shards of two outputs are never complete together.

    hidden: where they are. journal: of it. names: in the order of the moves, the first shard last. force: replace an
    earlier output. fsync: wait until the names are on the disk. Raises RopeconvError where a name was taken meanwhile,
    and where somebody has added to what is replaced; OSError where a move fails. All moves are undone then.
    """
    hidden.old().mkdir(exist_ok=True)
    moves = []
    for name in names:
        final = hidden.final(name)
        old = _inode(final) if force and not is_empty(final) else None
        moves.append(Move(name, _inode(hidden.new(name)) or 0, old))
    journal.add(Moves(tuple(moves)), sync=fsync)
    parent = hidden.out.parent
    if fsync:
        for folder in (hidden.new(), hidden.root, parent):
            sync_folder(folder)
    try:
        if len(moves) > 1 and moves[-1].old is not None:
            hidden.final(moves[-1].name).rename(hidden.old(moves[-1].name))
        for move in moves:
            _move(hidden, move)
        first = _replaced(hidden, moves[-1])
        for move in moves:
            if move.old is not None:
                refuse_foreign(_replaced(hidden, move), first, hidden.final(move.name))
        if fsync:
            sync_folder(parent)
    except BaseException:
        _undo(hidden, moves)
        raise


def settle(hidden: HiddenFolder, journal: OutputJournal) -> OutputJournal:
    """Ends what an interrupted run has begun: clears up after moves that were complete, and undoes other ones.

    hidden: the folder of that run. journal: of it. Returns the journal as it is afterwards. Raises OSError.
    """
    if not journal.moves:
        return journal
    if all(_inode(hidden.final(move.name)) == move.new for move in journal.moves):
        hidden.clear()
    else:
        _undo(hidden, journal.moves)
    return OutputJournal.read(hidden.journal)


def _move(hidden: HiddenFolder, move: Move) -> None:
    new, final = hidden.new(move.name), hidden.final(move.name)
    if move.old is not None and _inode(hidden.old(move.name)) is None:
        exchange(new, final, hidden.old(move.name))
        return
    try:
        rename_new(new, final)
    except OSError as problem:
        if problem.errno not in TAKEN:
            raise
        raise RopeconvError(
            f"{final} came into being while it was written; move that away and run again, or choose another place with "
            "-o"
        ) from None


def _replaced(hidden: HiddenFolder, move: Move) -> Path:
    """Where that is which had a name before."""
    old = hidden.old(move.name)
    return hidden.new(move.name) if _inode(old) is None else old


def _undo(hidden: HiddenFolder, moves: Sequence[Move]) -> None:
    """Undoes moves; the name that is taken last is freed first, and what had it before comes back last."""
    for move in reversed(moves):
        new, final, old = hidden.new(move.name), hidden.final(move.name), hidden.old(move.name)
        if _inode(final) == move.new:
            if _inode(new) == move.new:  # between link and unlink, where the system has no rename that does not replace
                final.unlink()
            elif _inode(new) is not None:
                exchange(new, final, old)
            else:
                rename_new(final, new)
    for move in moves:
        new, final, old = hidden.new(move.name), hidden.final(move.name), hidden.old(move.name)
        for place in (new, old):
            if move.old is not None and _inode(place) == move.old and _inode(final) is None:
                rename_new(place, final)


def _inode(path: Path) -> int | None:
    try:
        return path.lstat().st_ino
    except FileNotFoundError:
        return None
