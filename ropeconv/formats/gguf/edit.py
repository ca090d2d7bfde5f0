"""Edits of a GGUF header, and the bytes of the edited header.

llama.cpp needs tensors without gaps in the order of their infos, so a new one goes last, and data
moves where other tensors than the last are removed. The last key of every header written here is a
reserve of spaces, so that later edits fit without moving data.

Also reorders the rows of queries and keys between the two layouts of RoPE: blocks of quantised
types are within rows, so whole rows move and nothing is requantised.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from math import prod
from pathlib import Path
from typing import BinaryIO

from ...errors import BadSource
from ...rope.errors import shown
from ..disk import Advance, copy_file, copy_part, pieces_of
from .file import GgufFile
from .header import F32, GgufHeader, GgufValue, TensorInfo, padded, string

RESERVED = "ropeconv.reserved"
ROOM = 4096
# the kernel copies in such pieces: shifted by a multiple of it, data copies as fast as a whole file
PAGE = 65536


@dataclass(frozen=True)
class Change:
    """New contents of a tensor, of the same size."""

    unit: int
    apply: Callable[[bytes], bytes]
    """Maps each piece of `unit` bytes to as many new ones."""

    interleaved: int = 0
    """head_dim if it is `interleave` of that many rows, which can be undone; 0 for other changes.
    """

    def then(self, other: Change) -> Change:
        """Return both changes, this one first. Their units must be multiples of each other."""
        unit = max(self.unit, other.unit)
        return Change(unit, lambda old: other.whole(self.whole(old)))

    def whole(self, old: bytes) -> bytes:
        """Return the new contents of several pieces."""
        return b"".join(
            self.apply(old[at : at + self.unit]) for at in range(0, len(old), self.unit)
        )


@dataclass(frozen=True)
class Layout:
    """The exact places of an earlier file, to restore it."""

    version: int
    data_start: int
    tail: int
    """Number of zero bytes after its last tensor."""


@dataclass(frozen=True)
class Edit:
    """The changes to a GGUF file."""

    values: Mapping[str, GgufValue] = field(default_factory=dict)
    """Keys to set."""

    dropped: frozenset[str] = frozenset()
    """Keys to remove after that."""

    arch: str = ""
    """The new general.architecture, or empty; the keys of the old one are renamed first."""

    changes: Mapping[str, Change] = field(default_factory=dict)
    """New contents of tensors, by name."""

    added: Mapping[str, bytes] = field(default_factory=dict)
    """Vectors of 32-bit floats to append, as little-endian bytes, by name."""

    base: Mapping[str, GgufValue] | None = None
    """Keys to start from, None for the file's own."""

    removed: frozenset[str] = frozenset()
    """Names of tensors that are left out before any are added."""

    layout: Layout | None = None
    """Only for an edit that restores an earlier file."""

    def merged(self, other: Edit) -> Edit:
        """Return both edits as one; where both set the same key or tensor, `other` wins."""
        return Edit(
            {**{k: v for k, v in self.values.items() if k not in other.dropped}, **other.values},
            (self.dropped - other.values.keys()) | other.dropped,
            other.arch or self.arch,
            {**self.changes, **other.changes},
            {**self.added, **other.added},
            self.base,
            self.removed,
        )

    def then(self, other: Edit) -> Edit:
        """Return this edit, which only undoes, followed by `other`, which was made for its
        result.
        """
        changes = dict(self.changes)
        for name, change in other.changes.items():
            changes[name] = changes[name].then(change) if name in changes else change
        return replace(other, changes=changes, base=self.base, removed=self.removed)


@dataclass(frozen=True)
class RewrittenHeader:
    """An edited header as keys and tensor infos."""

    values: dict[str, GgufValue]
    tensors: dict[str, TensorInfo]
    alignment: int
    kept: int
    """Size in bytes of the data that remains, from its beginning, before tensors that are added."""

    @property
    def data_size(self) -> int:
        """The size in bytes of all tensors with the padding between them."""
        return max((info.offset + info.size for info in self.tensors.values()), default=0)

    def moves(self, header: GgufHeader) -> list[tuple[int, int, int]]:
        """Return the runs of data that remains: place before and after the edit, within the data,
        and size.
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
        """Return the header as in an earlier file.

        Raises:
            BadSource: Where it does not fit into its place.
        """
        bare = self._render(self.values, layout.version)
        if len(bare) > layout.data_start:
            raise BadSource(
                "the receipt of this file does not fit its header; take its source again"
            )
        return bare + bytes(layout.data_start - len(bare))

    def layout(self, start: int) -> bytes | None:
        """Return the header with its padding in exactly `start` bytes; None when that is
        impossible.
        """
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
        """Return the header without a reserve, padded to where the data can begin."""
        bare = self._render(self.values)
        return bare + bytes(-len(bare) % self.alignment)

    def place(self, before: int) -> bytes:
        """Return the header with a reserve, of `before` bytes plus a multiple of 64 KiB: then data
        can share blocks.

        Args:
            before: Bytes before the data in the original file, 0 for a new one. Another length
                where that is not aligned.
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


SPLIT = "split."
"""The beginning of the keys about shards."""
SHARDS = "split.count"
COUNT = "split.tensors.count"
"""Number of tensors in all files of a split model."""


def rewrite(header: GgufHeader, edit: Edit) -> RewrittenHeader:
    """Return the header after an edit: without the old reserve, keys in their order, new keys and
    tensors last.
    """
    values = dict(header.values if edit.base is None else edit.base)
    if edit.layout is None:
        values.pop(RESERVED, None)
    if edit.arch:
        values = _renamed(values, edit.arch)
    for key in edit.dropped:
        values.pop(key, None)
    values |= edit.values
    if edit.added and COUNT in values:
        values[COUNT] = recounted(values[COUNT], len(edit.added))
    tensors: dict[str, TensorInfo] = {}
    kept = end = 0
    for name, info in header.tensors.items():
        if name not in edit.removed:
            tensors[name] = replace(info, offset=end)
            kept = end + info.size
            end = padded(kept, header.alignment)
    for name, data in edit.added.items():
        tensors[name] = TensorInfo(name, (len(data) // 4,), F32, end, len(data))
        end = padded(end + len(data), header.alignment)
    return RewrittenHeader(values, tensors, header.alignment, kept)


def recounted(value: GgufValue, more: int) -> GgufValue:
    """Return the value of `COUNT` for so many more tensors.

    Raises:
        BadSource: Where it is not a whole number.
    """
    number = value.decode()
    whole = isinstance(number, int) and not isinstance(number, bool)
    if not whole or not 0 <= number + more < 1 << (8 * len(value.raw) - 1):
        words = f"the header has {COUNT} = {shown(number)}, where a whole number belongs"
        raise BadSource(f"{words}; fetch the file again")
    return replace(value, raw=(number + more).to_bytes(len(value.raw), "little"))


def _renamed(values: dict[str, GgufValue], arch: str) -> dict[str, GgufValue]:
    old = values["general.architecture"].decode()
    renamed = {
        arch + key.removeprefix(old) if key.startswith(f"{old}.") else key: value
        for key, value in values.items()
    }
    return renamed | {"general.architecture": string(arch)}


def new_size(header: GgufHeader, edit: Edit) -> int:
    """Return the size in bytes of the file that `write_new` writes for a shard."""
    edited = rewrite(header, edit)
    return (
        len(head_bytes(edited, header, edit))
        + edited.data_size
        + (edit.layout.tail if edit.layout else 0)
    )


def write_new(
    source: GgufFile, shard: int, edit: Edit, target: Path, advance: Advance = lambda done: None
) -> None:
    """Write one edited shard of a model to a new file; memory use does not depend on its size.

    Keys and new tensors go into the first shard, 0. Raises OSError, and BadSource where the model
    changed meanwhile.
    """
    _write(source, shard, edit, target, advance)
    source.refuse_changed()


def _write(source: GgufFile, shard: int, edit: Edit, target: Path, advance: Advance) -> None:
    header = source.headers[shard]
    path = source.shards[shard].path()
    changes = {name: change for name, change in edit.changes.items() if name in header.tensors}
    if shard > 0:
        copy_file(path, target, advance)
        with target.open("r+b") as file:
            write_changes(file, header, header.data_start, changes)
        return
    changes = {name: change for name, change in changes.items() if name not in edit.removed}
    edited = rewrite(header, edit)
    head = head_bytes(edited, header, edit)
    with path.open("rb") as reader, target.open("wb") as writer:
        writer.write(head)
        advance(len(head))
        for old, new, size in edited.moves(header):
            copy_part(reader, header.data_start + old, writer, len(head) + new, size, advance)
        write_changes(writer, replace(header, tensors=edited.tensors), len(head), changes)
        for name, data in edit.added.items():
            writer.seek(len(head) + edited.tensors[name].offset)
            writer.write(data)
            advance(len(data))
        if edit.layout is not None:
            writer.truncate(len(head) + edited.data_size + edit.layout.tail)


def head_bytes(
    edited: RewrittenHeader, header: GgufHeader, edit: Edit, keep_data: bool = False
) -> bytes:
    """Return the bytes of a header after an edit.

    Args:
        keep_data: The data stays where it is if the new header fits.
    """
    if edit.layout is not None:
        return edited.exact(edit.layout)
    return (edited.layout(header.data_start) if keep_data else None) or edited.place(
        header.data_start
    )


def write_changes(
    file: BinaryIO, header: GgufHeader, start: int, changes: dict[str, Change]
) -> None:
    """Write the new contents of tensors into an open file that has the old ones.

    Args:
        start: Where its data begins.
    """
    with open(file.name, "rb") as reader:
        for at, block in changed(reader.fileno(), header, start, changes):
            file.seek(at)
            file.write(block)


def changed(
    reader: int, header: GgufHeader, start: int, changes: dict[str, Change]
) -> Iterator[tuple[int, bytes]]:
    """Yield (place in the file in bytes, new bytes) for every piece of every changed tensor.

    Args:
        reader: Descriptor of a file with the old contents, whose data begins at `start`.

    Raises:
        BadSource: Where the file was cut off.
    """
    for name, change in changes.items():
        info = header.tensors[name]
        for at in range(0, info.size, change.unit):
            place = start + info.offset + at
            size = min(change.unit, info.size - at)
            old = b"".join(block for _, block in pieces_of(reader, place, size))
            yield place, change.apply(old)


def interleave(info: TensorInfo, head_dim: int) -> Change:
    """Return the change from pairs (i, i + d/2) to (2i, 2i + 1) in a weight or bias with head_dim
    rows per head.
    """
    row = _row(info)
    return Change(head_dim * row, lambda head: _swapped(head, 2, row), head_dim)


def deinterleave(info: TensorInfo, head_dim: int) -> Change:
    """Return the change from pairs (2i, 2i + 1) to (i, i + d/2), the inverse of `interleave`."""
    row = _row(info)
    return Change(head_dim * row, lambda head: _swapped(head, head_dim // 2, row))


def _row(info: TensorInfo) -> int:
    """The bytes of the weights, or of the bias, for one dimension."""
    return info.size // (prod(info.shape[1:]) if len(info.shape) > 1 else info.shape[0])


def _swapped(head: bytes, outer: int, row: int) -> bytes:
    import numpy as np

    rows = np.frombuffer(head, np.uint8).reshape(outer, -1, row)
    return rows.swapaxes(0, 1).tobytes()
