"""Tables and sentences of evaluations."""

from dataclasses import replace
from pathlib import Path

from ropeconv.bake.proof import ALPHA
from ropeconv.inspection.receipts.metrics import GROWTH
from ropeconv.views.plot_style import Picture
from ropeconv.views.sheet import GROWTH as COLUMN_MEANINGS
from ropeconv.views.sheet import Sheet, legend

from .plots import evaluation_pictures
from .result import MOST_SHOWN_COLUMNS, SIGNIFICANT, Entry, Result, Table, read_result, tables

STYLES = {True: "bold", False: "bright_black", None: ""}
"""Styles of cells whose difference is significant, is not, or was not tested."""

SIGNIFICANCE = f"p < {ALPHA:.4f} (docs/evaluating.md)"


def show_evaluation(path: Path, sheet: Sheet) -> list[Picture]:
    """Show the result in a file, and return its pictures.

    Raises:
        BadSource: For a file that is not a result.
    """
    result = read_result(path)
    show_result(result, sheet)
    return evaluation_pictures(result)


def show_result(result: Result, sheet: Sheet) -> None:
    """Show the result of an evaluation: its tables, rows that did not run, and notes."""
    for table in tables(result, MOST_SHOWN_COLUMNS):
        _show_table(table, sheet)

    # the table of losses by length ("growth") has two columns that need a legend: "price" and
    # "holds to"
    has_growth = any(cell.measure == GROWTH for cell in result.cells)
    if has_growth:
        every_column = COLUMN_MEANINGS.keys()
        sheet.say(legend(COLUMN_MEANINGS, shown=every_column))
    for row in result.rows:
        if row.refused:
            sheet.say(f"{row.name} was refused: {row.refused}")

    # only a checkpoint tells the trained context
    length_of_t = "the trained context"
    if "://" in result.source:
        length_of_t = "the longest prompt of the first server, as no checkpoint is named"

    # "T: the trained context, 4,096 tokens; bold: differs from the first row, p < 0.0027."
    significance = ""
    has_differences = any(cell.difference is not None for cell in result.cells)
    if has_differences:
        mark = "bold" if sheet.colours else SIGNIFICANT
        significance = f"; {mark}: differs from the first row, {SIGNIFICANCE}"
    sheet.say(f"T: {length_of_t}, {result.trained:,} tokens{significance}.")

    # what was measured, and where
    if len(result.texts) > 1:
        texts = f"{len(result.texts)} texts"
    elif result.texts:
        texts = result.texts[0]
    else:
        texts = "no text"
    sheet.say(
        f"{result.source} in {result.runtime} on {result.device}, {result.dtype}; {texts} "
        f"(tokens sha256 {result.tokens_sha256[:12]})."
    )
    for note in result.notes:
        sheet.say(f"{note[0].upper()}{note[1:]}")


def _show_table(table: Table, sheet: Sheet) -> None:
    """Show a table whose cells have a number and its error, as the width of the screen allows.

    The errors stand after their numbers, or below them on a narrow screen. A table that does not
    fit even so is shown as two.
    """
    # "3.412 ± 0.020" in one line
    columns = ("", *table.columns)
    wide = _wide_rows(table, sheet.colours)
    if sheet.fits(columns, wide):
        styles = _styles_of(table, lines_per_row=1)
        sheet.table(table.title, columns, wide, right=table.columns, styles=styles)
        return

    # the error in a line of its own
    narrow = _narrow_rows(table, sheet.colours)
    if len(table.columns) < 2 or sheet.fits(columns, narrow):
        styles = _styles_of(table, lines_per_row=2)
        sheet.table(table.title, columns, narrow, right=table.columns, styles=styles)
        return

    # two tables, one below the other, each of which may be split again
    half = (len(table.columns) + 1) // 2
    for part in (slice(0, half), slice(half, None)):
        lines = tuple((name, entries[part]) for name, entries in table.lines)
        _show_table(replace(table, columns=table.columns[part], lines=lines), sheet)


def _wide_rows(table: Table, colours: bool) -> list[tuple[str, ...]]:
    """Return the rows of a table with errors after their numbers, such as "3.412 ±0.020"."""
    rows = []
    for name, entries in table.lines:
        cells = []
        for entry in entries:
            text = _number(entry, colours)
            if entry.error:
                text += f" {entry.error}"
            cells.append(text)
        rows.append((name, *cells))
    return rows


def _narrow_rows(table: Table, colours: bool) -> list[tuple[str, ...]]:
    """Return the rows of a table with errors below their numbers."""
    rows: list[tuple[str, ...]] = []
    for name, entries in table.lines:
        numbers = [_number(entry, colours) for entry in entries]
        errors = [entry.error + _blank_mark(entry, colours) for entry in entries]
        rows += [(name, *numbers), ("", *errors)]
    return rows


def _styles_of(table: Table, lines_per_row: int) -> dict[tuple[int, int], str]:
    """Return the styles of the cells of a table, by line and column."""
    styles = {}
    for row, (_, entries) in enumerate(table.lines):
        for column, entry in enumerate(entries, 1):
            for below in range(lines_per_row):
                styles[lines_per_row * row + below, column] = STYLES[entry.decided]
    return styles


def _number(entry: Entry, colours: bool) -> str:
    """The number of an entry, with its mark where colours do not show that it is significant."""
    if entry.decided and not colours:
        return entry.text + SIGNIFICANT
    return entry.text + _blank_mark(entry, colours)


def _blank_mark(entry: Entry, colours: bool) -> str:
    """Return a blank in the place of a mark."""
    if colours or entry.text == "-":
        return ""
    return " "
