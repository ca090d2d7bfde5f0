"""Tables of the bound for common heads, made by scripts/make_bound_table.py: data/R-base.json, -wide and -last.

Each is valid for lengths up to `through`. Columns, one entry per step: the `length` from which on it holds, `begin` and
`end` of an interval of bases (null: no end), and the `distance` whose sum is zero at its beginning.
"""

from __future__ import annotations

import json
import math
from bisect import bisect_right
from functools import cache
from pathlib import Path
from typing import Any, Literal, NamedTuple

DATA = Path(__file__).parent / "data"
Kind = Literal["base", "wide", "last"]


class Step(NamedTuple):
    """An interval of bases that holds from `length` on, up to the next step.

    begin, end: bases. distance: in tokens, whose sum is zero at `begin`; None where there is none.
    """

    length: int
    begin: float
    end: float
    distance: int | None


FIRST = Step(1, 1.0, math.inf, None)


def look_up(kind: Kind, rotary_dim: int, length: int) -> Step | None:
    """The step that holds at a length; None for heads and lengths that the tables do not have.

    kind: "base" (the smallest base and its window), "wide" (the first window at least 1 % wide), or "last" (the last
    base that violates). rotary_dim: all dimensions of the head. length: in tokens.
    """
    table = _read(kind, rotary_dim)
    if table is None or length > table["through"]:
        return None
    return _step(table, bisect_right(table["length"], length) - 1)


def farthest(rotary_dim: int) -> tuple[int, float]:
    """The last length of the table of smallest bases, and the base there; (1, 1.0) where there is no table."""
    table = _read("base", rotary_dim)
    return (1, 1.0) if table is None else (table["through"], table["begin"][-1])


def published() -> dict[str, dict[int, float]]:
    """The smallest bases for 128 dimensions that have been published, by source and length."""
    found = json.loads((DATA / "published.json").read_text("utf-8"))
    return {source: {int(length): base for length, base in row.items()} for source, row in found.items()}


def _step(table: dict[str, Any], row: int) -> Step:
    if row < 0:
        return FIRST
    end = table["end"][row]
    return Step(table["length"][row], table["begin"][row], math.inf if end is None else end, table["distance"][row])


@cache
def _read(kind: Kind, rotary_dim: int) -> dict[str, Any] | None:
    path = DATA / f"{rotary_dim}-{kind}.json"
    return json.loads(path.read_text("utf-8")) if path.exists() else None
