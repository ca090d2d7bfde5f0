"""The sha256 of the contents of a file, and of a sample of them."""

from __future__ import annotations

import hashlib
from pathlib import Path

BLOCK = 1 << 20
PIECE, PIECES = 1 << 16, 64


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
