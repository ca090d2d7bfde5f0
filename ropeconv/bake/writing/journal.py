"""The journal of a hidden folder: for which plan it is, which of its files are finished, and how they are moved."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from pathlib import Path

import msgspec

from ...formats.identity import FileIdentity
from ...formats.journal import decoded, encoded


class Begun(msgspec.Struct, frozen=True, tag="plan"):
    """The first line. stamp: of the plan."""

    stamp: str


class Finished(msgspec.Struct, frozen=True, tag="file"):
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


Line = Begun | Finished | Moves


@dataclass
class Journal:
    """What a journal says. path: of the file. stamp: empty without a first line. finished: by name."""

    path: Path
    stamp: str = ""
    finished: dict[str, Finished] = field(default_factory=dict)
    moves: tuple[Move, ...] = ()

    @classmethod
    def read(cls, path: Path) -> Journal:
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
        elif isinstance(line, Finished):
            self.finished[line.name] = line
        else:
            self.moves = line.moves
