"""Writes receipts into folders and GGUF keys, and validation results into or beside them."""

from __future__ import annotations

import errno
import json
from contextlib import suppress
from pathlib import Path
from typing import Any

import msgspec

from ..formats import jsontext
from ..formats.durable import sync_file, sync_folder
from ..sources import RECEIPT
from .read import validations, validations_path
from .receipt import Receipt

DRAFT = f".{RECEIPT}.new"
ELSEWHERE = (errno.EXDEV, errno.EACCES, errno.EPERM, errno.EROFS)


def write_receipt(folder: Path, receipt: Receipt, fsync: bool = True) -> None:
    """Writes ropeconv.json into a folder, replacing an earlier one atomically.

    folder: the output. It is drafted beside that, so that a kill leaves nothing new in it, and inside where it cannot
    be beside, as with a mounted folder. receipt: to write. fsync: wait until it is on the disk. Raises OSError.
    """
    folder, data = folder.resolve(), receipt.to_dict()
    inside, beside = folder / DRAFT, folder.with_name(f".{folder.name}.{RECEIPT}.new")
    try:
        _replace(folder / RECEIPT, beside, data, fsync)
    except OSError as problem:
        if problem.errno not in ELSEWHERE:
            raise
        _replace(folder / RECEIPT, inside, data, fsync)


def embedded(receipt: Receipt) -> str:
    """A receipt as JSON on one line, for a key of a GGUF file."""
    return json.dumps(receipt.to_dict())


def add_validation(baked: Path, receipt: Receipt, result: dict[str, Any], server: str = "") -> None:
    """Writes a validation result into the receipt of a folder, or into a file beside a GGUF file.

    baked: the folder or GGUF file. receipt: as read from it. result: as `Validation.to_dict` has it. server: the
    runtime of a server, for the field `servers`; empty for the field `validation`.
    """
    if server:
        receipt = msgspec.structs.replace(receipt, servers={**receipt.servers, server: result})
    else:
        receipt = msgspec.structs.replace(receipt, validation=result)
    if baked.suffix != ".gguf":
        write_receipt(baked, receipt)
        return
    found = {"schema": receipt.schema, "size": baked.stat().st_size, **validations(baked)}
    if server:
        found["servers"] = receipt.servers
    else:
        found["validation"] = receipt.validation
    path = validations_path(baked)
    _replace(path, path.with_name(f".{path.name}.new"), found)


def _replace(path: Path, draft: Path, data: dict[str, Any], fsync: bool = True) -> None:
    try:
        draft.write_text(jsontext.dump(data), "utf-8")
        if fsync:
            sync_file(draft)
        draft.replace(path)
    except OSError:
        with suppress(OSError):
            draft.unlink()
        raise
    if fsync:
        for folder in {draft.parent, path.parent}:
            sync_folder(folder)
