"""Puts the headlines of an evaluation into the receipt of the output that was evaluated."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from ..errors import BadSource
from ..receipts import add_evaluation, read_receipt
from ..receipts.evaluation import EvaluationRecord, MeasuredRecord
from ..version import __version__
from .result import Result
from .row import Row
from .tables import POSITION, headline


def record(result: Result, rows: Sequence[Row]) -> list[Path]:
    """Writes what was measured of outputs into their receipts, and returns the paths of these outputs.

    result: of the evaluation. rows: of it; those with a path are outputs, and those without a receipt are left out.
    Raises OSError where a receipt cannot be written.
    """
    written = []
    for row in rows:
        found = recorded(result, row.name)
        if row.path is None or not found.measured:
            continue
        try:
            receipt = read_receipt(row.path)
        except BadSource:
            continue
        add_evaluation(row.path, receipt, found)
        written.append(row.path)
    return written


def recorded(result: Result, name: str) -> EvaluationRecord:
    """The headline numbers of a row. name: of the row."""
    cells = [cell for cell in result.cells if cell.row == name and cell.measure != POSITION]
    row = next(one for one in result.rows if one.name == name)
    measured = tuple(
        MeasuredRecord(
            measure=cell.measure, metric=cell.metric, length=cell.column, value=cell.value, error=cell.error,
            low=cell.low, high=cell.high, difference=cell.difference, difference_error=cell.difference_error,
        )
        for cell in cells
        if cell.depth is None and cell.metric == headline(result, cell.measure)
    )  # fmt: skip
    compared = any(cell.difference is not None for cell in cells)
    first = next((cell.row for cell in result.cells if cell.difference is None), "")
    return EvaluationRecord(
        against=first if compared else "", runtime=result.runtime, device=result.device, dtype=result.dtype,
        trained=result.trained, texts=tuple(Path(text).name for text in result.texts),
        tokens_sha256=result.tokens_sha256, price=row.price, price_error=row.price_error, holds_to=row.holds_to,
        measured=measured, ropeconv=__version__,
    )  # fmt: skip
