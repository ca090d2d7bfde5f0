"""Shows what runtimes compute of the model families."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from ..bake.matrix import MatrixCell, counts, letters
from ..runtimes import Runtime
from .legends import RUNTIMES, legend
from .sheet import Sheet

LEGEND = (
    "T a new base (theta, NTK), L linear, 3 llama3, Y YaRN, F any frequencies (longrope factors). A letter: exact in "
    "the newest version; a dot: not exact, `ropeconv inspect` and `apply --dry-run --explain` say why; -: it has no "
    "such model; ?: nobody looked."
)


def show_runtimes(rows: Iterable[dict[str, Any]], sheet: Sheet) -> None:
    """Shows a row per runtime, and what the columns mean. rows: as `summary` gives them."""
    columns = ("--runtime", "what", "exact", "run", "read", "unknown", "source")
    optional = ("source", "what", "read", "unknown", "run")
    shown = sheet.table("Runtimes", columns, [tuple(map(str, row.values())) for row in rows], optional=optional)
    counted = {"run", "read", "unknown"} <= set(shown)
    sheet.say(legend(RUNTIMES, ("exact", *(["run, read, unknown"] if counted else []))))


def summary(row: Runtime, cells: Iterable[MatrixCell]) -> dict[str, Any]:
    """A row of the table: the cells of a runtime that are exact, and how they are known."""
    own = [cell for cell in cells if cell.verdict.covers(row)]
    exact = sum(cell.verdict.status == "exact" for cell in own)
    return {
        "runtime": row.key, "display_name": row.display_name, "exact": f"{exact} of {len(own)}", **counts(own),
        "source": row.source,
    }  # fmt: skip


def newest_of(rows: Iterable[Runtime]) -> list[Runtime]:
    """The newest version of each runtime."""
    return list({row.name: row for row in rows}.values())


def show_matrix(cells: Iterable[MatrixCell], rows: list[Runtime], sheet: Sheet) -> None:
    """Shows a row per family and a column per runtime. cells: of the families. rows: the runtimes."""
    by_family: dict[str, list[MatrixCell]] = {}
    for cell in cells:
        by_family.setdefault(cell.family, []).append(cell)
    table = [
        (family, *(letters(cell for cell in of_family if cell.verdict.covers(row)) for row in rows))
        for family, of_family in by_family.items()
    ]
    several = len({row.name for row in rows}) < len(rows)
    columns = [row.key if several else row.name for row in rows]
    sheet.table("What each runtime computes", ("family", *columns), table)
    sheet.say(LEGEND)
