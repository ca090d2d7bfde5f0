"""Journals of changes in place: what they keep, and what is refused before a byte of a file is written."""

from __future__ import annotations

import hashlib
import random
import struct
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from ropeconv.errors import BadSource
from ropeconv.formats.gguf import GgufFile
from ropeconv.formats.gguf.inplace import journal_of, phases, recover

from ..conftest import EDIT, stopped

MAGIC = b"ropeconv journal 2\n"
PAGE = 65536
Entries = list[tuple[int, bytes]]


def parts(journal: bytes) -> tuple[list[int], Entries]:
    """Inode, size, shift and count, and the entries."""
    body = journal[len(MAGIC) + 32 :]
    fixed, at, entries = list(struct.unpack_from("<QQqQ", body)), 32, []
    while at < len(body):
        place, length = struct.unpack_from("<QQ", body, at)
        entries.append((place, body[at + 16 : at + 16 + length]))
        at += 16 + length
    return fixed, entries


def journal(fixed: list[int], entries: Entries, tail: bytes = b"") -> bytes:
    """A journal with a digest that is right."""
    body = struct.pack("<QQqQ", *fixed) + b"".join(struct.pack("<QQ", p, len(b)) + b for p, b in entries) + tail
    return MAGIC + hashlib.sha256(body).digest() + body


def test_what_a_journal_keeps(model: Path) -> None:
    """The header, each tensor that changes, and what is behind the last tensor where one is added."""
    before, header = model.read_bytes(), GgufFile.open(model).header
    stopped(model, EDIT, "journal")
    fixed, entries = parts(journal_of(model).read_bytes())
    assert fixed == [model.stat().st_ino, len(before), 0, 3]
    info = header.tensors["blk.0.attn_norm.weight"]
    assert [place for place, _ in entries][:2] == [0, header.data_start + info.offset]
    assert all(before[place : place + len(kept)] == kept for place, kept in entries)
    assert journal_of(model).stat().st_mode & 0o077 == 0


Forge = Callable[[list[int], Entries], bytes]


def forged(number: int, value: int) -> Forge:
    return lambda fixed, entries: journal([*fixed[:number], value, *fixed[number + 1 :]], entries)


def kept(entries: Entries) -> int:
    return sum(len(data) for _, data in entries)


HOSTILE: dict[str, Forge] = {
    "nothing": lambda fixed, entries: b"",
    "a wrong digest": lambda fixed, entries: journal(fixed, entries)[:-1] + b"\1",
    "an earlier version": lambda fixed, entries: journal(fixed, entries).replace(b"journal 2", b"journal 1"),
    "too many entries": forged(3, 1 << 62),
    "too few entries": forged(3, 1),
    "no entries and a size": lambda fixed, entries: journal([fixed[0], 1 << 40, 0, 0], []),
    "a size of all the disk": forged(1, 1 << 62),
    "an empty file": lambda fixed, entries: journal([fixed[0], 0, 0, 0], []),
    "a file whose front is all of it": lambda fixed, entries: journal([fixed[0], PAGE, -PAGE, 0], []),
    **{f"a shift of {shift}": forged(2, shift) for shift in (1 << 50, -(1 << 28), (1 << 30) + PAGE, PAGE + 1, -1)},
    "a place behind the end": lambda fixed, entries: journal(fixed, [(fixed[1] - 1, b"ab"), *entries[1:]]),
    "a length of everything": lambda fixed, entries: journal(
        fixed, entries[:-1], struct.pack("<QQ", 0, (1 << 64) - 16) + b"x"
    ),
    "half of an entry": lambda fixed, entries: journal(fixed, entries[:-1], b"1234567"),
    "more behind the last entry": lambda fixed, entries: journal(fixed, entries, b"x" * 16),
    "another file's": forged(0, 1),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_a_journal_that_no_change_has_written_is_refused(model: Path, name: str) -> None:
    stopped(model, EDIT, "added")
    now, true = model.read_bytes(), journal_of(model).read_bytes()
    journal_of(model).write_bytes(HOSTILE[name](*parts(true)))
    begin = time.monotonic()
    with pytest.raises(BadSource, match="of another file than" if name == "another file's" else "is damaged"):
        recover(model)
    assert time.monotonic() - begin < 5
    assert model.read_bytes() == now
    journal_of(model).write_bytes(true)
    assert recover(model)


def test_the_largest_sizes_that_a_change_can_have_had_are_restored(model: Path) -> None:
    """A file was no longer than what is there and what was cut off; an empty entry may stand at its very end."""
    stopped(model, EDIT, "added")
    now, (fixed, entries) = model.read_bytes(), parts(journal_of(model).read_bytes())
    most = len(now) + kept(entries)
    for size in (most + 1, most):
        journal_of(model).write_bytes(journal([fixed[0], size, 0, 4], [*entries, (size, b"")]))
        if size > most:
            with pytest.raises(BadSource, match="is damaged"):
                recover(model)
    assert recover(model)
    assert model.stat().st_size == most


def test_a_journal_of_terabytes_is_not_read(model: Path) -> None:
    with journal_of(model).open("wb") as file:
        file.truncate(1 << 40)
    begin = time.monotonic()
    with pytest.raises(BadSource, match="is damaged"):
        recover(model)
    assert time.monotonic() - begin < 5


def test_any_change_of_a_journal_is_refused_or_stays_within_the_file(model: Path) -> None:
    """Numbers at random, under a digest that is right."""
    stopped(model, EDIT, "added")
    fixed, entries = parts(journal_of(model).read_bytes())
    now, generator, refused = model.read_bytes(), random.Random(0), 0
    for _ in range(60):
        numbers = list(fixed)
        numbers[generator.randrange(1, 4)] = generator.choice([0, 1, 7, PAGE, 1 << 31, 1 << 40, len(now) + 1])
        places = [(generator.choice([p, 0, len(now), 1 << 63, p + 9]), data) for p, data in entries]
        model.write_bytes(now)
        journal_of(model).write_bytes(journal(numbers, places))
        try:
            recover(model)
        except BadSource:
            refused += 1
        assert model.stat().st_size <= len(now) + (1 << 20)
    assert refused > 30


@pytest.mark.parametrize("suffix", ["", ".part"])
def test_neither_a_journal_nor_its_draft_may_be_a_link(model: Path, suffix: str) -> None:
    link = journal_of(model).with_name(journal_of(model).name + suffix)
    model.with_name("elsewhere").write_bytes(b"mine")
    link.symlink_to("elsewhere")
    now = model.read_bytes()
    with pytest.raises(BadSource, match=f"journal{suffix} is a link, so it is not of ropeconv; remove it"):
        recover(model)
    assert link.is_symlink()
    assert (model.read_bytes(), model.with_name("elsewhere").read_bytes()) == (now, b"mine")


def test_a_draft_that_a_kill_left_is_removed(model: Path) -> None:
    draft = model.with_name(".model.gguf.ropeconv-journal.part")
    draft.write_bytes(b"half")
    assert recover(model) is False
    assert list(model.parent.iterdir()) == [model]
    draft.write_bytes(b"half")
    assert list(phases(GgufFile.open(model), EDIT))[-1] == "done"
    assert list(model.parent.iterdir()) == [model]


def test_a_journal_that_cannot_be_made_leaves_the_file_alone(model: Path) -> None:
    before = model.read_bytes()
    model.with_name(".model.gguf.ropeconv-journal.part").mkdir()
    with pytest.raises(IsADirectoryError):
        list(phases(GgufFile.open(model), EDIT))
    assert model.read_bytes() == before
