"""Result: what an evaluation leaves, with every cell of its table and how it was measured; and the file of it."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import msgspec

from ..errors import BadSource, UsageError
from ..formats import jsontext
from ..formats.regular import read_text
from ..formats.typed import typed
from ..version import SCHEMA, __version__

LONGEST = 64 << 20
"""Characters of a result; one of a hundred rows and all measures has some ten million."""
GROWTH = "growth"
"""The measure from which the price and the length to which a row holds follow."""
ERRORS = 3.0
"""Standard errors beyond which a difference is taken as one."""


def decided(difference: float, error: float | None) -> bool:
    """Whether a difference is beyond three standard errors. error: one of them; None where it is not known."""
    return error is not None and abs(difference) > ERRORS * error


class Cell(msgspec.Struct, frozen=True, kw_only=True):
    """One number of the table, with its standard error.

    row, measure, metric, column, depth: what it is; depth is None for the mean over depths, and for measures without.
    value: the mean over windows. error: its standard error; None for a single window. low, high: Wilson's interval of
    95 %, for shares only. difference: minus the first row's, paired by window; None in that row. difference_error: its
    standard error. windows, documents: how many it is from.
    """

    row: str
    measure: str
    metric: str
    column: int
    value: float
    error: float | None
    windows: int
    documents: int
    depth: float | None = None
    low: float | None = None
    high: float | None = None
    difference: float | None = None
    difference_error: float | None = None

    @property
    def decided(self) -> bool | None:
        """Whether the difference is beyond three standard errors; None where there is none."""
        return None if self.difference is None else decided(self.difference, self.difference_error)


class RowResult(msgspec.Struct, frozen=True, kw_only=True):
    """What a row is, and what follows from its cells.

    name: in tables. recipe: of the method; None for the model as it is. refused: why it was not run; empty where it
    was. price: loss at the trained length minus the first row's, in nats per token, and price_error: its standard
    error; None in the first row, and where that length was not measured. holds_to: the longest length to which the loss
    is not worse than the row's own best by more than three standard errors; None where growth was not measured.
    """

    name: str
    recipe: dict[str, Any] | None = None
    refused: str = ""
    price: float | None = None
    price_error: float | None = None
    holds_to: int | None = None


class Result(msgspec.Struct, frozen=True, kw_only=True):
    """An evaluation.

    source: how the user named the model. identity: what tells it from others. runtime, device, dtype: which computed
    it. trained: the trained context in tokens. lengths: that were measured, in tokens. measures: their names. texts:
    names of the documents. tokens_sha256: over the tokens of all of them. seed: of random choices. seconds: that the
    cases took. rows: in the order of the table. cells: of all measures. notes: sentences that belong to the table.
    """

    source: str
    identity: str
    runtime: str
    device: str
    dtype: str
    trained: int
    lengths: list[int]
    measures: list[str]
    texts: list[str]
    tokens_sha256: str
    seed: int
    seconds: float
    rows: list[RowResult]
    cells: list[Cell]
    notes: list[str] = []
    schema: int = SCHEMA
    ropeconv: str = ""

    def cell(self, row: str, measure: str, metric: str, column: int) -> Cell | None:
        """The cell over all depths of a row, a measure, a metric and a column; None where it was not measured."""
        wanted = (row, measure, metric, column, None)
        return next((c for c in self.cells if (c.row, c.measure, c.metric, c.column, c.depth) == wanted), None)

    def to_dict(self) -> dict[str, Any]:
        """The result as JSON-ready data, with every key."""
        found: dict[str, Any] = msgspec.to_builtins(self)
        return found


def write_result(result: Result, path: Path) -> None:
    """Writes a result as JSON. path: of the file, which is replaced. Raises OSError."""
    path.write_bytes(msgspec.json.format(msgspec.json.encode(result), indent=2) + b"\n")


def read_result(path: Path) -> Result:
    """The result in a file that `write_result` wrote.

    Raises UsageError for a file that is not there, and BadSource for one that is no result, or of a later version.
    """
    try:
        text = read_text(path, str(path))
    except OSError as problem:
        raise UsageError(
            f"{path} cannot be read ({problem.strerror}); give a file that `ropeconv eval -o` wrote"
        ) from None
    data = jsontext.parse(text, str(path), LONGEST)
    schema = data.get("schema")
    if isinstance(schema, int) and schema > SCHEMA:
        raise BadSource(f"{path} is of a later ropeconv than {__version__}; upgrade this one")
    if "cells" not in data or "rows" not in data:
        raise BadSource(f"{path} is no result of an evaluation; give a file that `ropeconv eval -o` wrote")
    result = typed(data, Result, str(path))
    names = {row.name for row in result.rows}
    for cell in result.cells:
        numbers = (cell.value, cell.error or 0.0, cell.difference or 0.0, cell.difference_error or 0.0)
        if cell.row not in names or not all(map(math.isfinite, numbers)):
            raise BadSource(f"{path} has a cell of {cell.row} that no evaluation writes; run `ropeconv eval` again")
    return result
