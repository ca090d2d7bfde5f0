"""The receipt of an output: read again, and in a folder given a validation result."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from ..errors import BadSource
from ..formats import jsontext
from ..sources.gguf import GgufSource
from ..sources.source import RECEIPT


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


def record_validation(baked: Path, result: dict[str, Any], server: str = "") -> None:
    """Writes a validation result into the receipt of a folder, or beside a GGUF file, whose receipt is within.

    server: what ran it; such results stand beside each other under `servers`.
    """
    gguf = baked.suffix == ".gguf"
    folder, name = (baked.parent, beside(baked).name) if gguf else (baked, RECEIPT)
    data = validations(baked) | {"size": baked.stat().st_size} if gguf else read_receipt(folder)
    if server:
        data["servers"] = data.get("servers", {}) | {server: result}
    else:
        data["validation"] = result
    draft = folder / f".{name}.new"
    draft.write_text(jsontext.dump(data), "utf-8")
    draft.replace(folder / name)


def beside(gguf: Path) -> Path:
    """Where the validation results of a GGUF file are kept."""
    return gguf.with_name(f"{gguf.name}.validation.json")


def validations(gguf: Path) -> dict[str, Any]:
    """What was found of a GGUF file, by `validation` and `servers`; nothing when it has changed since."""
    path = beside(gguf)
    found = jsontext.parse(path.read_text("utf-8"), path.name) if path.is_file() else {}
    return found if found.get("size") == gguf.stat().st_size else {}
