"""What the words and columns of tables mean, for a line below them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

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
