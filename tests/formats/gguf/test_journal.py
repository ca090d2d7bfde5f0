"""Journals: checked before a byte is written, and used at once where a change fails."""

from __future__ import annotations

import errno
import hashlib
import os
import random
import struct
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from ropeconv.errors import BadSource, Interrupted, RopeconvError
from ropeconv.formats.gguf import Added, Change, Edit, GgufFile, u32
from ropeconv.formats.gguf.inplace import journal_of, phases, recover
from ropeconv.formats.gguf.write import write_new

from ...support.gguf_files import write

MAGIC = b"ropeconv journal 2\n"
EDIT = Edit(
    {"llama.context_length": u32(4096)},
    changes={"blk.0.attn_norm.weight": Change(512, lambda old: old[::-1])},
    added=(Added.f32("rope_freqs.weight", bytes(128)),),
)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A file with a reserve, which any filesystem changes in place."""
    write_new(GgufFile.open(write(tmp_path / "plain.gguf")), 0, Edit(), tmp_path / "model.gguf")
    (tmp_path / "plain.gguf").unlink()
    return tmp_path / "model.gguf"


def killed(path: Path, step: str) -> None:
    """Leaves a change as a kill after that step does."""
    walk = phases(GgufFile.open(path), EDIT)
    while next(walk) != step:
        pass
    walk.close()  # type: ignore[attr-defined]


def parts(journal: bytes) -> tuple[list[int], list[tuple[int, bytes]]]:
    """Inode, size, shift and count, and the entries."""
    body = journal[len(MAGIC) + 32 :]
    fixed, at, entries = list(struct.unpack_from("<QQqQ", body)), 32, []
    while at < len(body):
        place, length = struct.unpack_from("<QQ", body, at)
        entries.append((place, body[at + 16 : at + 16 + length]))
        at += 16 + length
    return fixed, entries


def journal(fixed: list[int], entries: list[tuple[int, bytes]], tail: bytes = b"") -> bytes:
    """A journal with a digest that is right."""
    body = struct.pack("<QQqQ", *fixed) + b"".join(struct.pack("<QQ", p, len(b)) + b for p, b in entries) + tail
    return MAGIC + hashlib.sha256(body).digest() + body


def test_what_a_journal_keeps(path: Path) -> None:
    """The header, each tensor that changes, and what is behind the last tensor where one is added."""
    before, header = path.read_bytes(), GgufFile.open(path).header
    killed(path, "journal")
    (inode, size, shift, count), entries = parts(journal_of(path).read_bytes())
    assert (inode, size, shift, count) == (path.stat().st_ino, len(before), 0, 3)
    info = header.tensors["blk.0.attn_norm.weight"]
    assert [place for place, _ in entries][:2] == [0, header.data_start + info.offset]
    assert all(before[place : place + len(kept)] == kept for place, kept in entries)
    assert journal_of(path).stat().st_mode & 0o077 == 0


Forge = Callable[[list[int], list[tuple[int, bytes]]], bytes]


def forged(number: int, value: int) -> Forge:
    def forge(fixed: list[int], entries: list[tuple[int, bytes]]) -> bytes:
        fixed[number] = value
        return journal(fixed, entries)

    return forge


HOSTILE: dict[str, Forge] = {
    "nothing": lambda fixed, entries: b"",
    "a wrong digest": lambda fixed, entries: journal(fixed, entries)[:-1] + b"\1",
    "an earlier version": lambda fixed, entries: journal(fixed, entries).replace(b"journal 2", b"journal 1"),
    "too many entries": forged(3, 1 << 62),
    "too few entries": forged(3, 1),
    "no entries and a size": lambda fixed, entries: journal([fixed[0], 1 << 40, 0, 0], []),
    "a size of all the disk": forged(1, 1 << 62),
    "a shift of all the disk": forged(2, 1 << 50),
    "a shift below the beginning": forged(2, -(1 << 28)),
    "a place behind the end": lambda fixed, entries: journal(fixed, [(fixed[1] - 1, b"ab"), *entries[1:]]),
    "a length of everything": lambda fixed, entries: journal(
        fixed, entries[:-1], struct.pack("<QQ", 0, (1 << 64) - 16) + b"x"
    ),
    "half of an entry": lambda fixed, entries: journal(fixed, entries[:-1], b"1234567"),
    "more behind the last entry": lambda fixed, entries: journal(fixed, entries, b"x" * 16),
    "another file's": forged(0, 1),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_a_journal_that_no_change_has_written_is_refused(path: Path, name: str) -> None:
    killed(path, "added")
    now, true = path.read_bytes(), journal_of(path).read_bytes()
    journal_of(path).write_bytes(HOSTILE[name](*parts(true)))
    begin = time.monotonic()
    with pytest.raises(BadSource, match="of another file than" if name == "another file's" else "is damaged"):
        recover(path)
    assert time.monotonic() - begin < 5
    assert path.read_bytes() == now
    journal_of(path).write_bytes(true)
    assert recover(path)


def test_a_journal_of_terabytes_is_not_read(path: Path) -> None:
    with journal_of(path).open("wb") as file:
        file.truncate(1 << 40)
    begin = time.monotonic()
    with pytest.raises(BadSource, match="is damaged"):
        recover(path)
    assert time.monotonic() - begin < 5


def test_any_change_of_a_journal_is_refused_or_stays_within_the_file(path: Path) -> None:
    """Numbers at random, under a digest that is right."""
    killed(path, "added")
    fixed, entries = parts(journal_of(path).read_bytes())
    now, generator = path.read_bytes(), random.Random(0)
    refused = 0
    for _ in range(200):
        numbers = list(fixed)
        numbers[generator.randrange(1, 4)] = generator.choice([0, 1, 7, 65536, 1 << 31, 1 << 40, len(now) + 1])
        places = [(generator.choice([p, 0, len(now), 1 << 63, p + 9]), kept) for p, kept in entries]
        path.write_bytes(now)
        journal_of(path).write_bytes(journal(numbers, places))
        try:
            recover(path)
        except BadSource:
            refused += 1
        assert path.stat().st_size <= len(now) + (1 << 20)
    assert refused > 100


def test_the_journal_may_be_no_link(path: Path) -> None:
    killed(path, "added")
    now = path.read_bytes()
    journal_of(path).rename(path.with_name("elsewhere"))
    journal_of(path).symlink_to("elsewhere")
    with pytest.raises(BadSource, match="is a link"):
        recover(path)
    assert path.read_bytes() == now


def test_a_draft_that_is_a_link_is_not_touched(path: Path) -> None:
    draft = path.with_name(".model.gguf.ropeconv-journal.part")
    path.with_name("elsewhere").write_bytes(b"mine")
    draft.symlink_to("elsewhere")
    with pytest.raises(BadSource, match="journal.part is a link, so it is not of ropeconv; remove it"):
        recover(path)
    assert draft.is_symlink()
    assert path.with_name("elsewhere").read_bytes() == b"mine"


def test_a_draft_that_a_kill_left_is_removed(path: Path) -> None:
    draft = path.with_name(".model.gguf.ropeconv-journal.part")
    draft.write_bytes(b"half")
    assert recover(path) is False
    assert list(path.parent.iterdir()) == [path]
    draft.write_bytes(b"half")
    assert list(phases(GgufFile.open(path), EDIT))[-1] == "done"
    assert list(path.parent.iterdir()) == [path]


class FailingDisk:
    """os.fsync that fails for some of its calls."""

    def __init__(self, failing: range, number: int = errno.ENOSPC) -> None:
        self.calls, self.failing, self.number, self.real = 0, failing, number, os.fsync

    def __call__(self, file: int) -> None:
        self.calls += 1
        if self.calls in self.failing:
            raise OSError(self.number, os.strerror(self.number))
        self.real(file)


JOURNAL, FOLDER, FILE, REMOVED = 1, 2, 3, 4
"""The calls of fsync during a change, in their order."""


@pytest.mark.parametrize("call", [JOURNAL, FOLDER, FILE])
def test_a_change_that_fails_is_undone_at_once(path: Path, monkeypatch: pytest.MonkeyPatch, call: int) -> None:
    before = path.read_bytes()
    monkeypatch.setattr(os, "fsync", FailingDisk(range(call, call + 1)))
    with pytest.raises(RopeconvError, match=r"\(the disk is full\) and is as it was; write a new file with -o"):
        list(phases(GgufFile.open(path), EDIT))
    assert path.read_bytes() == before
    assert list(path.parent.iterdir()) == [path]


def test_the_reason_is_what_the_system_or_the_model_says(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def cut_off() -> Iterator[bytes]:
        raise BadSource("the tensor was cut off")

    before = path.read_bytes()
    odd = Edit(EDIT.values, added=(Added("rope_freqs.weight", (32,), 0, cut_off),))
    with pytest.raises(RopeconvError, match=r"changed in place \(the tensor was cut off\) and is as it was"):
        list(phases(GgufFile.open(path), odd))
    monkeypatch.setattr(os, "fsync", FailingDisk(range(FILE, FILE + 1), errno.EIO))
    with pytest.raises(RopeconvError, match=r"changed in place \(Input/output error\) and is as it was"):
        list(phases(GgufFile.open(path), EDIT))
    assert path.read_bytes() == before


def test_a_change_that_cannot_be_undone_is_said_to_be_so(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = path.read_bytes()
    monkeypatch.setattr(os, "fsync", FailingDisk(range(FILE, 99), errno.EIO))
    with pytest.raises(RopeconvError, match="nor put back .*; do not use it before the same command has run again"):
        list(phases(GgufFile.open(path), EDIT))
    monkeypatch.undo()
    assert recover(path)
    assert path.read_bytes() == before


def test_what_is_done_is_said_to_be_done_where_the_disk_fails_behind_it(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before, disk = path.read_bytes(), FailingDisk(range(REMOVED, REMOVED + 1), errno.EIO)
    monkeypatch.setattr(os, "fsync", disk)
    with pytest.raises(RopeconvError, match="is changed in place, but a loss of power may bring it back"):
        list(phases(GgufFile.open(path), EDIT))
    assert disk.calls == REMOVED
    assert path.read_bytes() != before
    assert list(path.parent.iterdir()) == [path]


def test_a_journal_that_cannot_be_made_leaves_the_file_alone(path: Path) -> None:
    before = path.read_bytes()
    path.with_name(".model.gguf.ropeconv-journal.part").mkdir()
    with pytest.raises(IsADirectoryError):
        list(phases(GgufFile.open(path), EDIT))
    assert path.read_bytes() == before


def test_ctrl_c_undoes_it_at_once(path: Path) -> None:
    def stopped() -> Iterator[bytes]:
        raise KeyboardInterrupt

    before = path.read_bytes()
    edit = Edit(EDIT.values, added=(Added("rope_freqs.weight", (32,), 0, stopped),))
    with pytest.raises(Interrupted, match="is as it was"):
        list(phases(GgufFile.open(path), edit))
    assert path.read_bytes() == before
    assert list(path.parent.iterdir()) == [path]
