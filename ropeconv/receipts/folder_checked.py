"""Checks the names in a FolderRecord before any file is opened: receipts are from other people's checkpoints."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import PurePosixPath

from ..errors import BadSource
from ..formats.index import safe_name
from ..sources import RECEIPT
from .original import FolderRecord

WEIGHTS = ".safetensors"
"""Of all files, only those of weights are ever renamed."""


def check_folder(record: FolderRecord, files: Iterable[str], reference: str) -> None:
    """Raises BadSource where a record names files outside the folder, or such as no bake writes.

    record: from the receipt. files: names of those in the output. reference: of the output, for the message.
    """
    for name in (*record.added, *record.skipped):
        if not safe_name(name):
            raise _untrue(reference, f"names a file {name!r}, outside it")
    for name in (*record.renamed, *record.renamed.values(), *(text.name for text in record.texts)):
        if not safe_name(name) or any(part.startswith(".") for part in PurePosixPath(name).parts):
            raise _untrue(reference, f"names a file {name!r}, outside it or hidden")
    for now, original in record.renamed.items():
        if not now.endswith(WEIGHTS) or not original.endswith(WEIGHTS):
            raise _untrue(reference, f"says that {original!r} is now {now!r}, and only weights are renamed")
    for text in record.texts:
        if text.name == RECEIPT or text.name.endswith(WEIGHTS):
            raise _untrue(reference, f"has another text of {text.name!r}")
    texts = [text.name for text in record.texts]
    gone = {RECEIPT, *record.added, *texts}
    names = [*texts, *(record.renamed.get(name, name) for name in files if name not in gone)]
    if len(names) != len(set(names)):
        twice = next(name for name in names if names.count(name) > 1)
        raise _untrue(reference, f"gives {twice!r} twice")


def _untrue(reference: str, what: str) -> BadSource:
    return BadSource(f"the receipt of {reference} {what}; do not trust it, take the source again")
