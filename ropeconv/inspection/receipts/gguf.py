"""A GGUF file that ropeconv wrote, as its first source was: the edit that brings it back, and the record for that."""

from __future__ import annotations

import base64
import hashlib
import struct
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from math import prod

import numpy as np

from ...errors import BadSource
from ...formats.gguf.edit import Change, Edit, Layout, deinterleave, rewrite
from ...formats.gguf.file import GgufFile
from ...formats.gguf.header import ALIGNMENT, DEFAULT_ALIGNMENT, GgufHeader, TensorInfo
from ...formats.gguf.values import ARRAY, SIZES, STRING, GgufValue, string
from ...models.source import RECEIPT
from ...rope.errors import RopeconvError
from ...rope.lazy import Vector
from ...rope.spec import RopeSpec
from ...runtimes.llamacpp.archs import arch_of_header
from ...runtimes.llamacpp.read_header import ROPE_TENSORS, read, rope_tensors
from .reader import parse_receipt
from .receipt import GgufRecord, Receipt, ValueRecord

ARCH = "general.architecture"
SMALL = 1 << 16
"""Bytes of changed tensors that a receipt holds at most, without base64, and of zeros after the last tensor."""
SPACES = 1 << 24
"""Bytes of spaces that a receipt may ask for: reserves of earlier headers."""
HEAD_DIM = 1 << 13
KEY = 0xFFFF  # bytes, as llama.cpp reads them


def check_gguf(record: GgufRecord, file: GgufFile) -> None:
    """Raise BadSource if a record says what no ropeconv writes. record: from the receipt of the file."""
    for what in _untrue(record, file):
        raise BadSource(f"the receipt of {file.name} {what}; do not trust it, take the source again")


def value_of(record: ValueRecord) -> GgufValue:
    """A value from a receipt. Raises ValueError if its bytes are not those of its kind."""
    if not record.raw:
        if record.kind != STRING:
            raise ValueError(f"no bytes for a value of kind {record.kind}")
        return string(" " * record.spaces)
    raw = base64.b64decode(record.raw, validate=True)
    if _size(record.kind, raw) != len(raw):
        raise ValueError(f"{len(raw)} bytes for a value of kind {record.kind}")
    return GgufValue(record.kind, raw)


def _untrue(record: GgufRecord, file: GgufFile) -> Iterator[str]:
    if record.version not in (2, 3):
        yield f"says GGUF version {record.version}"
    if record.data_start < 0 or not 0 <= record.tail <= SMALL:
        yield f"says that data began at byte {record.data_start} with {record.tail} bytes after it"
    yield from _untrue_keys(record, file)
    yield from _untrue_tensors(record, file)


def _untrue_keys(record: GgufRecord, file: GgufFile) -> Iterator[str]:
    if len(set(record.keys)) != len(record.keys) or any(len(key.encode()) > KEY for key in record.keys):
        yield "names keys twice, or too long"
    if ARCH not in record.keys:
        yield f"has no {ARCH}"
    aligned = ALIGNMENT in record.keys or file.header.alignment == DEFAULT_ALIGNMENT
    if ALIGNMENT in record.values or not aligned:
        yield f"has another {ALIGNMENT}"
    spaces = [value.spaces for value in record.values.values()]
    if min(spaces, default=0) < 0 or sum(spaces) > SPACES:
        yield f"asks for {sum(spaces)} spaces"
        return
    for key, value in record.values.items():
        try:
            found = value_of(value)
        except ValueError as problem:
            yield f"has no readable value under {key!r} ({problem})"
            return
        if key == ARCH and found.kind != STRING:
            yield f"has no text under {ARCH}"


def _untrue_tensors(record: GgufRecord, file: GgufFile) -> Iterator[str]:
    for name, text in record.contents.items():
        try:
            data = base64.b64decode(text, validate=True)
        except ValueError as problem:
            yield f"has no readable contents of {name} ({problem})"
            return
        if name in ROPE_TENSORS and (len(data) % 4 or not (np.frombuffer(data, "<f4") > 0).all()):
            yield f"has divisors in {name} that are not positive"
    for name in record.interleaved:
        info = file.tensors.get(name)
        if name in ROPE_TENSORS or (info is not None and not _has_heads(info, record.head_dim)):
            yield f"says that the rows of {name} were reordered by {record.head_dim}"


def _has_heads(info: TensorInfo, head_dim: int) -> bool:
    """Whether the rows of a weight, or the numbers of a bias, are those of whole heads."""
    rows = prod(info.shape[1:]) if len(info.shape) > 1 else info.shape[0]
    whole = 0 < head_dim <= HEAD_DIM and head_dim % 2 == 0 and rows > 0 and rows % head_dim == 0
    return whole and info.size > 0 and info.size % rows == 0


def _size(kind: int, raw: bytes) -> int:
    """Bytes that a value has, by its kind and the lengths in it; -1 where it is none."""
    try:
        if kind == STRING:
            return 8 + _length(raw, 0)
        if kind != ARRAY:
            return SIZES.get(kind, -1)
        element, count = struct.unpack_from("<IQ", raw)
        if element != STRING:
            return 12 + int(count) * SIZES[element] if element in SIZES else -1
        at = 12
        for _ in range(count):
            at += 8 + _length(raw, at)
        return at
    except struct.error:
        return -1


def _length(raw: bytes, at: int) -> int:
    return int(struct.unpack_from("<Q", raw, at)[0])


CLOSE = 1e-5


@dataclass(frozen=True)
class Earlier:
    """The first source of a GGUF file.

    edit: brings the keys and tensors back. header: what they are then. vectors: its rope tensors, by name.
    """

    edit: Edit
    header: GgufHeader
    vectors: Mapping[str, Vector]


def gguf_stated(file: GgufFile, spec: RopeSpec) -> Receipt | None:
    """The receipt of a file; None if it has none that can be read, or computes another RoPE by now.

    spec: the RoPE of the file as it is.
    """
    text = file.get(RECEIPT)
    try:
        receipt = parse_receipt(text, RECEIPT) if isinstance(text, str) else None
    except BadSource:
        return None
    if receipt is None or receipt.schedule.context != spec.context:
        return None
    written, now = np.array(receipt.schedule.inv_freq), spec.form.inv_freq(spec.rotary_dim)
    same = written.shape == now.shape and np.allclose(written, now, rtol=CLOSE, atol=0)
    return receipt if same else None


def first_reading(file: GgufFile, receipt: Receipt) -> RopeSpec | None:
    """The RoPE of the first source of a file; None if the receipt does not say it."""
    try:
        before = earlier(file, receipt)
        return read(before.header, before.vectors, arch_of_header(before.header)).spec
    except RopeconvError:
        return None


def first_gguf(file: GgufFile, spec: RopeSpec) -> tuple[Receipt, Earlier] | None:
    """What `--replace` starts from: the first source of a file that ropeconv wrote, None for other files.

    spec: the RoPE of the file as it is. Raises BadSource if the file cannot be taken back. Receipts without an
    original count as none.
    """
    receipt = gguf_stated(file, spec)
    if receipt is None or receipt.original is None or receipt.original.gguf is None:
        return None
    return receipt, earlier(file, receipt, whole=True)


def earlier(file: GgufFile, receipt: Receipt, whole: bool = False) -> Earlier:
    """The first source of a file.

    receipt: of the file. whole: refuse a file with tensors that cannot be brought back. Raises BadSource for that, for
    a receipt without an original, for one that says what no ropeconv writes, and where keys or tensors are missing by
    now.
    """
    record = receipt.original.gguf if receipt.original else None
    if record is None:
        raise BadSource(
            f"the receipt of {file.name} does not say what its source had; take the source again, "
            f"{receipt.source.described}"
        )
    check_gguf(record, file)
    first = receipt.first.described
    if whole and record.changed:
        raise BadSource(
            f"{record.changed[0]} of {file.name} was multiplied and rounded, which cannot be undone; take the "
            f"source again, {first}"
        )
    added = frozenset(record.added)
    edit = Edit(base=_values(file, record, first), changes=_changes(file, record, first), removed=added)
    made = rewrite(file.header, edit)
    header = GgufHeader(record.version, made.values, made.tensors, made.alignment, 0, 0)
    vectors = {name: vector for name, vector in rope_tensors(file).items() if name not in added}
    for name in vectors.keys() & edit.changes.keys():
        vectors[name] = np.frombuffer(edit.changes[name].apply(b""), "<f4").astype(np.float64)
    return Earlier(edit, header, vectors)


def layout_of(record: GgufRecord, header: GgufHeader, edit: Edit) -> Layout:
    """The places that a file had, or those of a file without a reserve where no such file was written.

    record: from the receipt. header: of the file as it is. edit: brings the first source back. Raises BadSource for
    places that its header cannot have had.
    """
    if not record.data_start:
        made = rewrite(header, edit)
        bare = made.plain()
        return Layout(3, len(bare), -made.data_size % made.alignment)
    layout = Layout(record.version, record.data_start, record.tail)
    if record.data_start > len(rewrite(header, replace(edit, layout=layout)).plain()):
        raise BadSource(
            "the receipt of this file has another place for its data than its header can have; take its source again"
        )
    return layout


def refuse_other(head: bytes, record: GgufRecord, file: GgufFile, receipt: Receipt) -> None:
    """Raise BadSource if a header that is brought back is not the one that the first source had."""
    if record.sha256 and hashlib.sha256(head).hexdigest() != record.sha256:
        first = receipt.first.described
        raise BadSource(
            f"keys of {file.name} were changed after ropeconv wrote it, or its receipt was, so that its source "
            f"would not be what it was; take the source again, {first}"
        )


def _values(file: GgufFile, record: GgufRecord, first: str) -> dict[str, GgufValue]:
    now = str(file.get(ARCH))
    old = str(value_of(record.values[ARCH]).decode()) if ARCH in record.values else now
    found: dict[str, GgufValue] = {}
    for key in record.keys:
        if key in record.values:
            found[key] = value_of(record.values[key])
            continue
        here = now + key.removeprefix(old) if key.startswith(f"{old}.") else key
        value = file.header.values.get(here)
        if value is not None:
            found[key] = value
        elif record.data_start:
            raise BadSource(f"{file.name} has no {here} any more; take the source again, {first}")
    return found


def _changes(file: GgufFile, record: GgufRecord, first: str) -> dict[str, Change]:
    found: dict[str, Change] = {}
    for name, text in record.contents.items():
        data = base64.b64decode(text)
        if name not in file.tensors or file.tensors[name].size != len(data):
            raise BadSource(f"{name} of {file.name} is not as ropeconv wrote it; take the source again, {first}")
        found[name] = Change(len(data), lambda old, data=data: data)  # type: ignore[misc]
    for name in record.interleaved:
        if name not in file.tensors:
            raise BadSource(f"{file.name} has no {name} any more; take the source again, {first}")
        found[name] = deinterleave(file.tensors[name], record.head_dim)
    return found


QUANTISED = "general.quantization_version"


def record_of_file(file: GgufFile, edit: Edit) -> GgufRecord:
    """The record of an output of a file that is its own first source. edit: from the file to the output."""
    header = file.header
    values, added = _difference(header, edit)
    made = rewrite(header, Edit(base=header.values, layout=Layout(header.version, header.data_start, 0)))
    first, end = file.shards[0], header.data_start + header.data_size
    head, tail = first.read(0, header.data_start), first.read(end, min(header.size, end + SMALL + 1))
    same = made.exact(Layout(header.version, header.data_start, 0)) == head
    small, interleaved, other = _sorted_changes(file.tensors, file.read, edit.changes)
    return GgufRecord(
        keys=tuple(header.values),
        values=values,
        added=added,
        contents=small,
        interleaved=interleaved,
        head_dim=_head_dim(edit),
        changed=other,
        version=header.version,
        data_start=header.data_start,
        tail=len(tail) if len(tail) <= SMALL and not any(tail) else 0,
        sha256=hashlib.sha256(head).hexdigest() if same else "",
    )


def record_of_output(file: GgufFile, known: GgufRecord, before: Earlier, edit: Edit, replaced: bool) -> GgufRecord:
    """The record of an output of a file that ropeconv wrote.

    known: the record of that file. before: its first source. edit: from the file, or where it was `replaced` from its
    first source, to the output.
    """
    if replaced:
        values, added = _difference(before.header, edit)
        small, interleaved, other = _sorted_changes(file.tensors, file.read, edit.changes, known)
    else:
        made = rewrite(file.header, edit)
        values, added = _unlike(before.header, made.values), tuple(set(made.tensors) - set(before.header.tensors))
        own = {name: change for name, change in edit.changes.items() if name not in known.added}
        small, interleaved, other = _sorted_changes(file.tensors, file.read, own, known)
        small = {**small, **known.contents}
        interleaved = tuple(name for name in dict.fromkeys((*known.interleaved, *interleaved)) if name not in small)
        other = tuple(dict.fromkeys((*known.changed, *other, *(own.keys() & set(known.interleaved)))))
    head_dim = _head_dim(edit) or known.head_dim
    return GgufRecord(
        known.keys, values, tuple(sorted(added)), small, interleaved, head_dim, other, known.version, known.data_start,
        known.tail, known.sha256,
    )  # fmt: skip


def record_of_export(
    plain: GgufHeader, header: GgufHeader, read: Callable[[str], bytes], edit: Edit, quantised: bool
) -> GgufRecord:
    """The record of a conversion: the same one without scaling, which nobody has written.

    plain: the header of the conversion without scaling. header: the same under the name of the method. read: gives the
    bytes of a converted tensor. edit: from that to the output. quantised: whether llama.cpp quantises the output
    afterwards, which adds a key.
    """
    keys = (*plain.values, *((QUANTISED,) if quantised and QUANTISED not in plain.values else ()))
    added = tuple(item.name for item in edit.added)
    small, interleaved, other = _sorted_changes(header.tensors, read, edit.changes)
    return GgufRecord(
        keys, _unlike(plain, rewrite(header, edit).values), added, small, interleaved, _head_dim(edit), other
    )


def _head_dim(edit: Edit) -> int:
    return max((change.interleaved for change in edit.changes.values()), default=0)


def _difference(header: GgufHeader, edit: Edit) -> tuple[dict[str, ValueRecord], tuple[str, ...]]:
    """Values that an edit takes away, and names of tensors that it adds."""
    made = rewrite(header, edit)
    return _unlike(header, made.values), tuple(item.name for item in edit.added)


def _unlike(header: GgufHeader, values: Mapping[str, GgufValue]) -> dict[str, ValueRecord]:
    """The values of a header that are not among others, where the keys may be those of another architecture."""
    old, now = header.values[ARCH].decode(), values[ARCH].decode()
    found = {}
    for key, value in header.values.items():
        here = now + key.removeprefix(old) if key.startswith(f"{old}.") else key
        if values.get(here) != value:
            found[key] = _record(value)
    return found


def _record(value: GgufValue) -> ValueRecord:
    text = value.raw[8:]
    if value.kind == STRING and text and not text.strip(b" "):
        return ValueRecord(STRING, spaces=len(text))  # the reserve of an earlier header
    return ValueRecord(value.kind, base64.b64encode(value.raw).decode())


def _sorted_changes(
    tensors: Mapping[str, TensorInfo],
    read: Callable[[str], bytes],
    changes: Mapping[str, Change],
    known: GgufRecord | None = None,
) -> tuple[dict[str, str], tuple[str, ...], tuple[str, ...]]:
    """Changed tensors: the contents of small ones, names of those with other rows, and names of the others."""
    small: dict[str, str] = {}
    interleaved, other = [], []
    room = SMALL
    for name, change in changes.items():
        size = tensors[name].size
        if known is not None and name in known.contents:
            small[name] = known.contents[name]
        elif change.interleaved:
            interleaved.append(name)
        elif size <= room and not (known is not None and name in known.interleaved):
            small[name] = base64.b64encode(read(name)).decode()
            room -= size
        else:
            other.append(name)
    return small, tuple(interleaved), tuple(other)
