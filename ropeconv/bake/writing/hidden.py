"""The hidden folder beside an output, in which it is written, and the lock on it."""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import BinaryIO

import msgspec

from ...formats.durable import FileIdentity
from ...formats.files import try_lock
from ...formats.journal import decoded, encoded
from ...rope.errors import RopeconvError

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
