"""Advice sorted by what was measured: the rows of a result that are the advised methods."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ..bake.advice import Advice
from ..bake.inherited import Pair, inherit_mscale
from ..errors import RecipeError, UsageError
from ..inspection import Inspection
from ..rope.recipe import Recipe
from ..rope.schedule import Schedule
from .result import GROWTH, Cell, Result, RowResult
from .tables import derived


@dataclass(frozen=True)
class Ranking:
    """Advice sorted by measured loss.

    found: those that were measured, by their loss, then the others in their own order. rows: of the result, by the name
    of the method. column: the length whose loss counts. result: of the evaluation.
    """

    found: list[Advice]
    rows: dict[str, RowResult]
    column: int
    result: Result

    def cells(self, one: Advice) -> tuple[str, ...]:
        """Cells for a table: the loss, the price, and the length to which it holds."""
        row = self.rows.get(one.method.name)
        if row is None:
            return "-", "-", "-"
        return f"{_loss(self.result, row, self.column).value:.3f}", *(entry.text for entry in derived(row, self.result))

    def to_dict(self, one: Advice) -> dict[str, Any] | None:
        """What was measured of a method, as JSON-ready data; None for nothing."""
        row = self.rows.get(one.method.name)
        if row is None:
            return None
        cell = _loss(self.result, row, self.column)
        return {
            "row": row.name, "length": cell.column, "loss": cell.value, "error": cell.error,
            "difference": cell.difference, "difference_error": cell.difference_error, "price": row.price,
            "price_error": row.price_error, "holds_to": row.holds_to,
        }  # fmt: skip


def ranked(
    found: Sequence[Advice], result: Result, seen: Inspection, context: int, mscale: Pair | None = None
) -> Ranking:
    """Advice sorted by what was measured.

    found: advice in its own order. result: of an evaluation of the same model. seen: the model. context: in tokens; the
    longest measured length within it counts. mscale: that a recipe inherits from the model. Raises UsageError for a
    result of a model with another trained context, and for one without growth.
    """
    spec = seen.first_spec
    trained = (spec.unscaled() if spec.scaled else spec).original_context
    if result.trained != trained:
        raise UsageError(
            f"the evaluation is of a model trained for {result.trained:,} tokens, and this one was for {trained:,}; "
            "run `ropeconv eval` on it"
        )
    columns = sorted({cell.column for cell in result.cells if cell.measure == GROWTH})
    if not columns:
        raise UsageError("the evaluation has no growth; run `ropeconv eval` with --measure growth")
    column = max((one for one in columns if one <= context), default=columns[0])
    rows: dict[str, RowResult] = {}
    for row in result.rows:
        schedule = _schedule(row, seen, mscale)
        if schedule is not None and result.cell(row.name, GROWTH, "loss", column):
            rows |= {one.method.name: row for one in found if _alike(schedule, one.schedule)}

    def place(one: Advice) -> tuple[bool, float]:
        row = rows.get(one.method.name)
        return row is None, 0.0 if row is None else _loss(result, row, column).value

    return Ranking(sorted(found, key=place), rows, column, result)


def _loss(result: Result, row: RowResult, column: int) -> Cell:
    cell = result.cell(row.name, GROWTH, "loss", column)
    assert cell is not None, row.name
    return cell


def _schedule(row: RowResult, seen: Inspection, mscale: Pair | None) -> Schedule | None:
    """What a row computes; None for the model as it is, and for a recipe that this model cannot have."""
    if row.recipe is None:
        return None
    try:
        recipe = inherit_mscale(Recipe.from_dict(row.recipe), mscale)
        basis = seen.basis(recipe)
        return recipe.schedule(recipe.start(basis), basis)
    except RecipeError:
        return None


def _alike(one: Schedule, other: Schedule) -> bool:
    """Whether two schedules compute the same, whatever context they declare."""
    same = len(one.inv_freq) == len(other.inv_freq) and np.allclose(one.inv_freq, other.inv_freq, rtol=1e-9, atol=0)
    factors = np.isclose(one.attention_factor, other.attention_factor, rtol=1e-9)
    return bool(
        same and factors and one.log_n == other.log_n and (one.short_inv_freq is None) == (other.short_inv_freq is None)
    )
