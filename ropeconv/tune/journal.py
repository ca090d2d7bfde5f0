"""Journal: every pass of a search in a file of JSON lines, so that a killed search goes on where it was.

A search with a seed is the same each time, as long as the losses and gradients that it sees are: so it is begun again,
and what the journal has is not computed.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

import msgspec

from ..evaluate.journal import OTHER_MODEL, OTHER_VERSION, default_path
from ..formats.json_lines import JsonLines, Refusals

FORMAT = 1
REFUSALS = Refusals(
    "another search writes to {path}; wait for its end, or give another --journal",
    "{path} is no journal of a search; give another --journal, or --fresh",
)


@dataclass(frozen=True)
class Place:
    """Where a search keeps its passes. path: of the journal; None for the user's cache. fresh: start it anew."""

    path: Path | None = None
    fresh: bool = False


class Head(msgspec.Struct, frozen=True):
    """The first line. source: identity of the model."""

    ropeconv_tune_journal: int
    source: str


class Line(msgspec.Struct, frozen=True):
    """A pass. key: of what was computed. numbers: that it gave."""

    key: str
    numbers: list[float]


class Journal:
    """What passes gave, by what was computed. Without a place nothing is kept.

    place: of the file. source: identity of the model. by: what computes, such as runtime, device and dtype. Raises
    BadSource for a file that is no journal, for one of another model, and while another search writes to it.
    """

    def __init__(self, place: Place | None = None, source: str = "", by: str = "") -> None:
        def check(head: Head) -> str:
            if head.ropeconv_tune_journal != FORMAT:
                return OTHER_VERSION
            return OTHER_MODEL if head.source != source else ""

        self.by, self.known = by, dict[str, list[float]]()
        self.path = (place.path or default_path(source, "tune")) if place else None
        self.file: JsonLines[Head, Line] | None = None
        if place and self.path:
            self.file = JsonLines(self.path, Head(FORMAT, source), Line, check, REFUSALS, place.fresh)
            self.known = {line.key: line.numbers for line in self.file.lines}

    def numbers(self, what: Iterable[str], compute: Callable[[], Iterable[float]]) -> list[float]:
        """What a pass gives, and returns when it is on the disk.

        what: is computed, in names and digests. compute: called where the journal does not have it; gives finite
        numbers.
        """
        key = hashlib.sha256("\n".join((self.by, *what)).encode()).hexdigest()
        found = self.known.get(key)
        if found is None:
            found = [float(value) for value in compute()]
            if self.file is not None:
                self.file.append(Line(key, found))
        return found

    def __enter__(self) -> Journal:
        return self

    def __exit__(self, *problem: object) -> None:
        if self.file is not None:
            self.file.close()
