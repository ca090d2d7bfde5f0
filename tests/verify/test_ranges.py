"""Bytes of a file against ranges of others: equal ones pass, and a single other one is found wherever it is."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from ropeconv.verify.ranges import BLOCK, Copied, Made, Range, Streamed, first_difference

SIZE = 2 * BLOCK + 1000
HOLE = BLOCK + 37


def files(tmp_path: Path) -> tuple[Path, Path, bytes]:
    """A file, another with its bytes 5 places later, and the bytes."""
    data = np.random.default_rng(0).integers(0, 256, SIZE, np.uint8).tobytes()
    (tmp_path / "one").write_bytes(data)
    (tmp_path / "other").write_bytes(b"12345" + data)
    return tmp_path / "one", tmp_path / "other", data


def ranges(kind: str, other: Path, data: bytes) -> list[Range]:
    return {
        "copied": [Copied(0, SIZE, other, 5)],
        "made": [Made(0, SIZE, lambda at, size: data[at : at + size])],
        "streamed": [Streamed(0, SIZE, lambda: iter((data[:7], memoryview(data)[7:])))],
        "mixed": [Copied(0, HOLE, other, 5), Made(HOLE, SIZE, lambda at, size: data[HOLE + at : HOLE + at + size], 8)],
    }[kind]


@pytest.mark.parametrize("kind", ["copied", "made", "streamed", "mixed"])
@pytest.mark.parametrize("place", [0, HOLE - 1, HOLE, BLOCK - 1, BLOCK, 2 * BLOCK, SIZE - 1])
def test_a_single_other_byte_is_found(kind: str, place: int, tmp_path: Path) -> None:
    one, other, data = files(tmp_path)
    assert first_difference(one, ranges(kind, other, data)) is None
    wrong = bytearray(data)
    wrong[place] ^= 4
    one.write_bytes(wrong)
    assert first_difference(one, ranges(kind, other, data)) == place


@pytest.mark.parametrize("kind", ["copied", "made", "streamed"])
def test_other_lengths_are_found(kind: str, tmp_path: Path) -> None:
    one, other, data = files(tmp_path)
    one.write_bytes(data[:-3])
    assert first_difference(one, ranges(kind, other, data)) == SIZE - 3
    one.write_bytes(data + b"\1")
    assert first_difference(one, ranges(kind, other, data)) == SIZE
    short = [Streamed(0, SIZE, lambda: iter((data[:-3],)))]
    one.write_bytes(data)
    assert first_difference(one, short) == SIZE - 3


def test_an_origin_that_ends_early_is_a_difference(tmp_path: Path) -> None:
    one, other, data = files(tmp_path)
    other.write_bytes(b"12345" + data[:-1])
    assert first_difference(one, [Copied(0, SIZE, other, 5)]) == SIZE - 1


def test_what_no_range_covers_is_zero(tmp_path: Path) -> None:
    path, origin = tmp_path / "one", tmp_path / "other"
    origin.write_bytes(b"abc")
    covered: list[Range] = [Copied(2, 5, origin, 0)]
    path.write_bytes(b"\0\0abc\0\0")
    assert first_difference(path, covered) is None
    for place in (0, 6):
        wrong = bytearray(b"\0\0abc\0\0")
        wrong[place] = 1
        path.write_bytes(wrong)
        assert first_difference(path, covered) == place


def test_every_byte_is_counted(tmp_path: Path) -> None:
    one, other, data = files(tmp_path)
    counted: list[int] = []
    first_difference(one, ranges("mixed", other, data), counted.append)
    assert sum(counted) == SIZE
