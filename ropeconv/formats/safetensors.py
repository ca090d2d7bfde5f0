"""safetensors: headers, read by range and checked or made for new files, and the index of shards.

A file is `u64 n | n bytes of JSON | data`. https://github.com/huggingface/safetensors#format
"""

import json
import math
import os
import struct
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Annotated, BinaryIO

import msgspec
import numpy as np
from numpy.typing import NDArray

from ..errors import TOO_MANY, BadSource
from ..rope.errors import shown
from . import jsontext
from .files import open_regular
from .jsontext import JsonObject

MAX_HEADER = 16 << 20
"""The most bytes of a header; published headers have some million.

The reference implementation accepts 100 MB, which take a gigabyte of memory.
"""
BITS = {
    "BOOL": 8,
    "U8": 8,
    "I8": 8,
    "F8_E4M3": 8,
    "F8_E5M2": 8,
    "F8_E8M0": 8,
    "F8_E4M3FNUZ": 8,
    "F8_E5M2FNUZ": 8,
    "I16": 16,
    "U16": 16,
    "F16": 16,
    "BF16": 16,
    "I32": 32,
    "U32": 32,
    "F32": 32,
    "C64": 64,
    "F64": 64,
    "I64": 64,
    "U64": 64,
    "F4": 4,
    "F6_E2M3": 6,
    "F6_E3M2": 6,
}
MAX_SIDES = 64
"""Dimensions of a tensor; a reader multiplies them all."""


@dataclass(frozen=True, slots=True)
class Tensor:
    """One tensor of a file."""

    name: str
    dtype: str
    """As safetensors names it."""

    shape: tuple[int, ...]
    start: int
    """Its first byte, from the beginning of the data."""

    stop: int
    """The byte behind its last one."""


Bytes = Annotated[int, msgspec.Meta(ge=0, le=1 << 62)]


class _Entry(msgspec.Struct, gc=False):
    dtype: str
    shape: tuple[Bytes, ...]
    data_offsets: tuple[Bytes, Bytes]


@dataclass(frozen=True)
class Header:
    """The header of a file."""

    tensors: dict[str, Tensor]
    metadata: dict[str, str]
    data_start: int
    """Where the data begins, in bytes."""


def read_header(path: Path) -> Header:
    """Return the header of a safetensors file.

    Raises:
        BadSource: When it is truncated or damaged.
    """
    with open_regular(path) as file:
        return parse_header(file, os.fstat(file.fileno()).st_size, path.name)


def parse_header(file: BinaryIO, size: int, name: str) -> Header:
    """Return the header at the beginning of an open file of `size` bytes.

    Args:
        file: The open file, at its beginning.
        size: Its size in bytes.
        name: Its name, for messages.

    Raises:
        BadSource: As `read_header`.
    """
    # A file begins with the length of its header (u64), which is checked before so much is read.
    # Then come the header, as JSON, and the data.
    start = file.read(8)
    if len(start) < 8:
        raise BadSource(f"{name} is {size} bytes, too short for safetensors; download it again")
    length: int = struct.unpack("<Q", start)[0]
    if 8 + length > size:
        raise BadSource(
            f"{name} claims a header of {length} bytes and has {size} in all; it is damaged,"
            " download it again"
        )
    if length > MAX_HEADER:
        raise BadSource(
            f"{name} has a header of {length:,} bytes, and the limit is {MAX_HEADER:,}; split the"
            " file"
        )

    # entries stay raw until `__metadata__`, which has another form, is taken out
    try:
        entries = msgspec.json.decode(file.read(length), type=dict[str, msgspec.Raw])
        metadata = {}
        raw = entries.pop("__metadata__", None)
        if raw is not None:
            metadata = msgspec.json.decode(raw, type=dict[str, str])
        decoder = msgspec.json.Decoder(_Entry)
        tensors = {key: _tensor(key, decoder.decode(entry)) for key, entry in entries.items()}
    except (msgspec.DecodeError, ValueError, RecursionError) as problem:
        raise BadSource(
            f"{name} has no readable safetensors header ({problem}); download it again"
        ) from None

    data_start = 8 + length
    _check_places(tensors, size - data_start, name)
    return Header(tensors, metadata, data_start)


def _check_places(tensors: Mapping[str, Tensor], data_size: int, name: str) -> None:
    """Raise BadSource where tensors do not cover the data of a file completely, each byte once.

    The format forbids holes (https://github.com/huggingface/safetensors#format).

    Args:
        tensors: The tensors of the header.
        data_size: The bytes behind the header.
        name: The name of the file, for messages.
    """
    end = 0
    for tensor in sorted(tensors.values(), key=lambda tensor: (tensor.start, tensor.stop)):
        if tensor.start != end:
            raise BadSource(
                f"{name} has a hole or an overlap before {shown(tensor.name)}; it is damaged,"
                " download it again"
            )
        end = tensor.stop

    if end > data_size:
        raise BadSource(
            f"{name} is truncated: its tensors need {end} bytes and it has {data_size}; download"
            " it again"
        )
    if end < data_size:
        raise BadSource(
            f"{name} has {data_size - end} bytes behind its last tensor; it is damaged, download"
            " it again"
        )


def _tensor(name: str, entry: _Entry) -> Tensor:
    """A tensor of a header. Raises ValueError where its size is not that of its numbers."""
    if entry.dtype not in BITS:
        raise ValueError(f"{shown(name)} has the dtype {shown(entry.dtype)}, which is not known")

    # a damaged header may have very many sides, whose product would take long
    start, stop = entry.data_offsets
    has_right_size = False
    if len(entry.shape) <= MAX_SIDES:
        bits = math.prod(entry.shape) * BITS[entry.dtype]
        size = (bits + 7) // 8  # rounded up to bytes: F4 and F6 have numbers of 4 and 6 bits
        has_right_size = stop - start == size
    if not has_right_size:
        raise ValueError(
            f"{shown(name)} is {entry.dtype} {shown(list(entry.shape))} in {stop - start} bytes"
        )
    return Tensor(name=name, dtype=entry.dtype, shape=entry.shape, start=start, stop=stop)


def header_bytes(
    tensors: Iterable[tuple[str, str, tuple[int, ...]]], metadata: dict[str, str]
) -> bytes:
    """Return the header of a safetensors file whose data follows without gaps, padded to 8 bytes.

    Args:
        tensors: Name, dtype and shape of each.
        metadata: Texts by their keys.
    """
    entries: JsonObject = {"__metadata__": metadata}
    start = 0
    for name, dtype, shape in tensors:
        stop = start + tensor_bytes(dtype, shape)
        entries[name] = {"dtype": dtype, "shape": list(shape), "data_offsets": [start, stop]}
        start = stop
    text = json.dumps(entries, separators=(",", ":")).encode()

    # spaces, which JSON ignores, let the data begin at a multiple of 8, as the reference writes it
    to_next_multiple = -len(text) % 8
    text += b" " * to_next_multiple
    return struct.pack("<Q", len(text)) + text


def tensor_bytes(dtype: str, shape: tuple[int, ...]) -> int:
    """Return the size of a tensor in bytes."""
    return math.prod(shape) * BITS[dtype] // 8


# numpy has no bfloat16, which is read as integers of 16 bits
STORED = {"F64": "<f8", "F32": "<f4", "F16": "<f2", "BF16": "<u2"}
"""The types of numpy for dtypes of floats."""


def widen(stored: NDArray[np.generic], dtype: str) -> NDArray[np.float32]:
    """Return a new array of 32-bit floats.

    Args:
        stored: The numbers as numpy reads them.
        dtype: "F64", "F32", "F16" or "BF16".
    """
    if dtype == "BF16":
        # bfloat16 is the upper half of a 32-bit float: the same sign and exponent
        wide = stored.astype(np.uint32)
        wide <<= 16
        return wide.view(np.float32)
    return stored.astype(np.float32)


INDEX = "model.safetensors.index.json"
LONGEST = 64 << 20
"""The most characters of an index. A Kimi K2 in GPTQ has 25 to 30 million."""
MOST_TENSORS = 600_000
"""The most tensors of an index. A Kimi K2 in GPTQ has 276,480, of experts."""
LONGEST_REST = 1 << 20
"""The most characters of everything but `weight_map`."""


def shards(text: str) -> tuple[str, ...]:
    """Return the names of the shards in the text of model.safetensors.index.json, sorted.

    Raises:
        BadSource: When it is not an index, or names a file outside its own folder.
    """
    names = tuple(sorted(set(_weight_map(text).values())))
    for name in names:
        if not safe_name(name):
            raise BadSource(
                f"{INDEX} names the shard {shown(name)}, which is not inside the folder; do not"
                " trust this checkpoint"
            )
    return names


def tensors(text: str) -> tuple[str, ...]:
    """Return the names of the tensors in an index.

    Raises:
        BadSource: When it is not an index.
    """
    return tuple(_weight_map(text))


def with_shard(text: str, shard: str, added: Mapping[str, int]) -> str:
    """Return an index with one more shard of tensors (name to bytes)."""
    _weight_map(text)
    index = jsontext.parse(text, INDEX, LONGEST)
    known = index.get("metadata")
    if isinstance(known, dict) and isinstance(known.get("total_size"), int):
        known["total_size"] += sum(added.values())

    index["weight_map"] |= dict.fromkeys(added, shard)
    return jsontext.dump(index, like=text)


def _weight_map(text: str) -> dict[str, str]:
    """Return the file of each tensor by an index, {"lm_head.weight": "model-2.safetensors", ...}.

    Raises:
        BadSource: When the text is not an index.
    """
    if len(text) > LONGEST:
        raise BadSource(
            f"{INDEX} has {len(text):,} characters, and the limit is {LONGEST:,}; {TOO_MANY}"
        )
    # msgspec decodes the millions of characters of weight_map without making objects of the rest
    try:
        entries = msgspec.json.decode(text, type=dict[str, msgspec.Raw])
        weight_map = msgspec.json.decode(entries.pop("weight_map", b"null"), type=dict[str, str])
    except (msgspec.DecodeError, UnicodeError, RecursionError) as problem:
        raise BadSource(
            f"{INDEX} has no readable weight_map ({problem}); download it again"
        ) from None

    # no model has so many tensors, or so much beside them
    bytes_beside = sum(len(bytes(raw)) for raw in entries.values())
    if len(weight_map) > MOST_TENSORS or bytes_beside > LONGEST_REST:
        raise BadSource(
            f"{INDEX} names {len(weight_map):,} tensors and has {bytes_beside:,} bytes beside them,"
            f" and at most {MOST_TENSORS:,} and {LONGEST_REST:,} are read; {TOO_MANY}"
        )
    return weight_map


def safe_name(name: str) -> bool:
    """Return whether a name stays inside its folder.

    It is relative, and without `..`, backslashes or drive letters.
    """
    path = PurePosixPath(name)
    if name in ("", ".") or path.is_absolute() or ".." in path.parts:
        return False
    return "\\" not in name and ":" not in name and "\0" not in name


def index_text(total: int, weight_map: dict[str, str]) -> str:
    """Return the text of model.safetensors.index.json.

    Args:
        total: Bytes of all tensors.
        weight_map: The file of each tensor.
    """
    return jsontext.dump({"metadata": {"total_size": total}, "weight_map": weight_map})
