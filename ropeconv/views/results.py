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
        _show_table(table, sheet)
    if any(cell.measure == GROWTH for cell in result.cells):
        sheet.say(legend(COLUMNS, COLUMNS))
    for row in result.rows:
        if row.refused:
            sheet.say(f"{row.name} was refused: {row.refused}")

    meaning = ""
    if any(cell.difference is not None for cell in result.cells):
        mark = "bold" if sheet.colours else SIGNIFICANT
        meaning = f"; {mark}: differs from the first row, {LEVEL}"
    sheet.say(f"T: the trained context, {result.trained:,} tokens{meaning}.")

    if len(result.texts) > 1:
        texts = f"{len(result.texts)} texts"
    else:
        texts = "".join(result.texts) or "no text"
    sheet.say(
        f"{result.source} in {result.runtime} on {result.device}, {result.dtype}; {texts} "
        f"(tokens sha256 {result.tokens_sha256[:12]})."
    )
    for note in result.notes:
        sheet.say(f"{note[0].upper()}{note[1:]}")


def _show_table(table: Table, sheet: Sheet) -> None:
    """Show a table with errors after their numbers, or below them.

    It is split in two where its columns do not fit.
    """
    columns = ("", *table.columns)
    wide = _wide_rows(table, sheet.colours)
    if sheet.fits(columns, wide):
        styles = _styles_of(table, lines_per_row=1)
        sheet.table(table.title, columns, wide, right=table.columns, styles=styles)
        return
    narrow = _narrow_rows(table, sheet.colours)
    if len(table.columns) < 2 or sheet.fits(columns, narrow):
        styles = _styles_of(table, lines_per_row=2)
        sheet.table(table.title, columns, narrow, right=table.columns, styles=styles)
        return
    half = (len(table.columns) + 1) // 2
    for part in (slice(0, half), slice(half, None)):
        lines = tuple((name, entries[part]) for name, entries in table.lines)
        _show_table(replace(table, columns=table.columns[part], lines=lines), sheet)


def _wide_rows(table: Table, colours: bool) -> list[tuple[str, ...]]:
    """The rows of a table with errors after their numbers."""
    rows = []
    for name, entries in table.lines:
        cells = []
        for entry in entries:
            number = _number(entry, colours)
            cells.append(f"{number} {entry.error}" if entry.error else number)
        rows.append((name, *cells))
    return rows


def _narrow_rows(table: Table, colours: bool) -> list[tuple[str, ...]]:
    """The rows of a table with errors below their numbers."""
    rows: list[tuple[str, ...]] = []
    for name, entries in table.lines:
        numbers = [_number(entry, colours) for entry in entries]
        errors = [entry.error + _blank_mark(entry, colours) for entry in entries]
        rows += [(name, *numbers), ("", *errors)]
    return rows


def _styles_of(table: Table, lines_per_row: int) -> dict[tuple[int, int], str]:
    """The styles of the cells of a table, by line and column."""
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
    """A blank in the place of a mark."""
    if colours or entry.text == "-":
        return ""
    return " "


def show_tuned(result: TuningResult, out: Path | None, sheet: Sheet) -> None:
    """Show the held-out losses of all rows, the verdict, and the next command.

    Args:
        result: The result of the search.
        out: The written recipe, if there is one.
        sheet: The sheet that shows them.
    """
    (table,) = result.shown_tables()
    columns = table.columns
    n = max(row.total.clusters for row in result.rows)
    title = f"{result.source}, held-out losses at {result.context:,} tokens; n = {n}"
    sheet.table(title, columns, table.rows, right=columns[1:])

    parts = f"beyond + {result.price:g} inside"
    if "needle" in columns:
        parts += f" + {result.needles:g} needle"
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
    """Show a validation, a row per bucket of positions.

    Args:
        result: The validation.
        title: The title of the first table.
        sheet: The sheet that shows it.
        explain: Whether every column is shown.
    """
    if result.unchecked:
        whole = title
    else:
        in_chunks = f", {result.chunk} at a time" if result.chunk else ""
        whole = f"Every position up to {result.length:,}{in_chunks}"

    for run, words in (("spread", title), ("whole", whole)):
        buckets = [bucket for bucket in result.buckets if bucket.run == run]
        if not buckets:
            continue
        rows = [describe_bucket(bucket) for bucket in buckets]
        hidden = hidden_columns(buckets)
        kept = [name for name in rows[0] if explain or name not in hidden]
        cells = [[row[name] for name in kept] for row in rows]
        optional = [name for name in OPTIONAL if name in kept]
        columns = sheet.table(words, kept, cells, optional=optional)
        states = any(bucket.cosine is not None for bucket in buckets)
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
    """Return the table of an evaluation.

    It has each metric over the length, and its difference to the row `against`.
    """
    lengths = tuple(sorted({number.column for number in record.measured}))
    by_metric: dict[tuple[str, str], list[MeasuredRecord]] = {}
    for number in record.measured:
        by_metric.setdefault((number.measure, number.metric), []).append(number)

    lines: list[tuple[str, tuple[str, ...]]] = []
    for (measure, metric), numbers in by_metric.items():
        title = f"{measure}, {metric_of(metric).title} ({sample_size(numbers)})"
        values = {number.column: _record_value(number) for number in numbers}
        lines.append((title, tuple(values.get(length, "") for length in lengths)))
        if any(number.difference is not None for number in numbers):
            apart = {number.column: _record_difference(number) for number in numbers}
            cells = tuple(apart.get(length, "") for length in lengths)
            lines.append((f"minus {record.against}", cells))

    retrieves = any(metric_of(number.metric).share for number in record.measured)
    return EvaluationTable(record, lengths, tuple(lines), retrieves)


def _record_value(number: MeasuredRecord) -> str:
    """A number with its interval or its error."""
    metric = metric_of(number.metric)
    text = metric.value(number.value)
    if number.low is not None and number.high is not None:
        return f"{text} ({metric.value(number.low)}-{metric.value(number.high)})"
    if number.error is not None:
        return f"{text} ± {metric.error(number.error)}"
    return text


def _record_difference(number: MeasuredRecord) -> str:
    """The difference, in bold if it is significant."""
    if number.difference is None:
        return ""
    metric = metric_of(number.metric)
    text = metric.difference(number.difference)
    if number.difference_error is not None:
        text += f" ± {metric.error(number.difference_error)}"
    return f"**{text}**" if number.decided else text
