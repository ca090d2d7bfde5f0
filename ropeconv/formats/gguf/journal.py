"""The journal of a change in place: the bytes that will be overwritten, until the new ones are on the disk.

`recover` brings a file back from its journal. Room at the front is inserted and taken away by fallocate(2) on ext4 and
XFS, which moves no data.
"""

from __future__ import annotations

import ctypes
import hashlib
import os
import struct
from pathlib import Path
from typing import BinaryIO

from ...errors import BadSource

COLLAPSE_RANGE, INSERT_RANGE = 0x08, 0x20  # linux/falloc.h
MAGIC = b"ropeconv journal 1\n"


def journal_of(path: Path) -> Path:
    """The path of the journal of a file, which exists while the file is being changed."""
    return path.with_name(f".{path.name}.ropeconv-journal")


def write_journal(path: Path, size: int, shift: int, kept: list[tuple[int, bytes]]) -> None:
    """Writes the journal of a file that is about to be changed.

    path: the file. size: of it, in bytes. shift: bytes that will be inserted at its front, negative where they are
    taken away. kept: places in the file, and the bytes there.
    """
    body = b"".join(
        [struct.pack("<QqQ", size, shift, len(kept)), *(struct.pack("<QQ", at, len(old)) + old for at, old in kept)]
    )
    journal = journal_of(path)
    draft = journal.with_name(journal.name + ".part")
    with draft.open("wb") as file:
        file.write(MAGIC + hashlib.sha256(body).digest() + body)
        file.flush()
        os.fsync(file.fileno())
    draft.replace(journal)
    sync_folder(path)


def recover(path: Path) -> bool:
    """Undoes an interrupted change of a file. Returns False where there was none.

    Raises BadSource for a damaged journal.
    """
    journal = journal_of(path)
    if not journal.is_file():
        return False
    size, shift, kept = _read_journal(journal)
    with path.open("r+b") as file:
        now = path.stat().st_size
        if shift > 0 and now >= size + shift:
            file.truncate(size + shift)
            move_data(file, -shift)
        if shift < 0 and now <= size + shift:
            file.truncate(size + shift)
            move_data(file, -shift)
        file.truncate(size)
        for at, old in kept:
            file.seek(at)
            file.write(old)
        file.flush()
        os.fsync(file.fileno())
    journal.unlink()
    sync_folder(path)
    return True


def move_data(file: BinaryIO, shift: int) -> None:
    """Inserts `shift` bytes at the front of a file, or takes -shift bytes away there. Raises OSError.

    file: open for reading and writing. shift: a multiple of the filesystem's block size.
    """
    file.flush()
    libc = ctypes.CDLL(None, use_errno=True)
    call = libc.fallocate
    call.argtypes = [ctypes.c_int, ctypes.c_int, ctypes.c_int64, ctypes.c_int64]
    if call(file.fileno(), INSERT_RANGE if shift > 0 else COLLAPSE_RANGE, 0, abs(shift)) != 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))


def sync_folder(path: Path) -> None:
    """Makes the names in the folder of a file durable."""
    folder = os.open(path.resolve().parent, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


def _read_journal(journal: Path) -> tuple[int, int, list[tuple[int, bytes]]]:
    data = journal.read_bytes()
    head, body = data[: len(MAGIC) + 32], data[len(MAGIC) + 32 :]
    if head != MAGIC + hashlib.sha256(body).digest():
        raise BadSource(f"{journal} is damaged, or not of ropeconv; fetch the model again and remove it")
    size, shift, count = struct.unpack_from("<QqQ", body)
    kept, at = [], 24
    for _ in range(count):
        place, length = struct.unpack_from("<QQ", body, at)
        kept.append((place, body[at + 16 : at + 16 + length]))
        at += 16 + length
    return size, shift, kept
