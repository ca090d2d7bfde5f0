"""Reads the tensors of a checkpoint from a GGUF file, in pieces that are dequantised and converted by threads."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...errors import BadSource
from ...formats.floats import STORED, widened
from ...formats.gguf import GgufFile
from ...formats.gguf.types import BF16, F16, F32, TYPES
from ..rows import DTYPES
from ..values import BACK, VALUES
from ..write import PIECE, encode
from .tensors import Part, Restored

FLOATS = {F32: "F32", F16: "F16", BF16: "BF16"}


def blocks(file: GgufFile, tensors: tuple[Restored, ...]) -> Iterator[memoryview]:
    """Yields the data of tensors in order, in pieces. Raises BadSource where the GGUF file is cut off."""
    workers = min(8, os.cpu_count() or 1)
    pending: deque[Future[NDArray[Any]]] = deque()
    with ThreadPoolExecutor(workers) as pool:
        for tensor in tensors:
            for piece in _pieces(tensor):
                pending.append(pool.submit(_converted, file, piece, tensor.dtype))
                if len(pending) > 2 * workers:
                    yield _bytes(pending.popleft().result())
        while pending:
            yield _bytes(pending.popleft().result())


def exactly(file: GgufFile, tensor: Restored, dtype: str) -> bool:
    """Whether the export of a tensor in another dtype gives the numbers that the GGUF file has."""
    for piece in _pieces(tensor):
        stored = _values(file, piece)
        narrow = encode(BACK[piece.values](stored) if piece.values else stored, DTYPES[dtype])
        made = widened(narrow.view(STORED[dtype]), dtype)
        if not np.array_equal(VALUES[piece.values](made) if piece.values else made, stored):
            return False
    return True


def _bytes(array: NDArray[Any]) -> memoryview:
    return np.ascontiguousarray(array).reshape(-1).view(np.uint8).data


def _pieces(tensor: Restored) -> Iterator[Part]:
    for part in tensor.parts:
        unit = part.interleave or 1
        step = max(unit, PIECE // max(1, part.columns) // unit * unit)
        for first in range(0, part.rows, step):
            yield replace(part, first=part.first + first * part.columns, rows=min(step, part.rows - first))


def _converted(file: GgufFile, piece: Part, dtype: str) -> NDArray[Any]:
    """A piece in the dtype and the order of the checkpoint."""
    if FLOATS.get(file.tensors[piece.origin].type) == dtype and not piece.values:
        return _in_halves(_stored(file, piece), piece)
    values = _values(file, piece)
    if piece.values:
        values = BACK[piece.values](values)
    return encode(np.ascontiguousarray(values), DTYPES[dtype])


def _values(file: GgufFile, piece: Part) -> NDArray[np.float32]:
    """A piece as 32-bit floats, in the order of the checkpoint."""
    kind = file.tensors[piece.origin].type
    raw = _stored(file, piece)
    if kind in FLOATS:
        return _in_halves(widened(raw, FLOATS[kind]), piece)
    import gguf

    values = gguf.quants.dequantize(raw, gguf.GGMLQuantizationType(kind))
    return _in_halves(values.reshape(piece.rows, piece.columns), piece)


def _stored(file: GgufFile, piece: Part) -> NDArray[Any]:
    """A piece as it is in the file: floats [rows, columns], or the bytes of blocks [rows, bytes of a row]."""
    info, number = file.tensors[piece.origin], file.shard(piece.origin)
    kind = TYPES[info.type]
    start = file.headers[number].data_start + info.offset + piece.first // kind.block * kind.size
    size = piece.rows * piece.columns // kind.block * kind.size
    raw = np.fromfile(file.paths[number], np.uint8, size, offset=start)
    if raw.size != size:
        raise BadSource(f"{file.paths[number].name} was cut off while it was read; run again")
    if info.type in FLOATS:
        return raw.view(STORED[FLOATS[info.type]]).reshape(piece.rows, piece.columns)
    return raw.reshape(piece.rows, -1)


def _in_halves(values: NDArray[Any], piece: Part) -> NDArray[Any]:
    """Rows of each head from pairs (2i, 2i + 1) to (i, i + d/2), where they were interleaved."""
    if not piece.interleave:
        return values
    half = piece.interleave // 2
    return values.reshape(-1, half, 2, piece.columns).swapaxes(1, 2).reshape(piece.rows, piece.columns)
