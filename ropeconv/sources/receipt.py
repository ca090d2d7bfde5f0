"""The receipt of an output: read again, and in a folder given a validation result."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from ..errors import BadSource
from ..formats import jsontext
from .base import RECEIPT
from .gguf import GgufSource


def read_receipt(baked: Path) -> dict[str, Any]:
    """The receipt in a folder or among a GGUF file's keys. Raises BadSource when there is none."""
    if baked.suffix == ".gguf":
        text = GgufSource(baked).file.get(RECEIPT)
        if not isinstance(text, str):
            raise BadSource(f"{baked} has no receipt among its keys, so it is not an output of ropeconv")
        found: dict[str, Any] = json.loads(text)
        return found
    path = baked / RECEIPT
    if not path.is_file():
        raise BadSource(f"{baked} has no {RECEIPT}, so it is not an output of ropeconv; give the folder `apply` made")
    return jsontext.parse(path.read_text("utf-8"), RECEIPT)


def record_validation(folder: Path, result: dict[str, Any], server: str = "") -> None:
    """Writes a validation result into the receipt of a folder, replacing the file as a whole.

    server: what ran it; such results stand beside each other under `servers`.
    """
    data = read_receipt(folder)
    if server:
        data["servers"] = data.get("servers", {}) | {server: result}
    else:
        data["validation"] = result
    draft = folder / f".{RECEIPT}.new"
    draft.write_text(jsontext.dump(data), "utf-8")
    draft.replace(folder / RECEIPT)
