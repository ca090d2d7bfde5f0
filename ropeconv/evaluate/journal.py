"""Journal: every finished case of an evaluation in a file of JSON lines, so that a killed run can go on."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Sequence
from pathlib import Path

import msgspec

from ..errors import BadSource
from ..formats.durable import sync_folder
from .case import Observation

FORMAT = 1


class Head(msgspec.Struct, frozen=True):
    """The first line. source: identity of the model."""

    ropeconv_eval: int
    source: str


class Line(msgspec.Struct, frozen=True):
    """One case for one row. key: of both. seconds: it took. observations: what was measured."""

    key: str
    seconds: float
    observations: list[Observation]


def key_of(runtime: str, dtype: str, row: str, case: str) -> str:
    """The key of a case for a row.

    runtime, dtype: which computed it. row: digest of what it computes. case: digest of the sequence.
    """
    return hashlib.sha256("\n".join((runtime, dtype, row, case)).encode()).hexdigest()


class Journal:
    """A journal that is open for appending.

    path: of its file, which is made where it is not there. source: identity of the model. fresh: start an empty one.
    Raises BadSource for a file that is no journal, and for one of another model.
    """

    def __init__(self, path: Path, source: str, fresh: bool = False) -> None:
        self.path, self.done = path, dict[str, Line]()
        path.parent.mkdir(parents=True, exist_ok=True)
        if fresh:
            path.unlink(missing_ok=True)
        kept = self._read(source) if path.exists() else 0
        self.file = path.open("r+b" if path.exists() else "w+b")
        self.file.truncate(kept)  # a line that a killed run began
        self.file.seek(kept)
        if not kept:
            self._write(msgspec.json.encode(Head(FORMAT, source)))
            sync_folder(path.parent)

    def _read(self, source: str) -> int:
        """Reads the lines that are whole, and returns their length in bytes."""
        data = self.path.read_bytes()
        kept = data.rfind(b"\n") + 1
        lines = data[:kept].splitlines()
        if not lines and data:
            lines = [data]
        try:
            head = msgspec.json.decode(lines[0], type=Head) if lines else None
            for text in lines[1:]:
                line = msgspec.json.decode(text, type=Line)
                self.done[line.key] = line
        except (msgspec.MsgspecError, UnicodeDecodeError):
            raise BadSource(f"{self.path} is no journal of an evaluation; give another --journal, or --fresh") from None
        if head is not None and head.source != source:
            raise BadSource(f"{self.path} is the journal of another model; give another --journal, or --fresh")
        return kept

    def add(self, key: str, seconds: float, observations: Sequence[Observation]) -> Line:
        """Appends a case, and returns when it is on the disk.

        key: as `key_of` gives it. seconds: it took. observations: what was measured.
        """
        line = Line(key, seconds, list(observations))
        self._write(msgspec.json.encode(line))
        self.done[key] = line
        return line

    def _write(self, line: bytes) -> None:
        self.file.write(line + b"\n")
        self.file.flush()
        os.fsync(self.file.fileno())

    def close(self) -> None:
        """Closes the file."""
        self.file.close()


def default_path(source: str, settings: str) -> Path:
    """Where the journal of an evaluation is without --journal: in the user's cache, by what is evaluated.

    source: identity of the model. settings: what else decides the sequences.
    """
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    name = hashlib.sha256(f"{source}\n{settings}".encode()).hexdigest()[:16]
    return cache / "ropeconv" / "eval" / f"{name}.jsonl"
