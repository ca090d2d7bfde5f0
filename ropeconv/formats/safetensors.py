"""safetensors headers: read by range and checked, or made for files to write.

A file is `u64 n | n bytes of JSON | data`. https://github.com/huggingface/safetensors#format
"""

from __future__ import annotations

import json
import math
import os
import struct
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, BinaryIO

import msgspec

from ..errors import BadSource, shown
from .regular import open_regular

MAX_HEADER = 16 << 20
"""Bytes of a header. The reference implementation takes 100 MB, which are 1.8 million tensors and a gigabyte of memory;
the longest published headers have some million bytes."""
BITS = {
    "BOOL": 8, "U8": 8, "I8": 8, "F8_E4M3": 8, "F8_E5M2": 8, "F8_E8M0": 8, "F8_E4M3FNUZ": 8, "F8_E5M2FNUZ": 8,
    "I16": 16, "U16": 16, "F16": 16, "BF16": 16, "I32": 32, "U32": 32, "F32": 32, "C64": 64, "F64": 64, "I64": 64,
    "U64": 64, "F4": 4, "F6_E2M3": 6, "F6_E3M2": 6,
}  # fmt: skip
MAX_SIDES = 64
"""Dimensions of a tensor; a reader multiplies them all."""


@dataclass(frozen=True, slots=True)
class Tensor:
    """One tensor of a file. dtype: as safetensors names it. start, stop: bytes from the beginning of the data."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    start: int
    stop: int


Bytes = Annotated[int, msgspec.Meta(ge=0, le=1 << 62)]


class _Entry(msgspec.Struct, gc=False):
    """A tensor as it stands in a header."""

    dtype: str
    shape: tuple[Bytes, ...]
    data_offsets: tuple[Bytes, Bytes]


@dataclass(frozen=True)
class Header:
    """The header of a file. data_start: where the data begins, in bytes."""

    tensors: dict[str, Tensor]
    metadata: dict[str, str]
    data_start: int


def read_header(path: Path) -> Header:
    """The header of a safetensors file.

    Raises BadSource when it is truncated, claims more than the file holds, or is not a safetensors header.
    """
    with open_regular(path) as file:
        return parse_header(file, os.fstat(file.fileno()).st_size, path.name)


def parse_header(file: BinaryIO, size: int, name: str) -> Header:
    """The header at the beginning of a file.

    file: open for reading, at its beginning. size: of the whole file, in bytes. name: for messages. Raises what
    `read_header` raises.
    """
    start = file.read(8)
    if len(start) < 8:
        raise BadSource(f"{name} is {size} bytes, too short for safetensors; download it again")
    length: int = struct.unpack("<Q", start)[0]
    if 8 + length > size:
        raise BadSource(
            f"{name} claims a header of {length} bytes and has {size} in all; it is damaged, download it again"
        )
    if length > MAX_HEADER:
        raise BadSource(f"{name} has a header of {length:,} bytes, and at most {MAX_HEADER:,} are read; split the file")
    try:
        entries = msgspec.json.decode(file.read(length), type=dict[str, msgspec.Raw])
        raw = entries.pop("__metadata__", None)
        metadata = {} if raw is None else msgspec.json.decode(raw, type=dict[str, str])
        decoder = msgspec.json.Decoder(_Entry)
        tensors = {key: _tensor(key, decoder.decode(entry)) for key, entry in entries.items()}
    except (msgspec.DecodeError, ValueError, RecursionError) as problem:
        raise BadSource(f"{name} has no readable safetensors header ({problem}); download it again") from None
    _check_layout(tensors.values(), size - 8 - length, name)
    return Header(tensors, metadata, 8 + length)


def _tensor(name: str, entry: _Entry) -> Tensor:
    start, stop = entry.data_offsets
    if entry.dtype not in BITS:
        raise ValueError(f"{shown(name)} has the dtype {shown(entry.dtype)}, which is not known")
    if len(entry.shape) > MAX_SIDES or stop - start != -(-math.prod(entry.shape) * BITS[entry.dtype] // 8):
        raise ValueError(f"{shown(name)} is {entry.dtype} {shown(list(entry.shape))} in {stop - start} bytes")
    return Tensor(name, entry.dtype, entry.shape, start, stop)


def _check_layout(tensors: Iterable[Tensor], data: int, name: str) -> None:
    at = 0
    for tensor in sorted(tensors, key=lambda t: (t.start, t.stop)):
        if tensor.start != at:
            raise BadSource(
                f"{name} has a hole or an overlap before {shown(tensor.name)}; it is damaged, download it again"
            )
        at = tensor.stop
    if at > data:
        raise BadSource(f"{name} is truncated: its tensors need {at} bytes and {data} are there; download it again")
    if at < data:
        raise BadSource(f"{name} has {data - at} bytes behind its last tensor; it is damaged, download it again")


def header_bytes(tensors: Iterable[tuple[str, str, tuple[int, ...]]], metadata: dict[str, str]) -> bytes:
    """The bytes of a header for tensors (name, dtype, shape) whose data follows without gaps, padded to 8 bytes."""
    entries: dict[str, Any] = {"__metadata__": metadata}
    at = 0
    for name, dtype, shape in tensors:
        size = tensor_bytes(dtype, shape)
        entries[name] = {"dtype": dtype, "shape": list(shape), "data_offsets": [at, at + size]}
        at += size
    text = json.dumps(entries, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    return struct.pack("<Q", len(text)) + text


def tensor_bytes(dtype: str, shape: tuple[int, ...]) -> int:
    """Size of a tensor in bytes."""
    return math.prod(shape) * BITS[dtype] // 8


def write_stream(path: Path, header: bytes, blocks: Iterator[memoryview]) -> None:
    """Writes a file: a header, and then blocks of data in the order in which the iterator yields them."""
    with path.open("wb") as file:
        file.write(header)
        for block in blocks:
            file.write(block)
