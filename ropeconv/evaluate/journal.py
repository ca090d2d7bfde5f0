"""Journal: every finished case of an evaluation in a file of JSON lines, so that a killed run can go on."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Sequence
from pathlib import Path

import msgspec

from ..formats.json_lines import JsonLines, Refusals
from .case import Observation

FORMAT = 2
"""Of the keys and lines; a journal of another one is not read."""
OTHER_VERSION = "is the journal of another version of ropeconv; give another --journal, or --fresh"
OTHER_MODEL = "is the journal of another model; give another --journal, or --fresh"
REFUSALS = Refusals(
    "another run writes to {path}; wait for its end, or give another --journal",
    "{path} is no journal of an evaluation; give another --journal, or --fresh",
)


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
        def check(head: Head) -> str:
            if head.ropeconv_eval != FORMAT:
                return OTHER_VERSION
            return OTHER_MODEL if head.source != source else ""

        self.path = path
        self.file = JsonLines(path, Head(FORMAT, source), Line, check, REFUSALS, fresh)
        self.done = {line.key: line for line in self.file.lines}

    def add(self, key: str, seconds: float, observations: Sequence[Observation]) -> Line:
        """Appends a case, and returns when it is on the disk.

        key: as `key_of` gives it. seconds: it took. observations: what was measured.
        """
        line = Line(key, seconds, list(observations))
        self.file.append(line)
        self.done[key] = line
        return line

    def __enter__(self) -> Journal:
        return self

    def __exit__(self, *problem: object) -> None:
        self.file.close()


def default_path(source: str, command: str = "eval") -> Path:
    """Where the journal of a model is without --journal: in the user's cache.

    source: identity of the model. command: that writes it.
    """
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return cache / "ropeconv" / command / f"{source[:16]}.jsonl"
