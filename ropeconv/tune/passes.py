"""Passes: what a search has read, in a journal, so that a killed search goes on where it was.

A search with a seed is the same each time, as long as the losses and gradients that it sees are: so it is begun again,
and what the journal has is not computed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

from ..formats.digest import text_digest
from ..formats.journal import Journal, Kind, Line, default_path


@dataclass(frozen=True)
class Place:
    """Where a search keeps its passes. path: of the journal; None for the user's cache. fresh: start it anew."""

    path: Path | None = None
    fresh: bool = False

    def opened(self, source: str) -> Journal[PassLine]:
        """The journal. source: identity of the model. Raises what `Journal` raises."""
        return Journal(self.path or default_path(source, "tune"), TUNE, source, self.fresh)


class PassLine(Line, frozen=True):
    """A pass, in the journal. key: of what was computed. numbers: that it gave."""

    numbers: list[float]


TUNE = Kind("tune", 2, PassLine)


@dataclass(frozen=True)
class Passes:
    """What passes gave. journal: that keeps them; None for none. by: what computes, such as runtime and precision."""

    journal: Journal[PassLine] | None = None
    by: str = ""

    def numbers(self, what: Iterable[str], compute: Callable[[], Iterable[float]]) -> list[float]:
        """Return the numbers of a pass when they are on the disk.

        what: is computed, in names and digests. compute: called where the journal does not have it; gives finite
        numbers.
        """
        key = text_digest(self.by, *what)
        found = self.journal.lines.get(key) if self.journal is not None else None
        if found is None:
            found = PassLine(key, [float(value) for value in compute()])
            if self.journal is not None:
                self.journal.add(found)
        return found.numbers
