"""Writes receipts into folders and GGUF keys, and validation results into or beside them."""

from __future__ import annotations

import errno
import json
import os
import time
from contextlib import suppress
from pathlib import Path
from typing import Any, BinaryIO

import msgspec

from ..formats import jsontext
from ..formats.durable import sync_file, sync_folder
from ..formats.locks import try_lock
from ..sources import RECEIPT
from .evaluation import EvaluationRecord
from .read import validations, validations_path
from .receipt import Receipt

DRAFT = f".{RECEIPT}.new"
PAUSE = 0.01  # seconds between two attempts to write a draft
MOST_EVALUATIONS = 8
"""That a receipt keeps: those of different texts and runtimes, the newest last."""
ELSEWHERE = (errno.EXDEV, errno.EACCES, errno.EPERM, errno.EROFS)


def write_receipt(folder: Path, receipt: Receipt, fsync: bool = True) -> None:
    """Writes ropeconv.json into a folder, replacing an earlier one atomically.

    folder: the output. It is drafted beside that, so that a kill leaves nothing new in it, and inside where it cannot
    be beside, as with a mounted folder. receipt: to write. fsync: wait until it is on the disk. Raises OSError.
    """
    folder, data = folder.resolve(), receipt.to_dict()
    beside, inside = _drafts(folder)
    try:
        _replace(folder / RECEIPT, beside, data, fsync)
    except OSError as problem:
        if problem.errno not in ELSEWHERE:
            raise
        _replace(folder / RECEIPT, inside, data, fsync)
    clear_drafts(folder)


def embedded(receipt: Receipt) -> str:
    """A receipt as JSON on one line, for a key of a GGUF file."""
    return json.dumps(receipt.to_dict())


def add_validation(baked: Path, receipt: Receipt, result: dict[str, Any], server: str = "") -> None:
    """Writes a validation result into the receipt of a folder, or into a file beside a GGUF file.

    baked: the folder or GGUF file. receipt: as read from it. result: as `Validation.to_dict` has it. server: the
    runtime of a server, for the field `servers`; empty for the field `validation`.
    """
    if server:
        _add(baked, receipt, "servers", {**receipt.servers, server: result})
    else:
        _add(baked, receipt, "validation", result)


def add_evaluation(baked: Path, receipt: Receipt, record: EvaluationRecord) -> None:
    """Writes the headlines of an evaluation into the receipt of a folder, or into a file beside a GGUF file.

    baked: the folder or GGUF file. receipt: as read from it. record: takes the place of an earlier one of the same text
    in the same runtime.
    """
    others = [one for one in receipt.evaluations if one.of_what != record.of_what]
    for older in receipt.evaluations:
        record = record.joined(older) if older.of_what == record.of_what else record
    _add(baked, receipt, "evaluations", (*others[1 - MOST_EVALUATIONS :], record))


def _add(baked: Path, receipt: Receipt, field: str, value: Any) -> None:
    if baked.suffix != ".gguf":
        write_receipt(baked, msgspec.structs.replace(receipt, **{field: value}))
        return
    found = {"schema": receipt.schema, "size": baked.stat().st_size, **validations(baked)}
    _replace(validations_path(baked), _results_draft(baked), {**found, field: msgspec.to_builtins(value)})


def clear_drafts(baked: Path) -> None:
    """Removes the drafts that killed processes left of a receipt, or of the results beside a GGUF file.

    baked: the folder or GGUF file, which need not exist. What another process is writing stays, and what cannot be
    removed.
    """
    for draft in (_results_draft(baked),) if baked.suffix == ".gguf" else _drafts(baked.resolve()):
        with suppress(OSError):
            if draft.is_file() and not draft.is_symlink():
                with draft.open("ab") as file:
                    if try_lock(file) == "taken":
                        draft.unlink()


def _drafts(folder: Path) -> tuple[Path, Path]:
    """Where a receipt is drafted: beside its folder, and inside where it cannot be beside."""
    return folder.with_name(f".{folder.name}.{RECEIPT}.new"), folder / DRAFT


def _results_draft(gguf: Path) -> Path:
    path = validations_path(gguf)
    return path.with_name(f".{path.name}.new")


def _replace(path: Path, draft: Path, data: dict[str, Any], fsync: bool = True) -> None:
    with _opened(draft) as file:
        try:
            file.truncate(0)  # a kill may have left it
            file.write(jsontext.dump(data).encode())
            file.flush()
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


def _opened(draft: Path) -> BinaryIO:
    """A draft that this process alone writes, after others have moved theirs to its name. Raises OSError."""
    while True:
        file = draft.open("ab")
        try:
            if try_lock(file) != "busy" and os.path.samestat(os.fstat(file.fileno()), draft.stat()):
                return file
        except FileNotFoundError:
            pass
        except BaseException:
            file.close()
            raise
        file.close()
        time.sleep(PAUSE)
