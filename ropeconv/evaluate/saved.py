"""Writes results into files, and reads them."""

from __future__ import annotations

import math
from pathlib import Path

import msgspec

from ..errors import BadSource, UsageError
from ..formats import jsontext
from ..formats.regular import read_text
from ..formats.typed import typed
from ..version import SCHEMA, __version__
from .result import Result

LONGEST = 64 << 20
"""Characters of a result; one of a hundred rows and all measures has some ten million."""


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
