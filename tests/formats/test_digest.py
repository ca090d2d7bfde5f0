"""The sample of a file: the whole of small files, and of large ones both ends and what is between."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest

from ropeconv.formats.digest import PIECE, PIECES, sampled, sha256


def test_sha256_is_that_of_the_whole(tmp_path: Path) -> None:
    data = bytes(range(256)) * 9000
    (tmp_path / "a").write_bytes(data)
    assert sha256(tmp_path / "a") == hashlib.sha256(data).hexdigest()


@pytest.mark.parametrize("size", [0, 1, PIECE, PIECE + 1, 3 * PIECE, PIECE * PIECES])
def test_every_byte_of_a_small_file_counts(tmp_path: Path, size: int) -> None:
    path, data = tmp_path / "a", bytearray(size)
    path.write_bytes(data)
    first = sampled(path)
    for place in {0, size // 3, size // 2, size - 1} if size else ():
        path.write_bytes(data[:place] + b"\1" + data[place + 1 :])
        assert sampled(path) != first, place
    path.write_bytes(bytes(size + 1))
    assert sampled(path) != first


def test_both_ends_and_62_pieces_of_a_large_file_count(tmp_path: Path) -> None:
    path, size = tmp_path / "a", 1 << 30
    with path.open("wb") as file:
        file.truncate(size)
    first, noticed = sampled(path), 0
    for place in (0, PIECE - 1, size - PIECE, size - 1, (size - PIECE) * 20 // 63 + 5, PIECE + 1):
        with path.open("r+b") as file:
            file.seek(place)
            file.write(b"\1")
            file.flush()
            noticed += sampled(path) != first
            file.seek(place)
            file.write(b"\0")
    assert noticed == 5  # the last one is between the first two pieces
