"""Bytes of a file against ranges of others: equal ones pass, and a single other one is found wherever it is."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from ropeconv.bake.findings import BLOCK, CopiedRange, GeneratedRange, Range, StreamedRange, first_difference

SIZE = 2 * BLOCK + 1000
HOLE = BLOCK + 37
DATA = np.random.default_rng(0).integers(0, 256, SIZE, np.uint8).tobytes()


def files(tmp_path: Path, data: bytes = DATA) -> tuple[Path, Path]:
    """A file with bytes, and another with DATA 5 places later."""
    (tmp_path / "one").write_bytes(data)
    (tmp_path / "other").write_bytes(b"12345" + DATA)
    return tmp_path / "one", tmp_path / "other"


def ranges(kind: str, other: Path) -> list[Range]:
    return {
        "copied": [CopiedRange(0, SIZE, other, 5)],
        "made": [GeneratedRange(0, SIZE, lambda at, size: DATA[at : at + size])],
        "streamed": [StreamedRange(0, SIZE, lambda: iter((DATA[:7], memoryview(DATA)[7:])))],
        "mixed": [
            CopiedRange(0, HOLE, other, 5),
            GeneratedRange(HOLE, SIZE, lambda at, size: DATA[HOLE + at : HOLE + at + size], 8),
        ],
    }[kind]


@pytest.mark.parametrize("kind", ["copied", "made", "streamed", "mixed"])
def test_a_single_other_byte_is_found(kind: str, tmp_path: Path) -> None:
    one, other = files(tmp_path)
    counted: list[int] = []
    assert first_difference(one, ranges(kind, other), counted.append) is None
    assert sum(counted) == SIZE
    with one.open("r+b") as file:
        for place in (0, HOLE - 1, HOLE, BLOCK - 1, BLOCK, 2 * BLOCK, SIZE - 1):
            for byte in (DATA[place] ^ 4, DATA[place]):
                file.seek(place)
                file.write(bytes([byte]))
                file.flush()
                expected = None if byte == DATA[place] else place
                assert first_difference(one, ranges(kind, other)) == expected


@pytest.mark.parametrize("kind", ["copied", "made", "streamed"])
def test_other_lengths_are_found(kind: str, tmp_path: Path) -> None:
    for data, place in ((DATA[:-3], SIZE - 3), (DATA + b"\1", SIZE)):
        one, other = files(tmp_path, data)
        assert first_difference(one, ranges(kind, other)) == place


def test_what_no_range_covers_is_zero(tmp_path: Path) -> None:
    path, origin = tmp_path / "one", tmp_path / "other"
    origin.write_bytes(b"abc")
    for place in (None, 0, 6):
        data = bytearray(b"\0\0abc\0\0")
        if place is not None:
            data[place] = 1
        path.write_bytes(data)
        assert first_difference(path, [CopiedRange(2, 5, origin, 0)]) == place
