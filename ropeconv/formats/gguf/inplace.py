"""Changes a GGUF file in place, so that a kill at any moment can be undone.

The new header overwrites the old one where it fits, which the reserve in headers written by ropeconv provides for.
Else room is made at the front by FALLOC_FL_INSERT_RANGE, which moves no data (ext4, XFS; fallocate(2)); an edit that
brings an earlier file back takes that room away again by FALLOC_FL_COLLAPSE_RANGE.

Before anything changes, all bytes that will be overwritten are written to a journal beside the file, which is removed
when the new bytes are on the disk. `recover` restores a file from its journal.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from tempfile import SpooledTemporaryFile
from typing import BinaryIO

from ...errors import RopeconvError
from .edit import PAGE, Added, Edit, Rewritten, rewrite
from .file import GgufFile
from .header import Header
from .journal import journal_of, move_data, recover, sync_folder, write_journal
from .write import changed

__all__ = ["journal_of", "phases", "recover"]

MAX_KEPT = 1 << 30
SPOOLED = 1 << 24


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
    if any(old != new for old, new, _ in made.moves(header)):
        raise RopeconvError(
            f"a tensor that goes is before others in {path.name}, which would have to move; write a new file with -o"
        )
    head, shift = _placed(made, header, edit)
    with path.open("r+b") as file:
        if shift and (shift % PAGE or not _can_insert(path)):
            raise RopeconvError(
                f"the new header of {path.name} needs {shift} bytes more than there are, and this filesystem cannot "
                "insert them; write a new file with -o"
                if shift > 0
                else f"the header of {path.name} has {-shift} bytes too many, which cannot be taken away on this "
                "filesystem; write a new file with -o"
            )
        kept = _kept(file, header, edit, made)
        if sum(len(old) for _, old in kept) > MAX_KEPT:
            raise RopeconvError(f"too much of {path.name} changes for doing it in place; write a new file with -o")
        write_journal(path, header.size, shift, kept)
        yield "journal"
        added = [(item.name, _apart(item, path) if shift else item.chunks) for item in edit.added]
        if shift:
            move_data(file, shift)
            yield "room"
        file.seek(0)
        file.write(head)
        file.flush()
        yield "header"
        for _, at, block in _writes(file, header, edit, shift):
            file.seek(at)
            file.write(block)
        file.flush()
        yield "tensors"
        for name, chunks in added:
            file.seek(header.data_start + shift + made.tensors[name].offset)
            for block in chunks():
                file.write(block)
        if edit.removed or edit.layout:
            file.truncate(len(head) + made.data_size + (edit.layout.tail if edit.layout else 0))
        file.flush()
        yield "added"
        os.fsync(file.fileno())
        yield "durable"
    journal_of(path).unlink()
    sync_folder(path)
    yield "done"


def _apart(item: Added, path: Path) -> Callable[[], Iterator[bytes]]:
    """The contents of a new tensor, read before the data moves: it may be a copy of a tensor of the same file."""
    apart = SpooledTemporaryFile(SPOOLED, dir=str(path.parent))  # noqa: SIM115  closed when it is no longer used
    for block in item.chunks():
        apart.write(block)

    def chunks() -> Iterator[bytes]:
        apart.seek(0)
        while block := apart.read(SPOOLED):
            yield block

    return chunks


def _placed(made: Rewritten, header: Header, edit: Edit) -> tuple[bytes, int]:
    """The new header, and by how many bytes the data moves for it."""
    if edit.layout is not None:
        return made.exact(edit.layout), edit.layout.data_start - header.data_start
    head = made.layout(header.data_start)
    if head is not None:
        return head, 0
    shift = len(made.place(header.data_start)) - header.data_start
    moved = made.layout(header.data_start + shift)
    assert moved is not None
    return moved, shift


def _kept(file: BinaryIO, header: Header, edit: Edit, made: Rewritten) -> list[tuple[int, bytes]]:
    """Places in the file that the edit overwrites or cuts off, with the bytes there."""
    kept = [(0, _old(file, 0, header.data_start))]
    kept += [(at, _old(file, at, len(block))) for _, at, block in _writes(file, header, edit)]
    if edit.added or edit.removed or edit.layout:
        end = header.data_start + made.kept
        kept.append((end, _old(file, end, min(header.size - end, MAX_KEPT + 1))))
    return kept


def _writes(file: BinaryIO, header: Header, edit: Edit, shift: int = 0) -> Iterator[tuple[str, int, bytes]]:
    kept = {name: change for name, change in edit.changes.items() if name not in edit.removed}
    return changed(file, header, header.data_start + shift, kept)


def _old(file: BinaryIO, at: int, length: int) -> bytes:
    file.seek(at)
    return file.read(length)


def _can_insert(path: Path) -> bool:
    """Whether the filesystem inserts ranges, tried on a small file beside `path` that is removed again."""
    probe = path.with_name(f".{path.name}.ropeconv-probe")
    try:
        with probe.open("w+b") as file:
            file.write(bytes(2 * PAGE))
            move_data(file, PAGE)
            return os.fstat(file.fileno()).st_size == 3 * PAGE
    except (OSError, AttributeError):
        return False
    finally:
        probe.unlink(missing_ok=True)
