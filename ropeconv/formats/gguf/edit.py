"""Edits of a GGUF header, and the bytes of the edited header.

llama.cpp wants tensors without gaps in the order of their infos, so a new one goes last, and where others than the last
ones are removed, data moves. The last key of every header written here is a reserve of spaces, so that later edits fit
without moving any data.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace

from ...errors import BadSource, shown
from .header import Header, TensorInfo, padded
from .types import F32
from .values import Value, string

RESERVED = "ropeconv.reserved"
ROOM = 4096
PAGE = 65536  # the kernel copies in such pieces: shifted by a multiple of it, data copies as fast as a whole file


@dataclass(frozen=True)
class Added:
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

    values: Mapping[str, Value] = field(default_factory=dict)
    dropped: frozenset[str] = frozenset()
    arch: str = ""
    changes: Mapping[str, Change] = field(default_factory=dict)
    added: tuple[Added, ...] = ()
    base: Mapping[str, Value] | None = None
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
class Rewritten:
    """An edited header as keys and tensor infos.

    alignment: of the data. kept: size of the data that stays, from its beginning, before tensors that are added. Both
    in bytes.
    """

    values: dict[str, Value]
    tensors: dict[str, TensorInfo]
    alignment: int
    kept: int

    @property
    def data_size(self) -> int:
        """Size in bytes of all tensors with the padding between them."""
        return max((info.offset + info.size for info in self.tensors.values()), default=0)

    def moves(self, header: Header) -> list[tuple[int, int, int]]:
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

    def _render(self, values: dict[str, Value], version: int = 3) -> bytes:
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


def rewrite(header: Header, edit: Edit) -> Rewritten:
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
    return Rewritten(values, tensors, header.alignment, kept)


def _renamed(values: dict[str, Value], arch: str) -> dict[str, Value]:
    old = values["general.architecture"].decode()
    found: dict[str, Value] = {}
    for key, value in values.items():
        found[arch + key.removeprefix(old) if key.startswith(f"{old}.") else key] = value
    found["general.architecture"] = string(arch)
    return found


def _more(value: Value, count: int) -> Value:
    found = value.decode()
    whole = isinstance(found, int) and not isinstance(found, bool)
    if not whole or not 0 <= found + count < 1 << (8 * len(value.raw) - 1):
        raise BadSource(f"the header has {COUNT} = {shown(found)}, where a whole number belongs; fetch the file again")
    return replace(value, raw=(found + count).to_bytes(len(value.raw), "little"))
