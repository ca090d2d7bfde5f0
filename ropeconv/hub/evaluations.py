"""Evaluations in the model card: the metadata `model-index`, a table and a picture, from the receipt.

https://github.com/huggingface/hub-docs/blob/main/modelcard.md?plain=1
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from ..evaluate.metric import metric_of
from ..evaluate.result import GROWTH, decided
from ..pictures.evaluation import Curve, differences, losses
from ..pictures.style import figure, write
from ..receipts.evaluation import EvaluationRecord, MeasuredRecord

if TYPE_CHECKING:
    from huggingface_hub import EvalResult


@dataclass(frozen=True)
class Shown:
    """An evaluation for the card.

    record: it is of. lengths: of the columns. lines: name and cells of each row of the table. retrieves: whether
    retrieval was measured.
    """

    record: EvaluationRecord
    lengths: tuple[int, ...]
    lines: tuple[tuple[str, tuple[str, ...]], ...]
    retrieves: bool


def shown(record: EvaluationRecord) -> Shown:
    """The table of an evaluation: values of each measure over the length, and what they differ from `against` by."""
    lengths = tuple(sorted({one.length for one in record.measured}))
    lines: list[tuple[str, tuple[str, ...]]] = []
    for measure in dict.fromkeys(one.measure for one in record.measured):
        found = {one.length: one for one in record.measured if one.measure == measure}
        metric = metric_of(next(iter(found.values())).metric)
        lines.append((f"{measure}, {metric.title}", _cells(found, lengths, _value)))
        if any(one.difference is not None for one in found.values()):
            lines.append((f"minus {record.against}", _cells(found, lengths, _difference)))
    retrieves = any(metric_of(one.metric).share for one in record.measured)
    return Shown(record, lengths, tuple(lines), retrieves)


def eval_results(records: Sequence[EvaluationRecord]) -> Iterator[EvalResult]:
    """The entries of `model-index`: one for every number."""
    from huggingface_hub import EvalResult

    for record in records:
        for one in record.measured:
            yield EvalResult(
                task_type="text-generation",
                dataset_type="text",
                dataset_name=record.described_texts,
                dataset_args={"tokens_sha256": record.tokens_sha256},
                metric_type=one.metric,
                metric_name=f"{one.measure} at {one.length:,} tokens, {metric_of(one.metric).unit}",
                metric_value=round(one.value, 4),
            )


def draw(record: EvaluationRecord, path: Path) -> None:
    """Writes the picture of growth: losses of the output and of what it is compared with, and their difference.

    Raises RopeconvError without matplotlib.
    """
    found = sorted((one for one in record.measured if one.measure == GROWTH), key=lambda one: one.length)
    own, apart = _curve(found, "value", "error"), _curve(found, "difference", "difference_error")
    curves, title = {"this model": own}, f"loss in nats per token, {record.described_texts}"
    if not record.against or np.isnan(apart.y).any():
        write(figure(partial(losses, curves=curves, title=title, trained=record.trained)), path)
        return
    first = Curve(own.x, own.y - apart.y, np.full(len(own.x), np.nan))
    both = {record.against: first} | curves
    minus = partial(
        differences, curves={"this model": apart}, title=f"minus {record.against}, nat", trained=record.trained
    )
    write(figure(partial(losses, curves=both, title=title, trained=record.trained), minus), path)


def drawable(records: Sequence[EvaluationRecord]) -> EvaluationRecord | None:
    """The newest evaluation with growth; None where there is none."""
    return next((one for one in reversed(records) if any(cell.measure == GROWTH for cell in one.measured)), None)


def _cells(
    found: Mapping[int, MeasuredRecord], lengths: Sequence[int], write: Callable[[MeasuredRecord], str]
) -> tuple[str, ...]:
    return tuple(write(found[length]) if length in found else "" for length in lengths)


def _value(one: MeasuredRecord) -> str:
    metric = metric_of(one.metric)
    if one.low is not None and one.high is not None:
        return f"{metric.value(one.value)} ({metric.value(one.low)}-{metric.value(one.high)})"
    return metric.value(one.value) + ("" if one.error is None else f" ± {metric.error(one.error)}")


def _difference(one: MeasuredRecord) -> str:
    """In bold beyond three standard errors."""
    if one.difference is None:
        return ""
    metric, error = metric_of(one.metric), one.difference_error
    text = metric.difference(one.difference) + ("" if error is None else f" ± {metric.error(error)}")
    return f"**{text}**" if decided(one.difference, error) else text


def _curve(found: Sequence[MeasuredRecord], value: str, error: str) -> Curve:
    points = [(one.length, getattr(one, value), getattr(one, error)) for one in found]
    return Curve(*np.array([[np.nan if x is None else x for x in one] for one in points], np.float64).T)
