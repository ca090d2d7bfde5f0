"""Journal: a file of JSON lines with checksums that only grows, so that a killed run finds what it had finished."""

from __future__ import annotations

import os
import zlib
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, Generic, Self, TypeVar

import msgspec

from ..errors import BadSource
from ..rope.errors import counted
from .disk import TAKEN, rename_new, sync_folder
from .files import try_lock

FIRST = 1 << 20
"""Bytes that are read of a file before it is known to be a journal."""
CHECKSUM = b',"crc32":"%08x"}'
"""Stands at the end of each line, in place of the last brace: of what is before it."""
LENGTH = len(CHECKSUM % 0)


class Line(msgspec.Struct, frozen=True):
    """A line of a journal. key: what it is about; of several lines with one key the last one holds."""

    key: str


L = TypeVar("L", bound=Line)


class Head(msgspec.Struct, frozen=True):
    """The first line. journal: the command that writes it. format: of the lines. source: identity of the model, empty
    where the lines are of several.
    """

    journal: str
    format: int
    source: str = ""


@dataclass(frozen=True)
class JournalKind(Generic[L]):
    """A kind of journal.

    command: that writes it. format: of its lines, as a number; a journal of another format is not read. line: their
    type. elsewhere: how a user gives another place.
    """

    command: str
    format: int
    line: type[L]
    elsewhere: str = "give another --journal"


def encoded(line: msgspec.Struct, seed: int = 0) -> bytes:
    """A line with its checksum and its end. seed: of the checksum: `crc32` of the first line, 0 for that itself."""
    body = msgspec.json.encode(line)[:-1]
    return body + CHECKSUM % zlib.crc32(body, seed) + b"\n"


def decoded(text: bytes, kind: Any, seed: int = 0) -> Any:
    """The content of a line; None for a damaged one, and for one of another journal. kind: its type. seed: as above."""
    body = text[:-LENGTH]
    if text[-LENGTH:] != CHECKSUM % zlib.crc32(body, seed):
        return None
    try:
        return msgspec.json.decode(body + b"}", type=kind)
    except (msgspec.MsgspecError, UnicodeDecodeError):
        return None


class Journal(Generic[L]):
    """A journal that is open for appending, with a lock.

    path: of its file, which is made where it is not there. kind: of its lines. source: identity of the model. lines:
    that it has, by key. notes: sentences for the user on damaged lines, and on what `fresh` moved.
    """

    def __init__(self, path: Path, kind: JournalKind[L], source: str = "", fresh: bool = False) -> None:
        """Opens a journal.

        fresh: begin a new one, and move one that is there to another name. Raises BadSource for a file that is not such
        a journal, for one of another model or version, and while another run writes to it; such a file stays as it is.
        OSError where it cannot be written.
        """
        self.path, self.kind, self.lines, self.notes = path, kind, dict[str, L](), list[str]()
        self._head = Head(f"ropeconv {kind.command}", kind.format, source)
        self._seed = zlib.crc32(msgspec.json.encode(self._head)[:-1])
        path.parent.mkdir(parents=True, exist_ok=True)
        self._file = self._locked()
        try:
            self._begin(self._read(fresh), fresh)
        except BaseException:
            self._file.close()
            raise

    def add(self, line: L) -> L:
        """Appends a line, and returns it when it is on the disk. Raises OSError."""
        self._write(encoded(line, self._seed))
        self.lines[line.key] = line
        return line

    def close(self) -> None:
        """Closes the file, which ends the lock."""
        self._file.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *problem: object) -> None:
        self.close()

    def _locked(self) -> BinaryIO:
        """The file, open and locked. Raises BadSource where another run has it."""
        while True:
            file = self.path.open("a+b")
            if try_lock(file) == "busy":
                file.close()
                raise BadSource(f"another run writes to {self.path}; wait for its end, or {self.kind.elsewhere}")
            with suppress(FileNotFoundError):
                if os.path.samestat(os.fstat(file.fileno()), self.path.stat()):
                    return file
            file.close()  # another run has just moved it

    def _read(self, fresh: bool) -> int:
        """Reads the lines, and returns the length in bytes of those that are whole, with their ends."""
        self._file.seek(0)
        data, own = self._file.read(FIRST), encoded(self._head)
        if own.startswith(data):  # nothing but a first line, or a part of it
            return len(own) if data == own and not fresh else 0
        start = msgspec.json.encode(self._head)[: len(f'{{"journal":"{self._head.journal}"')]
        if not data.startswith(start) and CHECKSUM[:10] not in data:
            raise self._foreign()
        data += self._file.read()
        kept = data.rfind(b"\n") + 1
        first, *others = data[:kept].split(b"\n")[:-1] or [b""]
        head = decoded(first, Head)
        if head is not None and (head.journal, head.format, head.source) != msgspec.structs.astuple(self._head):
            self._refuse(head, fresh)
            return kept
        found = [decoded(text, self.kind.line, self._seed) for text in others]
        self.lines = {line.key: line for line in found if line is not None}
        if head is None and not self.lines:
            raise self._foreign()
        damaged = found.count(None) + (head is None) + (kept < len(data))
        if damaged and not fresh:
            be = "is" if damaged == 1 else "are"
            self.notes.append(f"{counted(damaged, 'line')} of {self.path} {be} damaged and skipped.")
        return kept

    def _begin(self, kept: int, fresh: bool) -> None:
        """Makes the file ready for more lines. kept: as `_read` gives it."""
        if fresh and kept:
            earlier, self.lines, kept = self._file, {}, 0
            aside = self._aside()
            self.notes.append(f"The earlier journal is now {aside}.")
            self._file = self._locked()
            earlier.close()
        self._file.truncate(kept)
        if not kept:
            self._write(encoded(self._head))
            sync_folder(self.path.parent)

    def _aside(self) -> Path:
        """Gives the file another name, and returns that."""
        number = 1
        while True:
            aside = self.path.with_name(f"{self.path.name}.old{number if number > 1 else ''}")
            try:
                rename_new(self.path, aside)
                return aside
            except OSError as problem:
                if problem.errno not in TAKEN:
                    raise
            number += 1

    def _foreign(self) -> BadSource:
        return BadSource(f"{self.path} is not a journal of `ropeconv {self.kind.command}`; {self.kind.elsewhere}")

    def _refuse(self, head: Head, fresh: bool) -> None:
        """Raises BadSource for a journal that begins with another first line, unless it may be moved."""
        if head.journal != self._head.journal:
            raise self._foreign()
        if not fresh:
            of = "model" if head.format == self.kind.format else "version of ropeconv"
            raise BadSource(
                f"{self.path} is the journal of another {of}; {self.kind.elsewhere}, or --fresh, which gives this one "
                "another name"
            )

    def _write(self, data: bytes) -> None:
        self._file.write(data)
        self._file.flush()
        os.fsync(self._file.fileno())


def default_path(source: str, command: str = "eval") -> Path:
    """Where the journal of a model is without --journal: in the user's cache.

    source: identity of the model. command: that writes it.
    """
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return cache / "ropeconv" / command / f"{source[:16]}.jsonl"
