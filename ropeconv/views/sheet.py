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


STATUSES = {
    "exact": "computes this RoPE",
    "rounded": "the same but for rounded weights",
    "approximate": "comes near it",
    "differs": "computes another RoPE, silently",
    "ignored": "runs the unscaled RoPE, silently",
    "refused": "fails with an error",
    "unsupported": "has no such model",
    "unknown": "nobody has looked",
}
"""Statuses of runtimes; docs/runtimes.md has them in full."""
READ = "known from its source, the others from a run"
PLAN = {
    "slowest wavelength": "tokens in which the slowest pair turns once",
    "effective length": "tokens up to which sum cos(m theta_i) is never negative (`ropeconv bound`)",
}
VALIDATION = {
    "KL 95 %": "95 % of a row's positions have at most this KL, in nats, of the output's predictions from the "
    "reference's",
    "allowed": "the most that may be",
    "max |dlogit|": "the largest difference of a logit",
    "top-1": "share of positions whose likeliest token is the same",
    "top-5": "share of equal likeliest tokens",
    "unscaled source": "the model without the method, which has to be far away",
}
HIDDEN_STATES = {
    "relative error": "mean of |h' - h| / |h| over a row's positions, h the reference's hidden states",
    "95 %": "95 % of them have at most this error",
    "allowed": "the most that may be",
    "unscaled source": "the model without the method, which has to be far away",
}
GROWTH = {
    "price": "what the row adds to the loss at 1T",
    "holds to": "the longest length whose loss is within three errors of the row's best",
}
RUNTIMES = {
    "exact": "how many of its families, each with theta, linear, llama3, YaRN and any frequencies, it computes exactly",
    "run, read, unknown": "how many of them were executed, read in its source, or not looked at",
}


def legend(meanings: Mapping[str, str], shown: Iterable[str]) -> str:
    """A sentence on the columns or words that a table shows; empty where none needs one.

    meanings: by column. shown: names of the columns.
    """
    there = set(shown)
    found = [f"{name}: {meaning}" for name, meaning in meanings.items() if name in there]
    text = "; ".join(found)
    return f"{text[:1].upper()}{text[1:]}." if found else ""


def statuses(lines: Iterable[tuple[str, str]]) -> str:
    """A sentence on the statuses of a table of runtimes. lines: pairs of a status and its runtimes."""
    rows = list(lines)
    read = ["read"] if any("read: " in runtimes for _, runtimes in rows) else []
    return legend(STATUSES | {"read": READ}, [*(status for status, _ in rows), *read])
