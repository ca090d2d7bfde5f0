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
    """Show the result of `ropeconv validate`, with a table row for each range of positions.

    Args:
        result: The result.
        title: The title of the main table.
        sheet: The screen.
        explain: Whether every column is shown (--explain).
    """
    # A result may have two tables: "spread" is for some positions over the whole context, and
    # "whole" for every position from 0 on. A server cannot run positions with gaps, so "whole" is
    # the main table of its result. Only results of servers have a list of what was not checked.
    is_from_server = bool(result.unchecked)
    if is_from_server:
        whole_title = title
    else:
        whole_title = f"Every position up to {result.length:,}"
        if result.chunk:
            whole_title += f", {result.chunk} at a time"
    titles = {"spread": title, "whole": whole_title}

    # both tables have the same columns, which are explained once, below the last table
    explanation_of_columns = ""
    for run, table_title in titles.items():
        buckets = [bucket for bucket in result.buckets if bucket.run == run]
        if buckets:
            explanation_of_columns = _show_buckets(buckets, table_title, sheet, explain)
    if result.buckets:
        sheet.say(explanation_of_columns)

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
    """Return the table of an evaluation, with a line for each metric and a column for each length.

    For two lengths, a line is ("growth, nats per token (n = 24)", ("2.31", "2.48")). If the
    evaluation compares the model with another model, named "base" for example, the next line has
    the differences: ("minus base", ("-0.02", "-2.10")).
    """
    # `column` is the length in tokens at which a value was measured
    lengths = tuple(sorted({measured.column for measured in record.measured}))

    # the measured values of each metric
    values_by_metric: dict[tuple[str, str], list[MeasuredRecord]] = {}
    for measured in record.measured:
        key = (measured.measure, measured.metric)
        values_by_metric.setdefault(key, []).append(measured)

    lines: list[tuple[str, tuple[str, ...]]] = []
    for (measure, metric), values in values_by_metric.items():
        # the values, with an empty cell for a length at which nothing was measured
        sample = sample_size(values)  # such as "n = 24"
        title = f"{measure}, {metric_of(metric).title} ({sample})"
        value_by_length = {value.column: _describe_value(value) for value in values}
        cells = tuple(value_by_length.get(length, "") for length in lengths)
        lines.append((title, cells))

        # the differences from the other model
        has_differences = any(value.difference is not None for value in values)
        if has_differences:
            difference_by_length = {value.column: _describe_difference(value) for value in values}
            cells = tuple(difference_by_length.get(length, "") for length in lengths)
            lines.append((f"minus {record.against}", cells))

    # whether a metric is a share of answers, such as the share of hidden facts that were found
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
