"""Edits of a GGUF header, and the bytes of the edited header.

llama.cpp wants tensors without gaps in the order of their infos, so a new one goes last, and where others than the last
ones are removed, data moves. The last key of every header written here is a reserve of spaces, so that later edits fit
without moving any data.

Reorders the rows of queries and keys between the two layouts of RoPE, for tensors of any type.

Blocks of quantised types lie within rows, so whole rows move and nothing is requantised.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import BinaryIO

from ...errors import BadSource
from ...rope.errors import shown
from ..disk import Advance, copy_file, copy_part, pieces_of
from .file import GgufFile
from .header import GgufHeader, TensorInfo, padded
from .values import F32, GgufValue, string

RESERVED = "ropeconv.reserved"
ROOM = 4096
PAGE = 65536  # the kernel copies in such pieces: shifted by a multiple of it, data copies as fast as a whole file


@dataclass(frozen=True)
class AddedTensor:
    """A vector of 32-bit floats to append. data: its bytes, little-endian."""

    name: str
    data: bytes

    def info(self, offset: int) -> TensorInfo:
        """The entry of the tensor in a header. offset: bytes from the beginning of the data."""
        return TensorInfo(self.name, (len(self.data) // 4,), F32, offset, len(self.data))


@dataclass(frozen=True)
class Change:
    """New contents of a tensor, of the same size.

    apply: maps each piece of `unit` bytes to as many new ones. interleaved: head_dim where it is `interleave` of that
    many rows, which can be undone; 0 for other changes.
    """

    unit: int
    apply: Callable[[bytes], bytes]
    interleaved: int = 0

    def then(self, other: Change) -> Change:
        """Both changes, this one first. Their units must be equal or multiples of each other."""
        unit = max(self.unit, other.unit)
        return Change(unit, lambda old: other.whole(self.whole(old)))

    def whole(self, old: bytes) -> bytes:
        """The new contents of several pieces."""
        return b"".join(self.apply(old[at : at + self.unit]) for at in range(0, len(old), self.unit))


@dataclass(frozen=True)
class Layout:
    """The exact places of an earlier file, for an edit that brings it back.

    version: of GGUF. data_start: where its data began, in bytes. tail: number of zero bytes after its last tensor.
    """

    version: int
    data_start: int
    tail: int


@dataclass(frozen=True)
class Edit:
    """What to change in a GGUF file.

    arch: the new general.architecture, or empty; the keys of the old one are renamed first. dropped: keys to remove
    after that. values: keys to set, by name. changes: new contents of tensors, by name. added: tensors to append. base:
    keys to start from in place of the file's, None for the file's own. removed: names of tensors that are left out
    before any are added. layout: None except for an edit that brings an earlier file back.
    """

    values: Mapping[str, GgufValue] = field(default_factory=dict)
    dropped: frozenset[str] = frozenset()
    arch: str = ""
    changes: Mapping[str, Change] = field(default_factory=dict)
    added: tuple[AddedTensor, ...] = ()
    base: Mapping[str, GgufValue] | None = None
    removed: frozenset[str] = frozenset()
    layout: Layout | None = None

    def merged(self, other: Edit) -> Edit:
        """Both edits as one; where both set the same key or tensor, `other` wins."""
        return Edit(
            {**{k: v for k, v in self.values.items() if k not in other.dropped}, **other.values},
            (self.dropped - other.values.keys()) | other.dropped,
            other.arch or self.arch,
            {**self.changes, **other.changes},
            (*self.added, *other.added),
            self.base,
            self.removed,
        )

    def then(self, other: Edit) -> Edit:
        """This edit, which only takes back, and after it `other`, which was made for the file that this one gives."""
        composed = {
            name: self.changes[name].then(change) if name in self.changes else change
            for name, change in other.changes.items()
        }
        changes = {**self.changes, **composed}
        return replace(other, changes=changes, base=self.base, removed=self.removed)


@dataclass(frozen=True)
class RewrittenHeader:
    """An edited header as keys and tensor infos.

    alignment: of the data. kept: size of the data that stays, from its beginning, before tensors that are added. Both
    in bytes.
    """

    values: dict[str, GgufValue]
    tensors: dict[str, TensorInfo]
    alignment: int
    kept: int

    @property
    def data_size(self) -> int:
        """Size in bytes of all tensors with the padding between them."""
        return max((info.offset + info.size for info in self.tensors.values()), default=0)

    def moves(self, header: GgufHeader) -> list[tuple[int, int, int]]:
        """The data of the file that stays, in runs: its place before and after, and its size.

        header: before the edit. Places are counted from the beginning of the data, in bytes.
        """
        runs: list[tuple[int, int, int]] = []
        for name, info in self.tensors.items():
            old = header.tensors.get(name)
            if old is None or info.offset >= self.kept:
                continue
            if runs and old.offset - info.offset == runs[-1][0] - runs[-1][1]:
                runs[-1] = (*runs[-1][:2], old.offset + old.size - runs[-1][0])
            else:
                runs.append((old.offset, info.offset, old.size))
        return runs

    def exact(self, layout: Layout) -> bytes:
        """The header as it was in an earlier file. Raises BadSource where it does not fit into its place."""
        bare = self._render(self.values, layout.version)
        if len(bare) > layout.data_start:
            raise BadSource("the receipt of this file does not fit its header; take its source again")
        return bare + bytes(layout.data_start - len(bare))

    def layout(self, start: int) -> bytes | None:
        """The header with its padding in exactly `start` bytes; None when that is impossible."""
        bare = self._render(self.values)
        gap = start - len(bare)
        if gap < 0 or start % self.alignment:
            return None
        if gap < self.alignment:
            return bare + bytes(gap)
        overhead = len(self._render({**self.values, RESERVED: string("")})) - len(bare)
        if gap < overhead:
            return None
        return self._render({**self.values, RESERVED: string(" " * (gap - overhead))})

    def plain(self) -> bytes:
        """The header without a reserve, padded to where the data can begin."""
        bare = self._render(self.values)
        return bare + bytes(-len(bare) % self.alignment)

    def place(self, before: int) -> bytes:
        """The header with a reserve, of `before` bytes plus a multiple of 64 KiB, so that the data can share blocks.

        before: bytes before the data in the original file, 0 for a new one. Another length where that is not aligned.
        """
        least = len(self._render(self.values)) + ROOM
        start = before + (least - before + PAGE - 1) // PAGE * PAGE
        while (laid := self.layout(start)) is None:
            start += PAGE if before % self.alignment == 0 else 1
        return laid

    def _render(self, values: dict[str, GgufValue], version: int = 3) -> bytes:
        parts = [b"GGUF", struct.pack("<IQQ", version, len(self.tensors), len(values))]
        for key, value in values.items():
            name = key.encode()
            parts += (struct.pack("<Q", len(name)), name, struct.pack("<I", value.kind), value.raw)
        for info in self.tensors.values():
            name = info.name.encode()
            parts += (struct.pack("<Q", len(name)), name, struct.pack("<I", len(info.shape)))
            parts.append(struct.pack(f"<{len(info.shape)}QIQ", *info.shape, info.type, info.offset))
        return b"".join(parts)


COUNT = "split.tensors.count"
"""Number of tensors in all files of a split model."""


def rewrite(header: GgufHeader, edit: Edit) -> RewrittenHeader:
    """The header after an edit: without the old reserve, keys in their order, new keys and tensors last."""
    values = dict(header.values if edit.base is None else edit.base)
    if edit.layout is None:
        values.pop(RESERVED, None)
    if edit.arch:
        values = _renamed(values, edit.arch)
    for key in edit.dropped:
        values.pop(key, None)
    values |= edit.values
    if edit.added and COUNT in values:
        values[COUNT] = _more(values[COUNT], len(edit.added))
    tensors: dict[str, TensorInfo] = {}
    kept = end = 0
    for name, info in header.tensors.items():
        if name not in edit.removed:
            tensors[name] = replace(info, offset=end)
            kept = end + info.size
            end = padded(kept, header.alignment)
    for item in edit.added:
        info = item.info(end)
        tensors[item.name] = info
        end = padded(info.offset + info.size, header.alignment)
    return RewrittenHeader(values, tensors, header.alignment, kept)


def _renamed(values: dict[str, GgufValue], arch: str) -> dict[str, GgufValue]:
    old = values["general.architecture"].decode()
    found: dict[str, GgufValue] = {}
    for key, value in values.items():
        found[arch + key.removeprefix(old) if key.startswith(f"{old}.") else key] = value
    found["general.architecture"] = string(arch)
    return found


def _more(value: GgufValue, count: int) -> GgufValue:
    found = value.decode()
    whole = isinstance(found, int) and not isinstance(found, bool)
    if not whole or not 0 <= found + count < 1 << (8 * len(value.raw) - 1):
        raise BadSource(f"the header has {COUNT} = {shown(found)}, where a whole number belongs; fetch the file again")
    return replace(value, raw=(found + count).to_bytes(len(value.raw), "little"))


def new_size(header: GgufHeader, edit: Edit) -> int:
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


def _head(made: RewrittenHeader, header: GgufHeader, edit: Edit) -> bytes:
    return made.place(header.data_start) if edit.layout is None else made.exact(edit.layout)


def write_changes(file: BinaryIO, header: GgufHeader, start: int, changes: dict[str, Change]) -> None:
    """Writes the new contents of tensors into a file that has the old ones.

    file: open for writing. header: of the original file. start: where the data of `file` begins, in bytes. changes: the
    new contents, by tensor.
    """
    with open(file.name, "rb") as reader:
        for at, block in changed(reader.fileno(), header, start, changes):
            file.seek(at)
            file.write(block)


def changed(reader: int, header: GgufHeader, start: int, changes: dict[str, Change]) -> Iterator[tuple[int, bytes]]:
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


def interleave(info: TensorInfo, head_dim: int) -> Change:
    """The change from pairs (i, i + d/2) to (2i, 2i + 1). info: of the weight or bias. head_dim: its rows per head."""
    row = _row(info)
    return Change(head_dim * row, lambda head: _swapped(head, 2, row), head_dim)


def deinterleave(info: TensorInfo, head_dim: int) -> Change:
    """The change from pairs (2i, 2i + 1) to (i, i + d/2), the inverse of `interleave`. Parameters as there."""
    row = _row(info)
    return Change(head_dim * row, lambda head: _swapped(head, head_dim // 2, row))


def _row(info: TensorInfo) -> int:
    """Bytes of the weights, or of the bias, that give one dimension."""
    return info.row_size if len(info.shape) > 1 else info.size // info.shape[0]


def _swapped(head: bytes, outer: int, row: int) -> bytes:
    import numpy as np

    rows = np.frombuffer(head, np.uint8).reshape(outer, -1, row)
    return rows.swapaxes(0, 1).tobytes()
