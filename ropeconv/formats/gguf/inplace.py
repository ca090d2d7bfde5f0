"""Changes a GGUF file in place, so that a kill at any moment can be undone.

The new header overwrites the old one where it fits, which the reserve in headers written by ropeconv provides for.
Else room is made at the front by FALLOC_FL_INSERT_RANGE, which moves no data (ext4, XFS; fallocate(2)).

Before anything changes, all bytes that will be overwritten are written to a journal beside the file, which is removed
when the new bytes are on the disk. `recover` restores a file from its journal.
"""

from __future__ import annotations

import ctypes
import hashlib
import os
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

from ...errors import BadSource, RopeconvError
from .edit import PAGE, Edit, Rewritten, rewrite
from .file import GgufFile
from .header import Header
from .write import changed

COLLAPSE_RANGE, INSERT_RANGE = 0x08, 0x20  # linux/falloc.h
MAGIC = b"ropeconv journal 1\n"
MAX_KEPT = 1 << 30


def journal_of(path: Path) -> Path:
    """The path of the journal of a file, which exists while the file is being changed."""
    return path.with_name(f".{path.name}.ropeconv-journal")


def phases(source: GgufFile, edit: Edit) -> Iterator[str]:
    """Changes the first shard of a model in place. Yields the name of each phase when it is done.

    source: the model. edit: what to change. Raises RopeconvError where the edit changes another shard or the filesystem
    cannot make room; nothing is changed then.
    """
    path, header = source.path, source.header
    elsewhere = [name for name in edit.changes if name not in header.tensors]
    if elsewhere:
        raise RopeconvError(
            f"{elsewhere[0]} is in another shard; in place only the first is changed; write new files with -o"
        )
    made = rewrite(header, edit)
    head = made.layout(header.data_start)
    shift = 0 if head is not None else _pages(made, header)
    with path.open("r+b") as file:
        if shift and not _can_insert(path):
            raise RopeconvError(
                f"the new header of {path.name} needs {shift} bytes more than there are, and this filesystem cannot "
                "insert them; write a new file with -o"
            )
        kept = [(at, _old(file, at, len(block))) for _, at, block in _writes(file, header, edit)]
        if sum(len(old) for _, old in kept) > MAX_KEPT:
            raise RopeconvError(f"too much of {path.name} changes for doing it in place; write a new file with -o")
        _write_journal(path, header.size, shift, [(0, _old(file, 0, header.data_start)), *kept])
        yield "journal"
        if shift:
            _fallocate(file, INSERT_RANGE, shift)
            yield "room"
            head = made.layout(header.data_start + shift)
        assert head is not None
        file.seek(0)
        file.write(head)
        file.flush()
        yield "header"
        for _, at, block in _writes(file, header, edit, shift):
            file.seek(at)
            file.write(block)
        file.flush()
        yield "tensors"
        for item in edit.added:
            file.seek(header.data_start + shift + made.tensors[item.name].offset)
            for block in item.chunks():
                file.write(block)
        file.flush()
        yield "added"
        os.fsync(file.fileno())
        yield "durable"
    journal_of(path).unlink()
    _sync_folder(path)
    yield "done"


def recover(path: Path) -> bool:
    """Undoes an interrupted change of a file. Returns False where there was none.

    Raises BadSource for a damaged journal.
    """
    journal = journal_of(path)
    if not journal.is_file():
        return False
    size, shift, kept = _read_journal(journal)
    with path.open("r+b") as file:
        if shift and path.stat().st_size >= size + shift:
            file.truncate(size + shift)
            _fallocate(file, COLLAPSE_RANGE, shift)
        file.truncate(size)
        for at, old in kept:
            file.seek(at)
            file.write(old)
        file.flush()
        os.fsync(file.fileno())
    journal.unlink()
    _sync_folder(path)
    return True


def _pages(made: Rewritten, header: Header) -> int:
    return len(made.place(header.data_start)) - header.data_start


def _writes(file: BinaryIO, header: Header, edit: Edit, shift: int = 0) -> Iterator[tuple[str, int, bytes]]:
    return changed(file, header, header.data_start + shift, dict(edit.changes))


def _old(file: BinaryIO, at: int, length: int) -> bytes:
    file.seek(at)
    return file.read(length)


def _write_journal(path: Path, size: int, shift: int, kept: list[tuple[int, bytes]]) -> None:
    body = b"".join(
        [struct.pack("<QQQ", size, shift, len(kept)), *(struct.pack("<QQ", at, len(old)) + old for at, old in kept)]
    )
    journal = journal_of(path)
    draft = journal.with_name(journal.name + ".part")
    with draft.open("wb") as file:
        file.write(MAGIC + hashlib.sha256(body).digest() + body)
        file.flush()
        os.fsync(file.fileno())
    draft.replace(journal)
    _sync_folder(path)


def _read_journal(journal: Path) -> tuple[int, int, list[tuple[int, bytes]]]:
    data = journal.read_bytes()
    head, body = data[: len(MAGIC) + 32], data[len(MAGIC) + 32 :]
    if head != MAGIC + hashlib.sha256(body).digest():
        raise BadSource(f"{journal} is damaged, or not of ropeconv; fetch the model again and remove it")
    size, shift, count = struct.unpack_from("<QQQ", body)
    kept, at = [], 24
    for _ in range(count):
        place, length = struct.unpack_from("<QQ", body, at)
        kept.append((place, body[at + 16 : at + 16 + length]))
        at += 16 + length
    return size, shift, kept


def _fallocate(file: BinaryIO, mode: int, length: int) -> None:
    file.flush()
    libc = ctypes.CDLL(None, use_errno=True)
    call = libc.fallocate
    call.argtypes = [ctypes.c_int, ctypes.c_int, ctypes.c_int64, ctypes.c_int64]
    if call(file.fileno(), mode, 0, length) != 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))


def _can_insert(path: Path) -> bool:
    """Whether the filesystem inserts ranges, tried on a small file beside `path` that is removed again."""
    probe = path.with_name(f".{path.name}.ropeconv-probe")
    try:
        with probe.open("w+b") as file:
            file.write(bytes(2 * PAGE))
            _fallocate(file, INSERT_RANGE, PAGE)
            return os.fstat(file.fileno()).st_size == 3 * PAGE
    except (OSError, AttributeError):
        return False
    finally:
        probe.unlink(missing_ok=True)


def _sync_folder(path: Path) -> None:
    folder = os.open(path.resolve().parent, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)
