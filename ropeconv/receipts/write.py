"""Writes receipts: into a folder, as the value of a GGUF key, and with a validation result."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgspec

from ..formats import jsontext
from ..sources import RECEIPT
from .read import validations, validations_path
from .receipt import Receipt


def write_receipt(folder: Path, receipt: Receipt) -> None:
    """Writes ropeconv.json into a folder; one that is there is replaced at once."""
    _replace(folder / RECEIPT, receipt.to_dict())


def embedded(receipt: Receipt) -> str:
    """The receipt that a GGUF file carries among its keys, on one line."""
    return json.dumps(receipt.to_dict())


def add_validation(baked: Path, receipt: Receipt, result: dict[str, Any], server: str = "") -> None:
    """Writes a validation result into the receipt of a folder, or beside a GGUF file, whose receipt is within.

    receipt: the one that was read of `baked`. server: the runtime that a server runs; such results stand beside each
    other under `servers`.
    """
    if server:
        receipt = msgspec.structs.replace(receipt, servers={**receipt.servers, server: result})
    else:
        receipt = msgspec.structs.replace(receipt, validation=result)
    if baked.suffix != ".gguf":
        write_receipt(baked, receipt)
        return
    found = validations(baked) | {"schema": receipt.schema, "size": baked.stat().st_size}
    if server:
        found["servers"] = receipt.servers
    else:
        found["validation"] = receipt.validation
    _replace(validations_path(baked), found)


def _replace(path: Path, data: dict[str, Any]) -> None:
    draft = path.with_name(f".{path.name}.new")
    draft.write_text(jsontext.dump(data), "utf-8")
    draft.replace(path)
