"""Shows the result of an evaluation as tables and sentences."""

from __future__ import annotations

from dataclasses import replace

from ..evaluate.result import GROWTH, Result
from ..evaluate.tables import Entry, Table, tables
from .legends import GROWTH as COLUMNS
from .legends import legend
from .sheet import Sheet

MOST_COLUMNS = 6
"""Of a measure by position; --json and --report have all."""
STYLES = {True: "bold", False: "bright_black", None: ""}
MARK = "*"


def show_result(result: Result, sheet: Sheet) -> None:
    """Shows a result: a table per measure, rows that did not run, and what belongs to the numbers."""
    shown = tables(result, MOST_COLUMNS)
    for table in shown:
        _show(table, sheet)
    if any(table.measure == GROWTH for table in shown):
        sheet.say(legend(COLUMNS, COLUMNS))
    for row in result.rows:
        if row.refused:
            sheet.say(f"{row.name} was not run: {row.refused}")
    many = f"{len(result.texts)} texts" if len(result.texts) > 1 else result.texts[0] if result.texts else "no text"
    sheet.say(
        f"T is the trained context, {result.trained:,} tokens. {result.source} in {result.runtime} on {result.device}, "
        f"{result.dtype}; {many}, sha256 of the tokens {result.tokens_sha256[:12]}."
    )
    if any(cell.difference is not None for cell in result.cells):
        mark = "bold" if sheet.colours else MARK
        sheet.say(
            f"{mark[0].upper()}{mark[1:]}: beyond three standard errors of the paired difference to the first row."
        )
    for note in result.notes:
        sheet.say(f"{note[0].upper()}{note[1:]}")


def _show(table: Table, sheet: Sheet) -> None:
    """Errors stand behind their numbers where the terminal is wide enough, else below them.

    Where that is too wide too, columns are shown in several tables.
    """
    columns = ("", *table.columns)
    wide = [(name, *(_text(entry, sheet.colours, entry.error) for entry in entries)) for name, entries in table.lines]
    styles = {
        (row, column): STYLES[entry.decided]
        for row, (_, entries) in enumerate(table.lines)
        for column, entry in enumerate(entries, 1)
    }
    if sheet.fits(columns, wide):
        sheet.table(table.title, columns, wide, right=table.columns, styles=styles)
        return
    narrow: list[tuple[str, ...]] = []
    for name, entries in table.lines:
        narrow.append((name, *(_text(entry, sheet.colours) for entry in entries)))
        narrow.append(("", *(f"{entry.error}{_space(entry, sheet.colours)}" for entry in entries)))
    if len(table.columns) > 1 and not sheet.fits(columns, narrow):
        half = (len(table.columns) + 1) // 2
        for part in (slice(0, half), slice(half, None)):
            lines = tuple((name, entries[part]) for name, entries in table.lines)
            _show(replace(table, columns=table.columns[part], lines=lines), sheet)
        return
    doubled = {(2 * row + below, column): style for (row, column), style in styles.items() for below in (0, 1)}
    sheet.table(table.title, columns, narrow, right=table.columns, styles=doubled)


def _text(entry: Entry, colours: bool, error: str = "") -> str:
    mark = MARK if entry.decided and not colours else ""
    return f"{entry.text}{mark or _space(entry, colours)}{' ' if error else ''}{error}"


def _space(entry: Entry, colours: bool) -> str:
    """What keeps numbers without a mark below those with one."""
    return "" if colours or entry.text == "-" else " "
