"""Sheet: what tables and sentences are shown on, such as a terminal or a page."""

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
        """Shows a table, and returns the columns that it has.

        title: above it. columns: their names. rows: a cell for every column. optional: columns that
        are left out one after the other where not all fit. right: columns that are set flush right.
        styles: of cells, by row and column.
        """

    def fits(self, columns: Sequence[str], rows: Sequence[Sequence[str]]) -> bool:
        """Whether a table fits with all its columns."""

    def say(self, message: str) -> None:
        """Shows a sentence."""

    def copyable(self, text: str) -> None:
        """Shows a command or a path, which can be copied."""

    def note(self, message: str) -> None:
        """Shows a note beside what was asked for; nothing for an empty one."""


def sentence(words: str) -> str:
    """Words with a capital at their start and a full stop at their end."""
    return words[:1].upper() + words[1:] + ("" if words.endswith(".") else ".")


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
    """A sentence on the columns or words that a table shows; empty where none needs one."""
    names = set(shown)
    parts = [f"{name}: {meaning}" for name, meaning in meanings.items() if name in names]
    text = "; ".join(parts)
    return f"{text[:1].upper()}{text[1:]}." if parts else ""


def statuses(lines: Iterable[tuple[str, str]]) -> str:
    """A sentence on the statuses of a table of runtimes. lines: pairs of a status and its
    runtimes.
    """
    rows = list(lines)
    read = ["read"] if any("read: " in runtimes for _, runtimes in rows) else []
    meanings = STATUSES | {"read": "known from source code, the others from a run"}
    return legend(meanings, [*(status for status, _ in rows), *read])
