"""Changes a GGUF file in place, so that a kill at any moment can be undone.

The new header overwrites the old one where it fits, which the reserve in headers written by ropeconv provides for.
Else room is made at the front by FALLOC_FL_INSERT_RANGE, which moves no data (ext4, XFS; fallocate(2)); an edit that
brings an earlier file back takes that room away again by FALLOC_FL_COLLAPSE_RANGE.

The file is locked all the time. Before anything changes, all bytes that will be overwritten are written to a journal
beside it, which is removed when the new bytes are on the disk. `recover` restores a file from its journal.
"""

from __future__ import annotations

import os
from collections.abc import Iterator

from ...rope.errors import RopeconvError
from ..disk import write_at
from .edit import Change, Edit, RewrittenHeader, changed, rewrite
from .file import GgufFile
from .header import GgufHeader, read_header
from .recovery import (
    MAX_KEPT,
    Place,
    journaled,
    locked,
    move_data,
    refuse_interrupted,
    refuse_no_room,
    refuse_same_size,
)


def phases(source: GgufFile, edit: Edit, hard_links: bool = False) -> Iterator[str]:
    """Changes the first shard of a model in place. Yields the name of each phase when it is done.

    source: the model. edit: what to change. hard_links: change a file that has other names as well. Raises
    RopeconvError where the edit changes another shard, the filesystem cannot make room or the disk fails, and where
    another process changes the file or has changed it since it was read; nothing is changed then.
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
    with locked(path, hard_links) as file:
        refuse_interrupted(path)
        source.refuse_changed()
        if read_header(path) != header:
            raise RopeconvError(f"{path} was changed since it was read; run again")
        refuse_no_room(path, shift)
        refuse_same_size(path, header.size, shift, _final_size(header, edit, made, head, shift), bool(edit.added))
        places = _places(header, edit, made)
        if sum(length for _, length in places) > MAX_KEPT:
            raise RopeconvError(f"too much of {path.name} changes for doing it in place; write a new file with -o")
        with journaled(path, file, shift, places):
            yield "journal"
            yield from _change(file, header, edit, made, head, shift)
        yield "done"


def _change(file: int, header: GgufHeader, edit: Edit, made: RewrittenHeader, head: bytes, shift: int) -> Iterator[str]:
    """The change itself, in phases. head: the bytes of the edited header. shift: by how much the data moves for it."""
    if shift:
        move_data(file, shift)
        yield "room"
    write_at(file, head, 0)
    yield "header"
    for at, block in changed(file, header, header.data_start + shift, _kept_changes(edit)):
        write_at(file, block, at)
    yield "tensors"
    for item in edit.added:
        at = header.data_start + shift + made.tensors[item.name].offset
        write_at(file, item.data, at)
    if edit.removed or edit.layout:
        os.ftruncate(file, _final_size(header, edit, made, head, shift))
    yield "added"
    os.fsync(file)
    yield "durable"


def _final_size(header: GgufHeader, edit: Edit, made: RewrittenHeader, head: bytes, shift: int) -> int:
    """The size of the file after the change, in bytes."""
    if edit.removed or edit.layout:
        return len(head) + made.data_size + (edit.layout.tail if edit.layout else 0)
    return max(header.size + shift, len(head) + made.data_size)


def _placed(made: RewrittenHeader, header: GgufHeader, edit: Edit) -> tuple[bytes, int]:
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


def _places(header: GgufHeader, edit: Edit, made: RewrittenHeader) -> list[Place]:
    """Places in the file that the edit overwrites or cuts off."""
    found = [(0, header.data_start)]
    found += [
        (header.data_start + header.tensors[name].offset, header.tensors[name].size) for name in _kept_changes(edit)
    ]
    if edit.added or edit.removed or edit.layout:
        end = header.data_start + made.kept
        found.append((end, header.size - end))
    return found


def _kept_changes(edit: Edit) -> dict[str, Change]:
    return {name: change for name, change in edit.changes.items() if name not in edit.removed}
