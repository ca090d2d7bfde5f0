"""Tables and sentences of evaluations, tuning and validations."""

from dataclasses import dataclass, replace
from pathlib import Path

from ..evaluate.cases import metric_of
from ..evaluate.result import ALPHA, GROWTH, SIGNIFICANT, Entry, Result, Table, sample_size, tables
from ..evaluate.tune.result import TuningResult
from ..inspection.receipts.receipt import EvaluationRecord, MeasuredRecord
from ..rope.errors import command_line
from ..validate.validation import OPTIONAL, Validation, describe_bucket, hidden_columns
from .sheet import GROWTH as COLUMNS
from .sheet import HIDDEN_STATES, VALIDATION, Sheet, legend

MOST_COLUMNS = 6
"""Columns of a measure by position; --json and --report have all."""
STYLES = {True: "bold", False: "bright_black", None: ""}
LEVEL = f"p < {ALPHA:.4f} (Student's t)"


def show_result(result: Result, sheet: Sheet) -> None:
    """Show a result: its tables, rows that did not run, and notes."""
    for table in tables(result, MOST_COLUMNS):
        _show(table, sheet)
    if any(cell.measure == GROWTH for cell in result.cells):
        sheet.say(legend(COLUMNS, COLUMNS))
    for row in result.rows:
        if row.refused:
            sheet.say(f"{row.name} was refused: {row.refused}")
    compared = any(cell.difference is not None for cell in result.cells)
    mark = f"; {'bold' if sheet.colours else SIGNIFICANT}: differs from the first row, {LEVEL}"
    sheet.say(f"T: the trained context, {result.trained:,} tokens{mark if compared else ''}.")
    texts = (
        f"{len(result.texts)} texts"
        if len(result.texts) > 1
        else "".join(result.texts) or "no text"
    )
    sheet.say(
        f"{result.source} in {result.runtime} on {result.device}, {result.dtype}; {texts} "
        f"(tokens sha256 {result.tokens_sha256[:12]})."
    )
    for note in result.notes:
        sheet.say(f"{note[0].upper()}{note[1:]}")


def _show(table: Table, sheet: Sheet) -> None:
    """Show a table with errors after their numbers, or below them; split it where its columns do
    not fit.
    """
    columns = ("", *table.columns)
    wide = [
        (name, *(_text(entry, sheet.colours, entry.error) for entry in entries))
        for name, entries in table.lines
    ]
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
    doubled = {
        (2 * row + below, column): style
        for (row, column), style in styles.items()
        for below in (0, 1)
    }
    sheet.table(table.title, columns, narrow, right=table.columns, styles=doubled)


def _text(entry: Entry, colours: bool, error: str = "") -> str:
    mark = SIGNIFICANT if entry.decided and not colours else ""
    return f"{entry.text}{mark or _space(entry, colours)}{' ' if error else ''}{error}"


def _space(entry: Entry, colours: bool) -> str:
    """A blank in the place of a mark."""
    return "" if colours or entry.text == "-" else " "


def show_tuned(result: TuningResult, out: Path | None, sheet: Sheet) -> None:
    """Show the held-out losses of all rows, the verdict, and the next command. out: the written
    recipe.
    """
    (table,) = result.shown_tables()
    columns = table.columns
    n = max(row.total.clusters for row in result.rows)
    title = f"{result.source}, held-out losses at {result.context:,} tokens; n = {n}"
    sheet.table(title, columns, table.rows, right=columns[1:])
    parts = f"beyond + {result.price:g} inside" + f" + {result.needles:g} needle" * (
        "needle" in columns
    )
    sheet.say(
        f"Losses in nats per token, beyond and inside the trained context of {result.trained:,}"
        f" tokens; total: {parts}; {SIGNIFICANT}: {LEVEL}."
    )
    sheet.say(
        f"The search took {result.steps:,} steps on {result.windows} windows and lowered their"
        f" total by {-result.searched:.4f}; the table is of {result.held_windows} held-out windows."
    )
    for note in result.notes:
        sheet.say(note)
    sheet.say(result.sentence)
    if out is not None:
        sheet.copyable(f"Next: {command_line('apply', result.source, '--recipe', out)}")


def show_validation(result: Validation, title: str, sheet: Sheet, explain: bool = False) -> None:
    """Show a validation, a row per bucket of positions. title: of the first table. explain: every
    column.
    """
    in_chunks = f", {result.chunk} at a time" if result.chunk else ""
    whole = title if result.unchecked else f"Every position up to {result.length:,}{in_chunks}"
    for run, words in (("spread", title), ("whole", whole)):
        shown = [bucket for bucket in result.buckets if bucket.run == run]
        states = any(bucket.cosine is not None for bucket in shown)
        rows = [describe_bucket(bucket) for bucket in shown]
        if rows:
            hidden = hidden_columns(shown)
            kept = [name for name in rows[0] if explain or name not in hidden]
            optional = [name for name in OPTIONAL if name in kept]
            columns = sheet.table(
                words, kept, [[row[name] for name in kept] for row in rows], optional=optional
            )
            meanings = HIDDEN_STATES if states else VALIDATION
    if result.buckets:
        sheet.say(legend(meanings, columns))
    sheet.say(result.sentence)
    if result.unchecked:
        sheet.say(f"This test does not cover: {'; '.join(result.unchecked)}.")


@dataclass(frozen=True)
class EvaluationTable:
    """The table of an evaluation for the card."""

    record: EvaluationRecord
    lengths: tuple[int, ...]
    lines: tuple[tuple[str, tuple[str, ...]], ...]
    retrieves: bool


def evaluation_table(record: EvaluationRecord) -> EvaluationTable:
    """The table of an evaluation: each metric over the length, and its difference to the row
    `against`.
    """
    lengths = tuple(sorted({number.column for number in record.measured}))
    lines: list[tuple[str, tuple[str, ...]]] = []
    for key in dict.fromkeys((number.measure, number.metric) for number in record.measured):
        numbers = [number for number in record.measured if (number.measure, number.metric) == key]
        title = f"{key[0]}, {metric_of(key[1]).title} ({sample_size(numbers)})"
        values = {number.column: _record_value(number) for number in numbers}
        lines.append((title, tuple(values.get(length, "") for length in lengths)))
        if any(number.difference is not None for number in numbers):
            apart = {number.column: _record_difference(number) for number in numbers}
            lines.append(
                (f"minus {record.against}", tuple(apart.get(length, "") for length in lengths))
            )
    retrieves = any(metric_of(number.metric).share for number in record.measured)
    return EvaluationTable(record, lengths, tuple(lines), retrieves)


def _record_value(number: MeasuredRecord) -> str:
    metric = metric_of(number.metric)
    if number.low is not None and number.high is not None:
        return (
            f"{metric.value(number.value)} ({metric.value(number.low)}-{metric.value(number.high)})"
        )
    return metric.value(number.value) + (
        "" if number.error is None else f" ± {metric.error(number.error)}"
    )


def _record_difference(number: MeasuredRecord) -> str:
    """The difference, in bold if it is significant."""
    if number.difference is None:
        return ""
    metric = metric_of(number.metric)
    error = number.difference_error
    text = metric.difference(number.difference) + (
        "" if error is None else f" ± {metric.error(error)}"
    )
    return f"**{text}**" if number.decided else text
