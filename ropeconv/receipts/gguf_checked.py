"""Checks a GgufRecord before it is used, and decodes its values: receipts are from other people's files."""

from __future__ import annotations

import base64
import struct
from collections.abc import Iterator
from math import prod

import numpy as np

from ..errors import BadSource
from ..formats.gguf import GgufFile, TensorInfo, Value, string
from ..formats.gguf.header import ALIGNMENT, DEFAULT_ALIGNMENT
from ..formats.gguf.values import ARRAY, SIZES, STRING
from ..runtimes.llamacpp.read_header import ROPE_TENSORS
from .original import GgufRecord, ValueRecord

ARCH = "general.architecture"
SMALL = 1 << 16
"""Bytes of changed tensors that a receipt holds at most, without base64, and of zeros after the last tensor."""
SPACES = 1 << 24
"""Bytes of spaces that a receipt may ask for: reserves of earlier headers."""
HEAD_DIM = 1 << 13
KEY = 0xFFFF  # bytes, as llama.cpp reads them


def check_gguf(record: GgufRecord, file: GgufFile) -> None:
    """Raises BadSource where a record says what no ropeconv writes. record: from the receipt of the file."""
    for what in _untrue(record, file):
        raise BadSource(f"the receipt of {file.name} {what}; do not trust it, take the source again")


def value_of(record: ValueRecord) -> Value:
    """A value from a receipt. Raises ValueError where its bytes are not those of its kind."""
    if not record.raw:
        if record.kind != STRING:
            raise ValueError(f"no bytes for a value of kind {record.kind}")
        return string(" " * record.spaces)
    raw = base64.b64decode(record.raw, validate=True)
    if _size(record.kind, raw) != len(raw):
        raise ValueError(f"{len(raw)} bytes for a value of kind {record.kind}")
    return Value(record.kind, raw)


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
