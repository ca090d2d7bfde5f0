"""Journal: every finished case of an evaluation in a file of JSON lines, so that a killed run can go on."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Sequence
from pathlib import Path

import msgspec

from ..errors import BadSource
from ..formats.durable import sync_folder
from ..formats.locks import try_lock
from .case import Observation

FORMAT = 2
"""Of the keys and lines; a journal of another one is not read."""
START = b'{"ropeconv_eval":'


class Head(msgspec.Struct, frozen=True):
    """The first line. source: identity of the model."""

    ropeconv_eval: int
    source: str


class Line(msgspec.Struct, frozen=True):
    """One case for one row. key: of both. seconds: it took. observations: what was measured.

    Document and window of an observation are numbers of the run that wrote it; another run with more texts has others.
    """

    key: str
    seconds: float
    observations: list[Observation]


def key_of(runtime: str, device: str, dtype: str, row: str, case: str) -> str:
    """The key of a case for a row.

    runtime, device, dtype: which computed it. row: digest of what it computes. case: digest of the sequence.
    """
    return hashlib.sha256("\n".join((runtime, device, dtype, row, case)).encode()).hexdigest()


class Journal:
    """A journal that is open for appending.

    path: of its file, which is made where it is not there. source: identity of the model. fresh: start an empty one.
    Raises BadSource for a file that is no journal, for one of another model, and while another run writes to it.
    """

    def __init__(self, path: Path, source: str, fresh: bool = False) -> None:
        self.path, self.done = path, dict[str, Line]()
        path.parent.mkdir(parents=True, exist_ok=True)
        self.file = path.open("a+b")
        try:
            if try_lock(self.file) == "busy":
                raise BadSource(f"another run writes to {path}; wait for its end, or give another --journal")
            kept = 0 if fresh else self._read(source)
            self.file.truncate(kept)  # a line that a killed run began
        except BaseException:
            self.file.close()
            raise
        if not kept:
            self._write(msgspec.json.encode(Head(FORMAT, source)))
            sync_folder(path.parent)

    def _read(self, source: str) -> int:
        """Reads the lines that are whole, and returns their length in bytes."""
        self.file.seek(0)
        data = self.file.read()
        kept = data.rfind(b"\n") + 1
        lines = data[:kept].splitlines()
        if not lines and not (data[: len(START)] == START or START.startswith(data)):
            lines = [data]
        try:
            head = msgspec.json.decode(lines[0], type=Head) if lines else None
            for text in lines[1:]:
                line = msgspec.json.decode(text, type=Line)
                self.done[line.key] = line
        except (msgspec.MsgspecError, UnicodeDecodeError):
            raise BadSource(f"{self.path} is no journal of an evaluation; give another --journal, or --fresh") from None
        if head is not None and head.ropeconv_eval != FORMAT:
            raise BadSource(
                f"{self.path} is the journal of another version of ropeconv; give another --journal, or --fresh"
            )
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

    def __enter__(self) -> Journal:
        return self

    def __exit__(self, *problem: object) -> None:
        self.file.close()


def default_path(source: str) -> Path:
    """Where the journal of a model is without --journal: in the user's cache. source: identity of the model."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return cache / "ropeconv" / "eval" / f"{source[:16]}.jsonl"
