"""Puts the headlines of an evaluation into the receipt of the output that was evaluated."""

from __future__ import annotations

from pathlib import Path

from ..errors import UsageError
from ..receipts import add_evaluation, read_receipt
from ..receipts.evaluation import EvaluationRecord, MeasuredRecord
from ..version import __version__
from .result import Result
from .tables import BY_POSITION, headline


def record(result: Result, row: str, baked: Path) -> EvaluationRecord:
    """Writes what was measured of an output into its receipt, and returns it.

    result: of the evaluation. row: name of the output's. baked: the output. Raises BadSource where that has no receipt,
    and UsageError where nothing of it was measured.
    """
    receipt, found = read_receipt(baked), recorded(result, row)
    if not found.measured:
        raise UsageError(f"nothing of {row} was measured that a receipt keeps; run it with --measure growth")
    add_evaluation(baked, receipt, found)
    return found


def recorded(result: Result, name: str) -> EvaluationRecord:
    """The headline numbers of a row. name: of the row."""
    cells = [cell for cell in result.cells if cell.row == name and cell.measure not in BY_POSITION]
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
