"""Table: the numbers of a result as they are shown in the terminal, in the report and in the card."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from .asked import in_trained
from .measures import REGISTRY
from .metric import Metric, metric_of
from .result import GROWTH, Cell, Result, RowResult, decided

POSITION = "position"
"""The measure whose columns are places in one pass, and not lengths of sequences."""


@dataclass(frozen=True)
class Entry:
    """A number for display. error: its standard error or interval. decided: beyond three errors; None: no difference.

    text: the number, or a word where there is none.
    """

    text: str
    error: str = ""
    decided: bool | None = None


@dataclass(frozen=True)
class Table:
    """The numbers of one measure. title: what they are. columns: headings. lines: name and entries of each row."""

    measure: str
    title: str
    columns: tuple[str, ...]
    lines: tuple[tuple[str, tuple[Entry, ...]], ...]


NOTHING = Entry("-")


def tables(result: Result, most: int = 10_000) -> list[Table]:
    """The tables of a result, of each measure its headline.

    most: columns of the loss by position; of more, some at even distances are kept. Lengths are all kept.
    """
    return [_table(result, measure, most) for measure in measures_of(result)]


def measures_of(result: Result) -> list[str]:
    """The measures with numbers, in the order that was asked for."""
    found = dict.fromkeys(cell.measure for cell in result.cells)
    return [name for name in dict.fromkeys([*result.measures, *found]) if name in found]


def headline(result: Result, measure: str) -> str:
    """The metric of a measure that tables and pictures show."""
    found = list(dict.fromkeys(cell.metric for cell in result.cells if cell.measure == measure))
    wanted = REGISTRY[measure].metrics if measure in REGISTRY else ()
    return next((name for name in wanted if name in found), found[0])


def columns_of(result: Result, measure: str) -> list[int]:
    """The columns of a measure, rising."""
    return sorted({cell.column for cell in result.cells if cell.measure == measure})


def _table(result: Result, measure: str, most: int) -> Table:
    name, columns = headline(result, measure), columns_of(result, measure)
    if measure == POSITION:
        columns = _thinned(columns, most, result.trained)
    metric, growth = metric_of(name), measure == GROWTH
    cells = {(cell.row, cell.column): cell for cell in result.cells if _shown(cell, measure, name)}
    run = [row for row in result.rows if any((row.name, column) in cells for column in columns)]
    lines = []
    for row in run:
        found = [cells.get((row.name, column)) for column in columns]
        shown = [NOTHING if cell is None else _entry(cell, metric) for cell in found]
        lines.append((row.name, (*shown, *(derived(row, result) if growth else ()))))
    headings = [f"{one:,}" if measure == POSITION else in_trained(one, result.trained) for one in columns]
    said = f", then minus {run[0].name}" if len(run) > 1 else ""
    said = ", 95 % interval" if metric.share else said
    more = ("price", "holds to") if growth else ()
    return Table(measure, f"{measure}: {metric.title}{said}", (*headings, *more), tuple(lines))


def _shown(cell: Cell, measure: str, metric: str) -> bool:
    return (cell.measure, cell.metric, cell.depth) == (measure, metric, None)


def _thinned(columns: Sequence[int], most: int, trained: int) -> list[int]:
    """At most that many columns at even distances, with the last, and the last within the trained context."""
    if len(columns) <= most:
        return list(columns)
    kept = [columns[(number + 1) * len(columns) // most - 1] for number in range(most)]
    inside = [column for column in columns if column <= trained]
    if inside and inside[-1] not in kept:
        nearest = min(range(most - 1), key=lambda index: abs(kept[index] - inside[-1]))
        kept[nearest] = inside[-1]
    return kept


def _entry(cell: Cell, metric: Metric) -> Entry:
    if cell.low is not None and cell.high is not None:
        return Entry(metric.value(cell.value), f"{metric.value(cell.low)}-{metric.value(cell.high)}", cell.decided)
    number, error = (cell.value, cell.error) if cell.difference is None else (cell.difference, cell.difference_error)
    text = metric.value(number) if cell.difference is None else metric.difference(number)
    return Entry(text, "" if error is None else f"±{metric.error(error)}", cell.decided)


def derived(row: RowResult, result: Result) -> tuple[Entry, Entry]:
    """The price inside the trained context, and the length to which the row holds, with a plus for the longest."""
    held, metric = NOTHING, metric_of("loss")
    if row.holds_to is not None:
        longest = row.holds_to == columns_of(result, GROWTH)[-1]
        held = Entry(in_trained(row.holds_to, result.trained) + ("+" if longest else ""))
    if row.price is None or row.price_error is None:
        return NOTHING, held
    shown = decided(row.price, row.price_error)
    return Entry(metric.difference(row.price), f"±{metric.error(row.price_error)}", shown), held
