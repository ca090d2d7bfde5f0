"""The numbers of a journal at their limits: which sizes and shifts a change can have had."""

from __future__ import annotations

import hashlib
import os
import struct
from collections.abc import Iterator
from pathlib import Path

import pytest

from ropeconv.errors import BadSource
from ropeconv.formats.gguf.journal import Entry, read_journal

PAGE = 65536
NOW = 200_000
"""Bytes of the file as it is, after some of a change."""
KEPT = ((0, 100), (NOW - 50, 50))


@pytest.fixture
def file(tmp_path: Path) -> Iterator[int]:
    """A file of which a journal keeps the first hundred bytes and fifty more."""
    (tmp_path / "model.gguf").write_bytes(bytes(NOW))
    with (tmp_path / "model.gguf").open("r+b") as opened:
        yield opened.fileno()


def read(
    file: int, folder: Path, size: int, shift: int, entries: tuple[tuple[int, int], ...] = KEPT
) -> tuple[int, int, list[Entry]]:
    """What a journal with these numbers says. size, shift: of the file before the change. entries: (place, length)."""
    body = struct.pack("<QQqQ", os.fstat(file).st_ino, size, shift, len(entries))
    body += b"".join(struct.pack("<QQ", place, length) + b"x" * length for place, length in entries)
    path = folder / "journal"
    path.write_bytes(b"ropeconv journal 2\n" + hashlib.sha256(body).digest() + body)
    with path.open("rb") as kept:
        return read_journal(folder / "model.gguf", file, kept.fileno())


def test_sizes_shifts_and_places_are_told(file: int, tmp_path: Path) -> None:
    """The bytes of an entry follow its two numbers: after 19 + 32 + 32 + 16, and 100 + 16 later."""
    assert read(file, tmp_path, NOW, PAGE) == (NOW, PAGE, [(0, 100, 99), (NOW - 50, 50, 215)])
    assert read(file, tmp_path, NOW, 0, ()) == (NOW, 0, [])


@pytest.mark.parametrize("shift", [0, PAGE, -PAGE, -2 * PAGE])
def test_a_file_was_no_longer_than_what_is_there_what_was_cut_off_and_what_was_taken_away(
    file: int, tmp_path: Path, shift: int
) -> None:
    longest = NOW + 150 + max(0, -shift)
    assert read(file, tmp_path, longest, shift)[0] == longest
    with pytest.raises(BadSource, match=r"journal is damaged"):
        read(file, tmp_path, longest + 1, shift)


def test_data_moves_by_pages_and_by_a_gibibyte_at_most(file: int, tmp_path: Path) -> None:
    for shift in (1 << 30, -PAGE):
        assert read(file, tmp_path, NOW, shift)[1] == shift
    for shift in ((1 << 30) + PAGE, PAGE + 1, PAGE - 1, 1, -1, PAGE // 2):
        with pytest.raises(BadSource, match=r"journal is damaged"):
            read(file, tmp_path, NOW, shift)


def test_something_is_left_of_a_file_whose_front_is_taken_away(file: int, tmp_path: Path) -> None:
    assert read(file, tmp_path, PAGE + 1, -PAGE, ((0, 100),))[0] == PAGE + 1
    for size, shift in ((PAGE, -PAGE), (PAGE - 1, -PAGE), (0, 0), (0, PAGE)):
        with pytest.raises(BadSource, match=r"journal is damaged"):
            read(file, tmp_path, size, shift, ())


def test_an_entry_ends_where_the_file_ended_at_most(file: int, tmp_path: Path) -> None:
    assert read(file, tmp_path, NOW, 0, ((NOW - 50, 50),))[2] == [(NOW - 50, 50, 99)]
    assert read(file, tmp_path, NOW, 0, ((NOW, 0),))[2] == [(NOW, 0, 99)]
    for entry in ((NOW - 49, 50), (NOW + 1, 0)):
        with pytest.raises(BadSource, match=r"journal is damaged"):
            read(file, tmp_path, NOW, 0, (entry,))
