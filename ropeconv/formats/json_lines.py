"""A file of JSON lines that only grows, so that a killed run finds what it had finished."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Generic, TypeVar

import msgspec

from ..errors import BadSource
from .durable import sync_folder
from .locks import try_lock

H = TypeVar("H", bound=msgspec.Struct)
L = TypeVar("L", bound=msgspec.Struct)


@dataclass(frozen=True)
class Refusals:
    """What is said of a file that is not taken; {path} stands for its path.

    busy: while another run writes to it. foreign: of a file of something else.
    """

    busy: str
    foreign: str


class JsonLines(Generic[H, L]):
    """A file of JSON lines that is open for appending, with a lock.

    path: of the file, which is made where it is not there. lines: what it had.
    """

    def __init__(
        self,
        path: Path,
        head: H,
        line: type[L],
        check: Callable[[H], str],
        refusals: Refusals,
        fresh: bool = False,
    ) -> None:
        """Opens a file.

        head: its first line, by whose first key a file of this kind is known. line: type of the others. check: why a
        file with another head is not taken, in words that stand behind its path, or empty. refusals: the same for
        others. fresh: start an empty one. Raises BadSource for a file that is not taken, OSError.
        """
        self.path, self.lines = path, list[L]()
        self._line, self._check, self._refusals = line, check, refusals
        path.parent.mkdir(parents=True, exist_ok=True)
        self.file = path.open("a+b")
        try:
            if try_lock(self.file) == "busy":
                raise BadSource(refusals.busy.format(path=path))
            kept = 0 if fresh else self._read(head)
            self.file.truncate(kept)  # a line that a killed run began
        except BaseException:
            self.file.close()
            raise
        if not kept:
            self._write(head)
            sync_folder(path.parent)

    def _read(self, head: H) -> int:
        """Reads the lines that are whole, and returns their length in bytes."""
        self.file.seek(0)
        data = self.file.read()
        start = f'{{"{head.__struct_fields__[0]}":'.encode()
        kept = data.rfind(b"\n") + 1
        lines = data[:kept].splitlines()
        if not lines and not (data[: len(start)] == start or start.startswith(data)):
            lines = [data]
        try:
            found = msgspec.json.decode(lines[0], type=type(head)) if lines else None
            self.lines = [msgspec.json.decode(text, type=self._line) for text in lines[1:]]
        except (msgspec.MsgspecError, UnicodeDecodeError):
            raise BadSource(self._refusals.foreign.format(path=self.path)) from None
        problem = "" if found is None else self._check(found)
        if problem:
            raise BadSource(f"{self.path} {problem}")
        return kept

    def append(self, line: L) -> None:
        """Appends a line, and returns when it is on the disk. Raises OSError."""
        self._write(line)
        self.lines.append(line)

    def _write(self, line: msgspec.Struct) -> None:
        self.file.write(msgspec.json.encode(line) + b"\n")
        self.file.flush()
        os.fsync(self.file.fileno())

    def close(self) -> None:
        """Closes the file, which ends the lock."""
        self.file.close()
