"""Summary: results that Python and notebooks show in a few lines.

`Summary` is the base of every result. `TableSummary` is the base of those that are tables too, with
`to_pandas`. Both are here and not beside the packages above, since a `Schedule` is a result too.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from typing import TYPE_CHECKING, Any, ClassVar

from .errors import RopeconvError

if TYPE_CHECKING:
    from pandas import DataFrame

MOST_LINES = 6
"""Rows of a table in a `repr`."""
MOST_ROWS = 200
"""Rows of a table in a notebook."""
CELL = ' style="text-align:left"'
"""Jupyter sets cells flush right, where sentences cannot be read."""


@dataclass(frozen=True)
class SummaryTable:
    """A table of a result, with its cells as people read them."""

    name: str
    """The attribute of the result whose values it shows."""

    columns: tuple[str, ...]
    """The titles of the columns."""

    rows: Sequence[Sequence[str]]
    """A cell for each column."""

    title: str = ""
    """The meaning of the numbers, where the name does not say it."""


class Summary:
    """A result whose `repr` is its `summary` and its tables, and in a notebook the same as HTML.

    Every name that it shows is an attribute of the result.
    """

    __slots__ = ()

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        # dataclass() would make another one
        cls.__repr__ = Summary.__repr__  # type: ignore[method-assign]

    def summary(self) -> dict[str, str]:
        """Return what is shown, by the name of the attribute: first the conclusion in words."""
        raise NotImplementedError

    def shown_tables(self) -> Sequence[SummaryTable]:
        """Return the tables that are shown below the summary, with the columns of the screen."""
        return ()

    def to_dict(self) -> dict[str, Any]:
        """Return the result as JSON-ready data."""
        raise NotImplementedError

    def __repr__(self) -> str:
        """The values and tables of the summary as text, with their names in one column."""
        # empty values and tables are left out
        values = {name: value for name, value in self.summary().items() if value}
        tables = [table for table in self.shown_tables() if table.rows]

        # names are in one column, as wide as the longest
        names = [*values] + [table.name for table in tables]
        width = max((len(name) for name in names), default=0)

        lines = [type(self).__name__]
        for name, value in values.items():
            lines += _indent(name, value.splitlines(), width)
        previous = ""
        for table in tables:
            # two tables of one attribute have its name once
            name = "" if table.name == previous else table.name
            lines += _indent(name, _align(table), width)
            previous = table.name
        return "\n".join(lines)

    def _repr_html_(self) -> str:
        rows = []
        for name, value in self.summary().items():
            if value:
                cells = f"<th{CELL}>{escape(name)}</th><td{CELL}>{_with_breaks(value)}</td>"
                rows.append(f"<tr>{cells}</tr>")

        caption = f"<caption>{escape(type(self).__name__)}</caption>"
        parts = [f"<table>{caption}<tbody>{''.join(rows)}</tbody></table>"]
        for table in self.shown_tables():
            if table.rows:
                parts.append(_html(table))
        return "\n".join(parts)


class TableSummary(Summary):
    """A result that is also a table: of its rows, cells, buckets or runtimes."""

    __slots__ = ()

    record_keys: ClassVar[tuple[str, ...]] = ()
    """The columns of `to_pandas`; empty where they are the keys of the records."""

    def records(self) -> list[dict[str, Any]]:
        """Return the rows of the table as numbers and texts, by column."""
        raise NotImplementedError

    def to_pandas(self) -> DataFrame:
        """Return the table as a pandas DataFrame, with a row for each of `records()`.

        Raises:
            RopeconvError: If pandas is not installed; ropeconv does not depend on it.
        """
        try:
            import pandas
        except ImportError:
            raise RopeconvError(
                "to_pandas() needs pandas, which is not installed; pip install 'ropeconv[pandas]'"
            ) from None
        columns = list(self.record_keys) or None
        return pandas.DataFrame(self.records(), columns=columns)


def _indent(name: str, lines: Sequence[str], width: int) -> list[str]:
    """Return the lines of a value, with its name before the first."""
    first, *others = lines
    indented = [f"  {name:<{width}}  {first}"]
    for line in others:
        indented.append(f"  {'':<{width}}  {line}")
    return indented


def _align(table: SummaryTable) -> list[str]:
    """Return a table as lines of text, with its first rows."""
    # a cell with line breaks becomes one line, and a column is as wide as its longest cell
    rows = [table.columns]
    for row in table.rows[:MOST_LINES]:
        rows.append(tuple(" ".join(cell.split()) for cell in row))
    columns = zip(*rows, strict=True)
    widths = [max(map(len, column)) for column in columns]

    lines = []
    if table.title:
        lines.append(table.title)
    for row in rows:
        padded = [f"{cell:<{width}}" for cell, width in zip(row, widths, strict=True)]
        lines.append("  ".join(padded).rstrip())

    left_out = len(table.rows) - MOST_LINES
    if left_out > 0:
        lines.append(f"... and {left_out:,} more")
    return lines


def _html(table: SummaryTable) -> str:
    """Return a table as HTML, with its first rows."""
    caption = table.name
    if table.title:
        caption = f"{table.name}: {table.title}"
    titles = [f"<th{CELL}>{escape(column)}</th>" for column in table.columns]

    rows = []
    for row in table.rows[:MOST_ROWS]:
        cells = [f"<td{CELL}>{_with_breaks(cell)}</td>" for cell in row]
        rows.append(f"<tr>{''.join(cells)}</tr>")
    left_out = len(table.rows) - MOST_ROWS
    if left_out > 0:
        span = f'<td colspan="{len(table.columns)}"{CELL}>'
        rows.append(f"<tr>{span}... and {left_out:,} more</td></tr>")

    head = f"<thead><tr>{''.join(titles)}</tr></thead>"
    body = f"<tbody>{''.join(rows)}</tbody>"
    return f"<table><caption>{escape(caption)}</caption>{head}{body}</table>"


def _with_breaks(text: str) -> str:
    """Return a text as HTML, with its line breaks, and with the indentation of a file."""
    lines = [escape(line) for line in text.splitlines()]
    if any(line.startswith(" ") for line in lines):
        return "<pre>" + "\n".join(lines) + "</pre>"
    return "<br>".join(lines)
