"""The sample of a file: the whole of small files, and of large ones both ends and what is between."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest

from ropeconv.formats.digest import sampled, sha256

PIECE, PIECES = 65536, 64
"""Bytes of a piece, and how many are read of a large file."""


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


def test_a_sample_is_the_size_and_64_pieces_of_64_kb(tmp_path: Path) -> None:
    """Of 100 pieces and a byte the k-th one that is read begins at k 99/63 of a piece, and k/63 of a byte."""
    data = b"".join(hashlib.sha256(number.to_bytes(4, "big")).digest() * 2048 for number in range(100)) + b"\7"
    (tmp_path / "a").write_bytes(data)
    assert len(data) == 6_553_601
    begin = [(99 * 65536 + 1) * k // 63 for k in range(64)]
    assert (begin[1], begin[63], begin[63] + 65536) == (102985, 6488065, len(data))
    read = b"".join(data[place : place + 65536] for place in begin)
    assert sampled(tmp_path / "a") == hashlib.sha256(b"6553601" + read).hexdigest()
