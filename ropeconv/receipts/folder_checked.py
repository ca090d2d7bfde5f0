"""Checks the names in a FolderRecord before any file is opened: receipts are from other people's checkpoints."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from pathlib import PurePosixPath

from ..errors import BadSource
from ..formats.index import safe_name
from ..sources import RECEIPT
from .original import FolderRecord

WEIGHTS = ".safetensors"
"""Of all files, only those of weights are ever renamed."""
LONGEST = 240  # bytes of a name; filesystems have 255, and drafts of files have longer names


def check_folder(record: FolderRecord, files: Iterable[str], reference: str) -> None:
    """Raises BadSource where a record names files outside the folder, or such as no bake writes.

    record: from the receipt. files: names of those in the output. reference: of the output, for the message.
    """
    for name in (*record.added, *record.skipped):
        if not safe_name(name):
            raise _untrue(reference, f"names a file {name!r}, outside it")
    for name in (*record.renamed, *record.renamed.values(), *(text.name for text in record.texts)):
        if not _plain(name):
            raise _untrue(reference, f"names a file {name[:LONGEST]!r}, outside it or hidden")
    for now, original in record.renamed.items():
        if not now.endswith(WEIGHTS) or not original.endswith(WEIGHTS):
            raise _untrue(reference, f"says that {original!r} is now {now!r}, and only weights are renamed")
    for text in record.texts:
        if text.name == RECEIPT or text.name.endswith(WEIGHTS):
            raise _untrue(reference, f"has another text of {text.name!r}")
    texts = [text.name for text in record.texts]
    gone = {RECEIPT, *record.added, *texts}
    names = [*texts, *(record.renamed.get(name, name) for name in files if name not in gone)]
    for given in (names, list(record.renamed.values())):
        twice = [name for name, count in Counter(given).items() if count > 1]
        if twice:
            raise _untrue(reference, f"gives {twice[0]!r} twice")
    folders = {str(folder) for name in names for folder in PurePosixPath(name).parents}
    if folders & set(names):
        raise _untrue(reference, f"has {min(folders & set(names))!r} as a file and as a folder")


def _plain(name: str) -> bool:
    """Whether a name is inside its folder, not hidden, and spelt as a listing of the folder would."""
    path = PurePosixPath(name)
    usual = str(path) == name and not any(part.startswith(".") for part in path.parts)
    return safe_name(name) and usual and max(len(part.encode()) for part in path.parts) <= LONGEST


def _untrue(reference: str, what: str) -> BadSource:
    return BadSource(f"the receipt of {reference} {what}; do not trust it, take the source again")
