"""Tables and sentences of validations, and the table of an evaluation for the model card."""

from collections.abc import Sequence
from dataclasses import dataclass

from ..inspection.receipts.metrics import metric_of, sample_size
from ..inspection.receipts.receipt import EvaluationRecord, MeasuredRecord
from ..validate.validation import (
    OPTIONAL,
    BucketResult,
    Validation,
    describe_bucket,
    hidden_columns,
)
from .sheet import HIDDEN_STATES, VALIDATION, Sheet, legend


def show_validation(result: Validation, title: str, sheet: Sheet, explain: bool = False) -> None:
    """Show a validation, a row for each range of positions (a bucket).

    Args:
        result: The validation.
        title: The title of the first table.
        sheet: The sheet that shows it.
        explain: Whether every column is shown.
    """
    # Two runs: at some positions spread over the context, and over every position from 0 on. A
    # server accepts no positions with gaps, so its result has only the second run, as main table.
    # Only the results of servers have properties that were not checked.
    was_server = bool(result.unchecked)
    whole_title = title
    if not was_server:
        whole_title = f"Every position up to {result.length:,}"
        if result.chunk:
            whole_title += f", {result.chunk} at a time"
    titles = {"spread": title, "whole": whole_title}

    # the meaning of the columns is said once, behind the last table
    meanings = ""
    for run, table_title in titles.items():
        buckets = [bucket for bucket in result.buckets if bucket.run == run]
        if buckets:
            meanings = _show_buckets(buckets, table_title, sheet, explain)
    if result.buckets:
        sheet.say(meanings)

    sheet.say(result.sentence)
    if result.unchecked:
        sheet.say(f"This test does not cover: {'; '.join(result.unchecked)}.")


def _show_buckets(buckets: Sequence[BucketResult], title: str, sheet: Sheet, explain: bool) -> str:
    """Show a table of the buckets of one run, and return the meaning of its columns."""
    rows = [describe_bucket(bucket) for bucket in buckets]
    hidden = hidden_columns(buckets)
    columns = [name for name in rows[0] if explain or name not in hidden]
    optional = [name for name in OPTIONAL if name in columns]
    cells = []
    for row in rows:
        cells.append([row[name] for name in columns])
    shown = sheet.table(title, columns, cells, optional=optional)

    compares_states = any(bucket.cosine is not None for bucket in buckets)
    return legend(HIDDEN_STATES if compares_states else VALIDATION, shown)


@dataclass(frozen=True)
class EvaluationTable:
    """The table of an evaluation for the card."""

    record: EvaluationRecord

    lengths: tuple[int, ...]
    """The columns, in tokens."""

    lines: tuple[tuple[str, tuple[str, ...]], ...]
    """The title of each row, and a cell for each length."""

    retrieves: bool
    """Whether a number is a share, such as that of facts that were found."""


def evaluation_table(record: EvaluationRecord) -> EvaluationTable:
    """Return the table of an evaluation: a line for each metric, with a cell for each length.

    Where another model was measured too, which `record.against` names, a second line has the
    differences to it. For two lengths, the lines are such as ("growth, nats per token (n = 24)",
    ("2.31", "2.48")) and ("minus base", ("-0.02", "-2.10")).
    """
    # a column for each length, and the measured values of each metric of a measure
    lengths = tuple(sorted({measured.column for measured in record.measured}))
    by_metric: dict[tuple[str, str], list[MeasuredRecord]] = {}
    for measured in record.measured:
        key = (measured.measure, measured.metric)
        by_metric.setdefault(key, []).append(measured)

    # a line is a title, and a cell for each length, empty where nothing was measured
    lines: list[tuple[str, tuple[str, ...]]] = []
    for (measure, metric), records in by_metric.items():
        title = f"{measure}, {metric_of(metric).title} ({sample_size(records)})"
        values = {measured.column: _describe_value(measured) for measured in records}
        cells = tuple(values.get(length, "") for length in lengths)
        lines.append((title, cells))

        has_differences = any(measured.difference is not None for measured in records)
        if has_differences:
            differences = {measured.column: _describe_difference(measured) for measured in records}
            cells = tuple(differences.get(length, "") for length in lengths)
            lines.append((f"minus {record.against}", cells))

    # a metric that is a share of answers, such as that of hidden facts that were found
    has_share = any(metric_of(measured.metric).share for measured in record.measured)
    return EvaluationTable(record=record, lengths=lengths, lines=tuple(lines), retrieves=has_share)


def _describe_value(number: MeasuredRecord) -> str:
    """Return a number with its interval or its error."""
    metric = metric_of(number.metric)
    text = metric.value(number.value)
    if number.low is not None and number.high is not None:
        return f"{text} ({metric.value(number.low)}-{metric.value(number.high)})"
    if number.error is not None:
        return f"{text} ± {metric.error(number.error)}"
    return text


def _describe_difference(number: MeasuredRecord) -> str:
    """Return the difference to the first row, in bold if it is significant."""
    if number.difference is None:
        return ""
    metric = metric_of(number.metric)
    text = metric.difference(number.difference)
    if number.difference_error is not None:
        text += f" ± {metric.error(number.difference_error)}"
    return f"**{text}**" if number.decided else text
