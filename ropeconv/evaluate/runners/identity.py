"""What tells a model from another: sha256 over its config or header, and names, sizes and times of its weights."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from pathlib import Path

from ...engines.transformers.load import local_folder
from ...export.checkpoint import GgufCheckpoint
from ...sources import GgufSource, Source


def identity_of(source: Source | GgufSource) -> str:
    """The identity of a source; one that is converted for a run has that of the file it is made from."""
    if isinstance(source, GgufCheckpoint):
        return converted(identity_of(source.inner), source.dtype)
    if isinstance(source, GgufSource):
        with source.file.path.open("rb") as file:
            header = file.read(source.file.header.data_start)
        return _identity(header, source.file.paths)
    folder = local_folder(source)
    return _identity((folder / "config.json").read_bytes(), sorted(folder.glob("*.safetensors")))


def converted(identity: str, outtype: str) -> str:
    """The identity of a model that is made from another one. identity: of that. outtype: of its weights."""
    return hashlib.sha256(f"{identity} {outtype}".encode()).hexdigest()


def _identity(first: bytes, paths: Iterable[Path]) -> str:
    digest = hashlib.sha256(first)
    for path in paths:
        found = path.stat()
        digest.update(f"{path.name} {found.st_size} {found.st_mtime_ns}\n".encode())
    return digest.hexdigest()
