"""The sha256 of the contents of a file, and of a sample of them."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from pathlib import Path

BLOCK = 1 << 20
PIECE, PIECES = 1 << 16, 64
OF_TENSOR = 1 << 12
"""Bytes that are read of each tensor."""


def text_digest(*parts: str) -> str:
    """sha256 of texts that have no line ends, in hexadecimal."""
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()


def sha256(path: Path) -> str:
    """sha256 of a file's contents, in hexadecimal."""
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while block := file.read(BLOCK):
            digest.update(block)
    return digest.hexdigest()


def sampled(path: Path) -> str:
    """sha256 of the size of a file, its first and its last 64 kB and 62 evenly spaced pieces of 64 kB between them.

    Takes the same time for every size, and covers files up to 4 MB as a whole.
    """
    with path.open("rb") as file:
        size = file.seek(0, 2)
        digest = hashlib.sha256(str(size).encode())
        last = max(0, size - PIECE)
        for place in sorted({last * number // (PIECES - 1) for number in range(PIECES)}):
            file.seek(place)
            digest.update(file.read(PIECE))
    return digest.hexdigest()


def weights_digest(path: Path, data_start: int, tensors: Iterable[tuple[int, int]]) -> str:
    """sha256 of a part of a file of weights that tells it from others, in hexadecimal; takes constant memory.

    The size, the time of the last change, the whole header, 4 kB from the middle of each tensor, and what `sampled`
    reads: a change of one tensor changes it, and so does a change in place that none of these bytes show.

    path: of the file. data_start: length of the header, in bytes. tensors: where each begins, and its length, in bytes.
    """
    status = path.stat()
    digest = hashlib.sha256(f"{status.st_size} {status.st_mtime_ns} {sampled(path)}".encode())
    with path.open("rb") as file:
        while data_start > 0 and (block := file.read(min(BLOCK, data_start))):
            digest.update(block)
            data_start -= len(block)
        for start, size in tensors:
            file.seek(start + max(0, size - OF_TENSOR) // 2)
            digest.update(file.read(min(size, OF_TENSOR)))
    return digest.hexdigest()
