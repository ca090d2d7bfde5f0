"""ropeconv.json in a folder: read again, and given a validation result."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from ..errors import BadSource
from ..formats import jsontext
from .base import RECEIPT


def read_receipt(folder: Path) -> dict[str, Any]:
    """The receipt in a folder. Raises BadSource when there is none."""
    path = folder / RECEIPT
    if not path.is_file():
        raise BadSource(f"{folder} has no {RECEIPT}, so it is not an output of ropeconv; give the folder `apply` made")
    return jsontext.parse(path.read_text("utf-8"), RECEIPT)


def record_validation(folder: Path, result: dict[str, Any]) -> None:
    """Writes a validation result into the receipt of a folder, replacing the file as a whole."""
    data = read_receipt(folder) | {"validation": result}
    draft = folder / f".{RECEIPT}.new"
    draft.write_text(jsontext.dump(data), "utf-8")
    draft.replace(folder / RECEIPT)
