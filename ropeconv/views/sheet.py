"""`Sheet`, the surface that views show tables and sentences on, such as a terminal or a page.

The legends of tables are below it: the meaning of a column or a status, which `legend` and
`statuses` join to a sentence.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Protocol

MARKS = {
    "exact": "good",
    "rounded": "good",
    "supported": "good",
    "agrees": "good",
    "approximate": "fair",
    "differs": "bad",
    "wrong": "bad",
    "ignored": "bad",
    "refused": "bad",
    "fails": "bad",
    "disagrees": "bad",
}
"""The meaning of words in tables, for which a sheet has colours."""


class Sheet(Protocol):
    """A surface for tables and sentences, which a view shows in order."""

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
        """Show a table, and return the columns that it has.

        Args:
            title: The words above it.
            columns: The names of its columns.
            rows: Rows with a cell for every column.
            optional: Columns that are left out one after the other where not all fit.
            right: Columns that are set flush right.
            styles: The styles of cells, by row and column.
        """

    def fits(self, columns: Sequence[str], rows: Sequence[Sequence[str]]) -> bool:
        """Whether a table fits with all its columns."""

    def say(self, message: str) -> None:
        """Show a sentence."""

    def copyable(self, text: str) -> None:
        """Show a command or a path, which can be copied."""

    def note(self, message: str) -> None:
        """Show a note beside what was asked for; nothing for an empty one."""


def sentence(words: str) -> str:
    """Return words with a capital at their start and a full stop at their end."""
    text = words[:1].upper() + words[1:]
    return text if text.endswith(".") else f"{text}."


# The legend of each table: the meaning of those of its columns that need one
PLAN = {
    "slowest wavelength": "period of the lowest frequency, in tokens",
    "effective length": (
        "longest distance up to which sum cos(m theta_i) is not negative (Men et al. 2024)"
    ),
}
VALIDATION = {
    "KL mean": "mean divergence from the reference in nats",
    "KL 95 %": "divergence from the reference in nats, not exceeded by 95 % of the positions",
    "max |dlogit|": "largest difference of a logit",
    "top-1": "positions with the same likeliest token",
    "top-5": "share of equal likeliest tokens",
    "unscaled source": "the source without the method, which must differ",
}
HIDDEN_STATES = {
    "relative error": "mean of |h' - h| / |h|, h the hidden states of the reference",
    "95 %": "not exceeded by 95 % of the positions",
    "unscaled source": "the source without the method, which must differ",
}
GROWTH = {
    "price": "increase of the loss at the trained length",
    "holds to": "longest length whose loss is not significantly above the row's best",
}
RUNTIMES = {
    "exact": (
        "cells (model families times theta, linear, llama3, YaRN and any frequencies) that it"
        " computes exactly"
    ),
    "run, read, unknown": "cells that were executed, read in its source code, or not tested",
}


STATUSES = {
    "exact": "computes this RoPE",
    "rounded": "computes it, with rounded weights",
    "approximate": "comes close",
    "differs": "computes another RoPE, silently",
    "ignored": "runs the unscaled RoPE, silently",
    "refused": "fails with an error",
    "unsupported": "does not run this family",
    "unknown": "not tested",
}
"""Statuses of verdicts; docs/runtimes.md explains them."""


def legend(meanings: Mapping[str, str], shown: Iterable[str]) -> str:
    """Return a sentence on the columns or words that a table shows; empty if none needs one."""
    names = set(shown)
    parts = [f"{name}: {meaning}" for name, meaning in meanings.items() if name in names]
    if not parts:
        return ""
    text = "; ".join(parts)
    return f"{text[:1].upper()}{text[1:]}."


def statuses(lines: Iterable[tuple[str, str]]) -> str:
    """Return a sentence on the statuses of a table of runtimes.

    Args:
        lines: The rows of the table: a status, and its runtimes.
    """
    meanings = STATUSES | {"read": "known from source code, the others from a run"}
    words = []
    for status, runtimes in lines:
        words.append(status)
        if "read: " in runtimes:
            words.append("read")
    return legend(meanings, words)
