"""Reads the tensors of a checkpoint from a GGUF file, in pieces that are dequantised and converted."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...formats.floats import STORED, widened
from ...formats.gguf import GgufFile
from ...formats.gguf.types import BF16, F16, F32, TYPES
from ...formats.safetensors import tensor_bytes
from ...formats.threads import threads
from ..rows import DTYPES
from ..values import BACK, ROUNDED, VALUES
from ..write import PIECE, encode
from .tensors import Part, Region, Restored

FLOATS = {F32: "F32", F16: "F16", BF16: "BF16"}


def blocks(file: GgufFile, tensors: Sequence[Restored]) -> Iterator[memoryview]:
    """Yields the data of tensors in order, in pieces. Raises BadSource where the GGUF file is cut off."""
    file.fetch()
    workers = threads()
    pending: deque[tuple[int, Future[NDArray[Any]]]] = deque()
    waiting, most = 0, 2 * workers * PIECE
    with ThreadPoolExecutor(workers) as pool:
        for tensor in tensors:
            for region in _pieces(tensor):
                pending.append((region.size, pool.submit(_gathered, file, region, tensor.dtype)))
                waiting += region.size
                while waiting > most:
                    size, future = pending.popleft()
                    waiting -= size
                    yield _bytes(future.result())
        while pending:
            yield _bytes(pending.popleft()[1].result())


def part(file: GgufFile, tensor: Restored, start: int, stop: int) -> bytes:
    """Bytes start .. stop - 1 of a tensor. Raises BadSource where the GGUF file is cut off."""
    at, found = 0, []
    for region in _pieces(tensor):
        size = tensor_bytes(tensor.dtype, (region.size,))
        if at < stop and start < at + size:
            found.append(_bytes(_gathered(file, region, tensor.dtype))[max(start - at, 0) : stop - at])
        at += size
    return b"".join(found)


def exactly(file: GgufFile, tensor: Restored, dtype: str) -> bool:
    """Whether the export of a tensor in another dtype gives the numbers that the GGUF file has."""
    for part in (part for region in _pieces(tensor) for part in region.parts):
        stored = _values(file, part)
        narrow = encode(BACK[part.values](stored) if part.values else stored, DTYPES[dtype])
        made = widened(narrow.view(STORED[dtype]), dtype)
        again = VALUES[part.values](made) if part.values else made
        if not np.allclose(again, stored, rtol=ROUNDED.get(part.values, 0.0), atol=0.0, equal_nan=True):
            return False
    return True


def type_of(file: GgufFile, part: Part) -> int:
    """ggml's type of the numbers of a part."""
    return file.tensors[part.origin].type if part.origin in file.tensors else F32


def _bytes(array: NDArray[Any]) -> memoryview:
    return np.ascontiguousarray(array).reshape(-1).view(np.uint8).data


def _pieces(tensor: Restored) -> Iterator[Region]:
    """The regions of a tensor, those of one packed part in pieces."""
    for region in tensor.regions:
        part = region.parts[0]
        if len(region.parts) > 1 or not part.is_packed:
            yield region
            continue
        unit = part.interleave or 1
        step = max(unit, PIECE // max(1, part.columns) // unit * unit)
        for first in range(0, part.rows, step):
            rows = min(step, part.rows - first)
            yield Region(rows * part.columns, (replace(part, first=part.first + first * part.columns, rows=rows),))


def _gathered(file: GgufFile, region: Region, dtype: str) -> NDArray[Any]:
    """The elements of a region in the dtype of the checkpoint."""
    if region.parts[0].is_packed:
        return _converted(file, region.parts[0], dtype)
    out = np.empty(region.size, STORED[dtype])
    for part in region.parts:
        strides = (part.stride * out.itemsize, part.apart * out.itemsize)
        place = np.lib.stride_tricks.as_strided(out[part.at :], (part.rows, part.columns), strides)
        place[:] = _converted(file, part, dtype).view(out.dtype)
    return out


def _converted(file: GgufFile, piece: Part, dtype: str) -> NDArray[Any]:
    """A piece in the dtype and the order of the checkpoint."""
    if FLOATS.get(type_of(file, piece)) == dtype and not piece.values:
        return _in_order(_stored(file, piece), piece)
    values = _values(file, piece)
    if piece.values:
        values = BACK[piece.values](values)
    return encode(np.ascontiguousarray(values), DTYPES[dtype])


def _values(file: GgufFile, piece: Part) -> NDArray[np.float32]:
    """A piece as 32-bit floats, in the order of the checkpoint."""
    kind = type_of(file, piece)
    raw = _stored(file, piece)
    if kind in FLOATS:
        return _in_order(widened(raw, FLOATS[kind]), piece)
    import gguf

    values = gguf.quants.dequantize(raw, gguf.GGMLQuantizationType(kind))
    return _in_order(values.reshape(piece.rows, piece.columns), piece)


def _stored(file: GgufFile, piece: Part) -> NDArray[Any]:
    """A piece as it is in the file: floats [rows, columns], or the bytes of blocks [rows, bytes of a row]."""
    if piece.origin not in file.tensors:
        return np.array(file.get(piece.origin), "<f4")[piece.first :][:1].reshape(1, 1)
    info = file.tensors[piece.origin]
    kind = TYPES[info.type]
    size = piece.rows * piece.columns // kind.block * kind.size
    raw = np.frombuffer(file.read(piece.origin, piece.first // kind.block * kind.size, size), np.uint8)
    if info.type in FLOATS:
        return raw.view(STORED[FLOATS[info.type]]).reshape(piece.rows, piece.columns)
    return raw.reshape(piece.rows, -1)


def _in_order(values: NDArray[Any], piece: Part) -> NDArray[Any]:
    """Rows of each head from pairs (2i, 2i + 1) to (i, i + d/2), and columns from (block, group) to (group, block)."""
    if piece.interleave:
        half = piece.interleave // 2
        values = values.reshape(-1, half, 2, piece.columns).swapaxes(1, 2).reshape(piece.rows, piece.columns)
    if piece.tiles != (1, 1):
        groups, each = piece.tiles
        values = values.reshape(piece.rows, each, groups, -1).swapaxes(1, 2).reshape(piece.rows, piece.columns)
    return values
