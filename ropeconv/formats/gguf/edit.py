"""Edits of a GGUF header, and the bytes of the edited header.

Read `Edit` and `write_new` first. llama.cpp needs tensors without gaps in the order of their infos,
so a new one goes last, and data moves where other tensors than the last are removed. The last key
of every header written here is a reserve of spaces, so that later edits fit without moving data.

`interleave` and `deinterleave` reorder the rows of queries and keys between the two layouts of
RoPE: blocks of quantised types are within rows, so whole rows move and nothing is requantised.
"""

from __future__ import annotations

import math
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
from .header import F32, GgufHeader, GgufValue, TensorInfo, pad_size, string

RESERVED = "ropeconv.reserved"
LEAST_RESERVE_BYTES = 4096
"""The least bytes for the reserve."""
PAGE = 65536
"""Bytes by whose multiples data moves: the kernel copies such pieces as fast as a whole file."""


@dataclass(frozen=True)
class Change:
    """New contents of a tensor, of the same size."""

    unit: int
    apply: Callable[[bytes], bytes]
    """Maps each piece of `unit` bytes to as many new ones."""

    interleaved: int = 0
    """head_dim if it is `interleave` of so many rows, which can be undone; 0 for other changes."""

    def then(self, other: Change) -> Change:
        """Return both changes, this one first. Their units must be multiples of each other."""
        unit = max(self.unit, other.unit)
        return Change(unit, lambda old: other.whole(self.whole(old)))

    def whole(self, old: bytes) -> bytes:
        """Return the new contents of several pieces."""
        pieces = [old[at : at + self.unit] for at in range(0, len(old), self.unit)]
        return b"".join(self.apply(piece) for piece in pieces)


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
    """Keys to remove before that."""

    arch: str = ""
    """The new general.architecture, or empty; the keys of the old one are renamed first."""

    changes: Mapping[str, Change] = field(default_factory=dict)
    """New contents of tensors, by name."""

    added: Mapping[str, bytes] = field(default_factory=dict)
    """Vectors of 32-bit floats to append, as little-endian bytes, by name."""

    base: Mapping[str, GgufValue] | None = None
    """Only for an edit that restores an earlier file: its keys, from which the edit starts.

    None stands for the keys of the file that is edited.
    """

    removed: frozenset[str] = frozenset()
    """Names of tensors that are left out before any are added."""

    layout: Layout | None = None
    """Only for an edit that restores an earlier file: where its header and its data ended."""

    def merge(self, other: Edit) -> Edit:
        """Return both edits as one; where both set the same key or tensor, `other` wins.

        This edit sets "a" and "b" to 1. `other` removes "a" and sets "b" to 2. Together they remove
        "a" and set "b" to 2.

        Args:
            other: An edit that does not restore an earlier file, so that its `base` and `removed`
                are empty.
        """
        set_here = {key: value for key, value in self.values.items() if key not in other.dropped}
        dropped_here = self.dropped - other.values.keys()
        return Edit(
            values={**set_here, **other.values},
            dropped=dropped_here | other.dropped,
            arch=other.arch or self.arch,
            changes={**self.changes, **other.changes},
            added={**self.added, **other.added},
            base=self.base,
            removed=self.removed,
        )

    def then(self, other: Edit) -> Edit:
        """Return this edit, which only undoes, followed by `other`, made for its result."""
        changes = dict(self.changes)
        for name, change in other.changes.items():
            if name in changes:
                change = changes[name].then(change)
            changes[name] = change
        return replace(other, changes=changes, base=self.base, removed=self.removed)


@dataclass(frozen=True)
class RewrittenHeader:
    """An edited header as keys and tensor infos."""

    values: dict[str, GgufValue]
    tensors: dict[str, TensorInfo]
    alignment: int
    kept_size: int
    """Size in bytes of the data that remains, from its beginning, before tensors that are added."""

    @property
    def data_size(self) -> int:
        """The size in bytes of all tensors with the padding between them."""
        return max((info.offset + info.size for info in self.tensors.values()), default=0)

    def moves(self, header: GgufHeader) -> list[tuple[int, int, int]]:
        """Return where the tensor data of the old file goes in the new file.

        Tensors that move by the same distance are one range. An example with tensors of 64 bytes:

            old file   A at 0, B at 64, C at 128, D at 192
            new file   A at 0, B at 64, D at 128 (C is removed)
            result     (0, 0, 128) for A and B, (192, 128, 64) for D

        Args:
            header: The header before the edit.

        Returns:
            (old place, new place, size) of each range in bytes. Places count from the beginning of
            the tensor data.
        """
        ranges: list[tuple[int, int, int]] = []
        for name, new_info in self.tensors.items():
            old_info = header.tensors.get(name)
            if old_info is None:  # an added tensor
                continue
            # Added tensors are behind the data that remains. This one has the name of a tensor that
            # was removed.
            if new_info.offset >= self.kept_size:
                continue

            # a tensor that moves as far as the last range is added to this range
            if ranges:
                range_old, range_new, _ = ranges[-1]
                moves_as_range = old_info.offset - new_info.offset == range_old - range_new
                if moves_as_range:
                    end_of_tensor = old_info.offset + old_info.size
                    ranges[-1] = (range_old, range_new, end_of_tensor - range_old)
                    continue
            ranges.append((old_info.offset, new_info.offset, old_info.size))
        return ranges

    def bytes_as_before(self, layout: Layout) -> bytes:
        """Return the bytes of the header as an earlier file had them, with the padding behind.

        Args:
            layout: The GGUF version of the earlier file, and where its data began.

        Raises:
            BadSource: The header is longer than the place before the data.
        """
        bare = self._render(self.values, layout.version)
        if len(bare) > layout.data_start:
            raise BadSource(
                "the receipt of this file does not fit its header; take its source again"
            )
        return bare + bytes(layout.data_start - len(bare))

    def bytes_of_length(self, start: int) -> bytes | None:
        """Return the bytes of the header, filled up to exactly `start` bytes.

        The data of the tensors then begins at `start`. A file that is changed in place needs that,
        since its data does not move. Returns None where the header cannot have that length.
        """
        bare = self._render(self.values)
        gap = start - len(bare)
        is_aligned = start % self.alignment == 0
        if gap < 0 or not is_aligned:
            return None

        # readers find the data at the next multiple of the alignment, so a gap up to that is
        # padding
        if gap < self.alignment:
            return bare + bytes(gap)

        # a longer one is filled by a key with spaces, if it is long enough for that key
        with_empty_key = self._render({**self.values, RESERVED: string("")})
        key_size = len(with_empty_key) - len(bare)
        if gap < key_size:
            return None
        spaces = " " * (gap - key_size)
        return self._render({**self.values, RESERVED: string(spaces)})

    def plain(self) -> bytes:
        """Return the header without a reserve, padded to where the data can begin."""
        bare = self._render(self.values)
        return bare + bytes(-len(bare) % self.alignment)

    def bytes_with_reserve(self, before: int) -> bytes:
        """Return the bytes of the header, with space for keys that later edits add.

        The space is a key whose value is a string of spaces, the reserve.

        The length differs from the old length by a multiple of 64 KiB (PAGE), so that the data
        moves by whole blocks. A filesystem with reflinks then lets the copy share the blocks of the
        original. An old length that breaks the alignment of the tensors gives the next longer
        length that they allow.

        Args:
            before: The length of the header in the original file, 0 for a new file.
        """
        # the shortest length with space for the reserve; if the old length is 100 KiB, the lengths
        # to choose from are 36, 100, 164 KiB and so on
        least_length = len(self._render(self.values)) + LEAST_RESERVE_BYTES
        pages = math.ceil((least_length - before) / PAGE)  # negative if the header becomes shorter
        length = before + pages * PAGE

        # `bytes_of_length` returns None for a length that breaks the alignment, or that leaves a
        # gap too short for a key. Then a longer length is tried.
        old_length_is_aligned = before % self.alignment == 0
        step = PAGE if old_length_is_aligned else 1
        head = self.bytes_of_length(length)
        while head is None:
            length += step
            head = self.bytes_of_length(length)
        return head

    def _render(self, values: dict[str, GgufValue], version: int = 3) -> bytes:
        """The bytes of the header without padding."""
        # magic | u32 version | u64 number of tensors | u64 number of keys
        parts = [b"GGUF", struct.pack("<IQQ", version, len(self.tensors), len(values))]

        # a key: u64 length | name | u32 type | value
        for key, value in values.items():
            name = key.encode()
            parts.append(struct.pack("<Q", len(name)))
            parts.append(name)
            parts.append(struct.pack("<I", value.kind))
            parts.append(value.raw)

        # a tensor: u64 length | name | u32 dimensions | u64 for each | u32 type | u64 offset
        for info in self.tensors.values():
            name = info.name.encode()
            dims = len(info.shape)
            parts.append(struct.pack("<Q", len(name)))
            parts.append(name)
            parts.append(struct.pack("<I", dims))
            parts.append(struct.pack(f"<{dims}QIQ", *info.shape, info.type, info.offset))
        return b"".join(parts)


SPLIT = "split."
"""The beginning of the keys about shards."""
SHARDS = "split.count"
COUNT = "split.tensors.count"
"""Number of tensors in all files of a split model."""


def rewrite(header: GgufHeader, edit: Edit) -> RewrittenHeader:
    """Return the header after an edit.

    Keys stay in their order, and new keys and tensors come last.

    Args:
        header: The header before.
        edit: The changes.
    """
    # the keys; an edit that restores an earlier file has the keys of the earlier file (`base`)
    keys_before = header.values if edit.base is None else edit.base
    values = dict(keys_before)
    restores_file = edit.layout is not None
    if not restores_file:
        # the reserve, a key of spaces that keeps a place for later keys: the writer makes it anew
        values.pop(RESERVED, None)
    if edit.arch:  # first, since the keys of the edit have the name of the new architecture
        values = _rename_arch(values, edit.arch)
    for key in edit.dropped:
        values.pop(key, None)
    values |= edit.values
    more = len(edit.added) - len(edit.removed & header.tensors.keys())
    if more and COUNT in values:
        values[COUNT] = add_to_count(values[COUNT], more)

    # the tensors that stay, without the gaps that removed tensors leave
    tensors: dict[str, TensorInfo] = {}
    kept_size = 0  # the bytes of data up to the end of the last tensor that stays
    next_offset = 0
    for name, info in header.tensors.items():
        if name in edit.removed:
            continue
        tensors[name] = replace(info, offset=next_offset)
        kept_size = next_offset + info.size
        next_offset = pad_size(kept_size, header.alignment)

    # the added tensors, which are vectors of 32-bit floats
    for name, data in edit.added.items():
        count = len(data) // 4
        tensors[name] = TensorInfo(
            name=name, shape=(count,), type=F32, offset=next_offset, size=len(data)
        )
        next_offset = pad_size(next_offset + len(data), header.alignment)
    return RewrittenHeader(
        values=values, tensors=tensors, alignment=header.alignment, kept_size=kept_size
    )


def add_to_count(value: GgufValue, more: int) -> GgufValue:
    """Return a new value for split.tensors.count, the key with the number of tensors in all shards.

    An i32 of 290 and 2 more give an i32 of 292.

    Args:
        value: The present value of the key.
        more: The number of tensors that are added; negative for tensors that are removed.

    Raises:
        BadSource: The present value is not a whole number, or the new one does not fit its type.
    """
    number = value.decode()
    is_whole = isinstance(number, int) and not isinstance(number, bool)

    # The new number gets the type of the present one, an i32 in files of gguf-py. The limit of
    # signed numbers, such as 2**31 - 1 for 4 bytes, holds for unsigned numbers too.
    width = len(value.raw)  # in bytes
    largest = (1 << (8 * width - 1)) - 1
    fits = is_whole and 0 <= number + more <= largest
    if not fits:
        largest_present_number = largest - max(0, more)
        raise BadSource(
            f"the header has {COUNT} = {shown(number)}, where a whole number from 0 to"
            f" {largest_present_number:,} belongs; fetch the file again"
        )
    return replace(value, raw=(number + more).to_bytes(width, "little"))


def _rename_arch(values: dict[str, GgufValue], arch: str) -> dict[str, GgufValue]:
    """Return keys with the name of another architecture."""
    old = values["general.architecture"].decode()
    renamed = {}
    for key, value in values.items():
        if key.startswith(f"{old}."):
            key = arch + key.removeprefix(old)
        renamed[key] = value
    renamed["general.architecture"] = string(arch)
    return renamed


def new_size(header: GgufHeader, edit: Edit) -> int:
    """Return the size in bytes of the file that `write_new` writes for a shard."""
    edited = rewrite(header, edit)
    size = len(head_bytes(edited, header, edit)) + edited.data_size
    if edit.layout:
        size += edit.layout.tail
    return size


def write_new(
    source: GgufFile, shard: int, edit: Edit, target: Path, advance: Advance = lambda done: None
) -> None:
    """Write one edited shard of a model to a new file; memory use does not depend on its size.

    Keys and new tensors go into the first shard, 0.

    Args:
        source: The model.
        shard: The number of the shard.
        edit: The changes.
        target: The new file.
        advance: Called with the bytes done since the last call.

    Raises:
        OSError: Where it cannot be written.
        BadSource: Where the model changed meanwhile.
    """
    _write(source, shard, edit, target, advance)
    source.refuse_changed()


def write_shards(source: GgufFile, edit: Edit, folder: Path) -> Path:
    """Write edited copies of all shards of a model under their names, and return the first one.

    Tensors are removed from every shard, where `write_new` removes them from the first one only.

    Args:
        source: The model.
        edit: The changes. Keys and new tensors go into the first shard.
        folder: The folder for the copies.

    Raises:
        OSError: Where they cannot be written.
        BadSource: Where the model changed meanwhile.
    """
    removed = edit.removed & source.tensors.keys()
    for number, (shard, header) in enumerate(zip(source.shards, source.headers, strict=True)):
        # the first shard has the keys of the model
        part = Edit()
        if number == 0:
            part = edit
        removed_here = removed & header.tensors.keys()
        changes_here = {
            name: change for name, change in edit.changes.items() if name in header.tensors
        }

        # every shard has the number of tensors of all shards, from which `rewrite` subtracts those
        # that it removes from this one
        values = dict(part.values)
        more = len(edit.added) - len(part.added) - len(removed - removed_here)
        if more and COUNT in header.values:
            values[COUNT] = add_to_count(header.values[COUNT], more)

        # `write_new` changes the header of shard 0 only, so each shard is a model of its own
        part = replace(part, values=values, removed=removed_here, changes=changes_here)
        write_new(GgufFile((shard,), (header,)), 0, part, folder / shard.path().name)
    return folder / source.path.name


def _write(source: GgufFile, shard: int, edit: Edit, target: Path, advance: Advance) -> None:
    """Write one edited shard of a GGUF model as a new file, with the parameters of `write_new`."""
    if shard == 0:
        _write_first_shard(source, edit, target, advance)
        return

    # Only the first shard has keys. The header of another one does not change, so the shard is
    # copied (as a reflink where the filesystem can), and tensors are changed in the copy.
    header = source.headers[shard]
    changes = {name: change for name, change in edit.changes.items() if name in header.tensors}
    copy_file(source.shards[shard].path(), target, advance)
    with target.open("r+b") as file:
        write_changes(file, header, header.data_start, changes)


def _write_first_shard(source: GgufFile, edit: Edit, target: Path, advance: Advance) -> None:
    """Write the first shard with another header, followed by the tensors.

    Places of tensors are counted from the beginning of the data, which is behind the header: at
    `header.data_start` in the source, and at another byte in the new file.

    Args:
        source: The model.
        edit: The changes.
        target: The new file.
        advance: Called with the bytes written since the last call.
    """
    header = source.headers[0]
    edited = rewrite(header, edit)
    head = head_bytes(edited, header, edit)
    data_start = len(head)
    with source.shards[0].path().open("rb") as reader, target.open("wb") as writer:
        writer.write(head)
        advance(len(head))

        # the tensors that stay, as ranges that move together; those that change are among them
        for old_offset, new_offset, size in edited.moves(header):
            old_place = header.data_start + old_offset
            new_place = data_start + new_offset
            copy_part(reader, old_place, writer, new_place, size, advance)

        # new numbers in place of the old ones, and then new tensors
        changes = {}
        for name, change in edit.changes.items():
            if name in header.tensors and name not in edit.removed:
                changes[name] = change
        header_in_target = replace(header, tensors=edited.tensors)
        write_changes(writer, header_in_target, data_start, changes)
        for name, data in edit.added.items():
            writer.seek(data_start + edited.tensors[name].offset)
            writer.write(data)
            advance(len(data))

        # a file that is restored may have had padding behind its last tensor
        if edit.layout is not None:
            writer.truncate(data_start + edited.data_size + edit.layout.tail)


def head_bytes(
    edited: RewrittenHeader, header: GgufHeader, edit: Edit, keep_data: bool = False
) -> bytes:
    """Return the bytes of the new header of a file, with the padding before the tensor data.

    Args:
        edited: The new header (`rewrite`).
        header: The header of the file before the edit.
        edit: The edit.
        keep_data: Whether the new header gets the length of the old header if it fits, so that the
            tensor data stays in its place.
    """
    # an edit that restores an earlier file has the length of the earlier header in its layout
    if edit.layout is not None:
        return edited.bytes_as_before(edit.layout)
    if keep_data:
        head_of_same_length = edited.bytes_of_length(header.data_start)
        if head_of_same_length is not None:
            return head_of_same_length
    # another length, with space for keys of later edits: the tensor data moves
    return edited.bytes_with_reserve(header.data_start)


def write_changes(
    file: BinaryIO, header: GgufHeader, start: int, changes: dict[str, Change]
) -> None:
    """Change tensors within an open file, which has their old contents.

    Args:
        file: The open file.
        header: Its header.
        start: Where its data begins.
        changes: By the names of tensors, the functions that compute the new bytes from the old.
    """
    # `file` may be open for writing only, so the old contents are read through a second handle
    with open(file.name, "rb") as reader:
        for at, block in changed_pieces(reader.fileno(), header, start, changes):
            file.seek(at)
            file.write(block)


def changed_pieces(
    reader: int, header: GgufHeader, start: int, changes: dict[str, Change]
) -> Iterator[tuple[int, bytes]]:
    """Yield (place in the file in bytes, new bytes) for every piece of every changed tensor.

    Args:
        reader: Descriptor of a file with the old contents, whose data begins at `start`.
        header: Its header.
        start: The place of its data, in bytes.
        changes: By the names of tensors, the functions that compute the new bytes from the old.

    Raises:
        BadSource: Where the file was cut off.
    """
    # a change is computed piece by piece (`unit`, such as the rows of one head), not to need memory
    # for a whole tensor
    for name, change in changes.items():
        info = header.tensors[name]
        for piece_start in range(0, info.size, change.unit):
            place = start + info.offset + piece_start
            size = min(change.unit, info.size - piece_start)
            old = b"".join(block for _, block in pieces_of(reader, place, size))
            yield place, change.apply(old)


def interleave(info: TensorInfo, head_dim: int) -> Change:
    """Return the change from pairs (i, i + d/2) to (2i, 2i + 1) in a weight or bias.

    Args:
        info: The tensor.
        head_dim: The number of its rows per head.
    """
    # [first half | second half] of a head, taken in turns: rows 0, d/2, 1, d/2 + 1, ...
    row = _row(info)
    return Change(head_dim * row, lambda head: _swap(head, 2, row), head_dim)


def deinterleave(info: TensorInfo, head_dim: int) -> Change:
    """Return the change from pairs (2i, 2i + 1) to (i, i + d/2), the inverse of `interleave`."""
    # d/2 pairs of a head: the first rows of all pairs, then the second rows
    row = _row(info)
    return Change(head_dim * row, lambda head: _swap(head, head_dim // 2, row))


def _row(info: TensorInfo) -> int:
    """The bytes of the weights, or of the bias, for one dimension."""
    if len(info.shape) == 1:
        return info.size // info.shape[0]
    return info.size // prod(info.shape[1:])


def _swap(head: bytes, outer: int, row: int) -> bytes:
    """The rows of a head in another order: those of `outer` groups in turns."""
    import numpy as np

    rows = np.frombuffer(head, np.uint8).reshape(outer, -1, row)
    return rows.swapaxes(0, 1).tobytes()
