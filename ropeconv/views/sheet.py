"""Sheet: what tables and sentences are shown on, such as a terminal or a page."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Protocol

MARKS = {
    "exact": "good", "rounded": "good", "agrees": "good", "approximate": "fair", "differs": "bad", "ignored": "bad",
    "refused": "bad", "disagrees": "bad",
}  # fmt: skip
"""What words of tables say at a glance: a sheet has a colour for each."""


class Sheet(Protocol):
    """Takes what a view shows, in its order."""

    @property
    def colours(self) -> bool:
        """Whether `styles` of a table are seen."""

    def table(
        self,
        title: str,
        columns: Sequence[str],
        rows: Iterable[Sequence[str]],
        optional: Sequence[str] = (),
        right: Sequence[str] = (),
        styles: Mapping[tuple[int, int], str] = {},
    ) -> tuple[str, ...]:
        """Shows a table, and returns the columns that it has.

        title: above it. columns: their names. rows: a cell for every column. optional: columns that are left out one
        after the other where there is no room for all. right: columns that are set flush right. styles: of cells, by
        row and column.
        """

    def fits(self, columns: Sequence[str], rows: Sequence[Sequence[str]]) -> bool:
        """Whether there is room for a table with all its columns."""

    def say(self, message: str) -> None:
        """Shows a sentence."""

    def copyable(self, text: str) -> None:
        """Shows a command or a path, which can be copied."""

    def note(self, message: str) -> None:
        """Shows a note beside what was asked for; nothing for an empty one."""


def sentence(words: str) -> str:
    """Words with a capital at their start and a full stop at their end."""
    return words[:1].upper() + words[1:] + ("" if words.endswith(".") else ".")
