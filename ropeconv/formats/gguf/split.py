"""Splits a GGUF model into several files, with the bytes that llama.cpp's llama-gguf-split writes.

The first file has all keys. Tensors follow in their order, each with padding behind it, and a new
file begins where the tensors of one would be larger than the limit (tools/gguf-split).
"""

import re
import struct
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from ...errors import UsageError
from ..disk import Advance, copy_part
from .edit import COUNT, SHARDS, SPLIT, RewrittenHeader
from .header import DEFAULT_ALIGNMENT, GgufHeader, GgufValue, TensorInfo, pad_size, read_header

NUMBER = f"{SPLIT}no"
UINT16 = 2
INT32 = 5
SIZE = re.compile(r"(\d{1,12}) *([KMGT])B?", re.IGNORECASE)
UNITS = {"K": 10**3, "M": 10**6, "G": 10**9, "T": 10**12}
MOST_FILES = 1 << 12


def parse_size(text: str) -> int:
    """Return the bytes of `--split-max-size`, such as 2G, in powers of ten as llama.cpp counts.

    Raises:
        UsageError: It is not a size.
    """
    match = SIZE.fullmatch(text.strip())
    size = 0
    if match is not None:
        number, unit = match.groups()
        size = int(number) * UNITS[unit.upper()]
    if not size:
        raise UsageError(f"--split-max-size {text}: '{text}' is not a size; write it like 2G")
    return size


def split_names(sizes: Mapping[str, int], most: int) -> list[list[str]]:
    """Return the names of the tensors of each file, which is filled up before the next begins.

    The sizes {"a": 64, "b": 64, "c": 64} give [["a", "b"], ["c"]] for files of at most 128 bytes.

    Args:
        sizes: The bytes of each tensor, in their order.
        most: The most bytes of the tensors of a file.

    Raises:
        UsageError: A tensor is larger, or there would be more files than any model has.
    """
    groups: list[list[str]] = [[]]  # the names of each file
    used = 0  # bytes of the last file so far
    for name, size in sizes.items():
        padded = pad_size(size, DEFAULT_ALIGNMENT)
        if padded > most:
            raise UsageError(
                f"--split-max-size of {most:,} bytes is less than {name} has, {padded:,}; give more"
            )
        is_full = used + padded > most
        if is_full:
            groups.append([])
            used = 0
        groups[-1].append(name)
        used += padded

    if len(groups) > MOST_FILES:
        raise UsageError(
            f"--split-max-size would give {len(groups):,} files, and a model has at most"
            f" {MOST_FILES:,}; give more"
        )
    return groups


def write_part(
    whole: Path, groups: Sequence[Sequence[str]], number: int, target: Path, advance: Advance
) -> None:
    """Write one file of a split model.

    Args:
        whole: The model in one file, whose tensors are those of the groups in their order.
        groups: The names of the tensors of each file.
        number: The file to write, from 0.
        target: Where it is written.
        advance: Called with 0 before each tensor, to stop in time.
    """
    # the header of this file: its own keys, and its tensors one behind another
    header = read_header(whole)
    tensors = _follow([header.tensors[name] for name in groups[number]])
    values = _keys(header, number, len(groups))
    head = RewrittenHeader(values, tensors, DEFAULT_ALIGNMENT, kept_size=0).plain()
    target.write_bytes(head)

    # the data of the tensors, copied from the whole model
    with whole.open("rb") as reader, target.open("r+b") as writer:
        data_size = max((info.offset + info.size for info in tensors.values()), default=0)
        writer.truncate(len(head) + pad_size(data_size, DEFAULT_ALIGNMENT))
        for name, info in tensors.items():
            advance(0)
            place = header.data_start + header.tensors[name].offset
            new_place = len(head) + info.offset
            copy_part(reader, place, writer, new_place, info.size)


def _follow(infos: Sequence[TensorInfo]) -> dict[str, TensorInfo]:
    """Tensors one behind the other, from the beginning of the data on."""
    placed = {}
    offset = 0
    for info in infos:
        placed[info.name] = replace(info, offset=offset)
        offset += pad_size(info.size, DEFAULT_ALIGNMENT)
    return placed


def _keys(header: GgufHeader, number: int, count: int) -> dict[str, GgufValue]:
    """The keys of a file. llama.cpp sets `split.count` twice, so that it comes last."""
    values = {}
    if number == 0:
        for key, value in header.values.items():
            if key not in (NUMBER, COUNT, SHARDS):
                values[key] = value
    values[NUMBER] = GgufValue(UINT16, struct.pack("<H", number))
    values[COUNT] = GgufValue(INT32, struct.pack("<i", len(header.tensors)))
    values[SHARDS] = GgufValue(UINT16, struct.pack("<H", count))
    return values
