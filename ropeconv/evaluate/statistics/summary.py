"""Summary: the rows, cells and notes of a result, from the outcome of a run."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ..asked import Asked
from ..outcome import Outcome
from ..result import Cell, RowResult
from ..row import Row
from .cells import Summarised, cells_of
from .notes import notes
from .rows import holds_to, price


@dataclass(frozen=True)
class Summary:
    """What a `Result` has of the numbers: rows in the order of the table, cells, and sentences for below the table."""

    rows: list[RowResult]
    cells: list[Cell]
    notes: list[str]


def summarise(outcome: Outcome, rows: Sequence[Row], asked: Asked) -> Summary:
    """Means, errors, differences to the first row that ran, and what follows from them.

    outcome: of the run, which may have been stopped. rows: of the evaluation. asked: its sizes.
    """
    seen = outcome.observations
    first = next((row.name for row in rows if seen.get(row.name)), None)
    found: list[Summarised] = []
    for row in rows:
        against = seen[first] if first is not None and row.name != first else None
        found += cells_of(row.name, seen.get(row.name, []), against, asked.seed)
    cells = [one.cell for one in found]
    results = [_row(row, outcome, cells, asked) for row in rows]
    return Summary(results, cells, [*_run_notes(outcome, rows, first, asked.trained), *notes(found)])


def _row(row: Row, outcome: Outcome, cells: Sequence[Cell], asked: Asked) -> RowResult:
    paid, error = price(cells, row.name, asked.trained)
    return RowResult(
        name=row.name,
        recipe=row.recipe.to_dict() if row.recipe else None,
        refused=outcome.refused(row.name),
        price=paid,
        price_error=error,
        holds_to=holds_to(outcome.observations.get(row.name, []), asked.seed),
    )


def _run_notes(outcome: Outcome, rows: Sequence[Row], first: str | None, trained: int) -> list[str]:
    """What the run itself did not give."""
    said = outcome.sentences(trained, [row.name for row in rows])
    if first is not None and first != rows[0].name:
        said.append(f"{rows[0].name} did not run, so differences are to {first}.")
    if outcome.stopped:
        said.append("Stopped before the end: these are the cases that were finished.")
    return said
