"""Writes an edited GGUF file: a new header, the data copied by the kernel, some ranges replaced."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import BinaryIO

from ..copying import Advance, copy_file, copy_part, pieces_of
from .edit import Change, Edit, Rewritten, rewrite
from .file import GgufFile
from .header import Header


def new_size(header: Header, edit: Edit) -> int:
    """Size in bytes of the file that `write_new` writes for a shard. header: of the shard, before the edit."""
    made = rewrite(header, edit)
    return len(_head(made, header, edit)) + made.data_size + (edit.layout.tail if edit.layout else 0)


def write_new(source: GgufFile, shard: int, edit: Edit, target: Path, advance: Advance = lambda done: None) -> None:
    """Writes one edited shard of a model to a new file; memory use does not depend on its size.

    source: the model. shard: which, from 0; keys and new tensors go into the first. edit: what to change. target: the
    new file. advance: called with the bytes written since the last call. Raises OSError, and BadSource where the model
    changed meanwhile.
    """
    _write(source, shard, edit, target, advance)
    source.refuse_changed()


def _write(source: GgufFile, shard: int, edit: Edit, target: Path, advance: Advance) -> None:
    header, path = source.headers[shard], source.shards[shard].path()
    changes = {name: change for name, change in edit.changes.items() if name in header.tensors}
    if shard > 0:
        copy_file(path, target, advance)
        with target.open("r+b") as file:
            write_changes(file, header, header.data_start, changes)
        return
    changes = {name: change for name, change in changes.items() if name not in edit.removed}
    made = rewrite(header, edit)
    head = _head(made, header, edit)
    with path.open("rb") as reader, target.open("wb") as writer:
        writer.write(head)
        advance(len(head))
        for old, new, size in made.moves(header):
            copy_part(reader, header.data_start + old, writer, len(head) + new, size, advance)
        write_changes(writer, replace(header, tensors=made.tensors), len(head), changes)
        for item in edit.added:
            writer.seek(len(head) + made.tensors[item.name].offset)
            writer.write(item.data)
            advance(len(item.data))
        if edit.layout is not None:
            writer.truncate(len(head) + made.data_size + edit.layout.tail)


def _head(made: Rewritten, header: Header, edit: Edit) -> bytes:
    return made.place(header.data_start) if edit.layout is None else made.exact(edit.layout)


def write_changes(file: BinaryIO, header: Header, start: int, changes: dict[str, Change]) -> None:
    """Writes the new contents of tensors into a file that has the old ones.

    file: open for writing. header: of the original file. start: where the data of `file` begins, in bytes. changes: the
    new contents, by tensor.
    """
    with open(file.name, "rb") as reader:
        for at, block in changed(reader.fileno(), header, start, changes):
            file.seek(at)
            file.write(block)


def changed(reader: int, header: Header, start: int, changes: dict[str, Change]) -> Iterator[tuple[int, bytes]]:
    """Yields (place in the file in bytes, new bytes) for every piece of every changed tensor.

    reader: descriptor of a file with the old contents. header: of the original file. start: where the data of the file
    begins, in bytes. changes: the new contents, by tensor. Raises BadSource where the file was cut off.
    """
    for name, change in changes.items():
        info = header.tensors[name]
        for at in range(0, info.size, change.unit):
            place, size = start + info.offset + at, min(change.unit, info.size - at)
            old = b"".join(block for _, block in pieces_of(reader, place, size))
            yield place, change.apply(old)
