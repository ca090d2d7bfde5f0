"""Tables and sentences of evaluations, tuning and validations."""

from dataclasses import dataclass

from ..inspection.receipts.metrics import metric_of, sample_size
from ..inspection.receipts.receipt import EvaluationRecord, MeasuredRecord
from ..validate.validation import OPTIONAL, Validation, describe_bucket, hidden_columns
from .sheet import HIDDEN_STATES, VALIDATION, Sheet, legend


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
