"""Multiplies ranges of tensors in a safetensors file: read, scaled in float32, rounded back, written in place.

Tensors of 64-bit floats are scaled in float64.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from ...formats.copying import write_at
from ...formats.floats import STORED, widened
from ...formats.safetensors import Header, read_header
from ...formats.threads import threads

Float = TypeVar("Float", np.float32, np.float64)
PIECE = 1 << 17  # elements: what is read, scaled and written stays in the cache


class Piece(NamedTuple):
    """A range of a file to scale.

    place, length: in bytes. dtype: of its numbers, as safetensors names it. factor, plus_one: as in `scaled`.
    """

    place: int
    length: int
    dtype: str
    factor: float
    plus_one: bool


def scale_ranges(path: Path, scalings: Iterable[tuple[str, tuple[tuple[int, int], ...], float, bool]]) -> None:
    """Scales elements of tensors in a safetensors file, in place.

    path: the file. scalings: per entry a tensor, spans [start, stop) of its flat elements, the factor, and whether the
    tensor stores w - 1, as `plus_one` of `scaled`. Scalings of the same element are applied in their order, each
    rounded.
    """
    header = read_header(path)
    file = os.open(path, os.O_RDWR)
    try:
        with ThreadPoolExecutor(threads()) as pool:
            for scaling in scalings:
                list(pool.map(partial(_scale, file), _pieces(header, *scaling)))
    finally:
        os.close(file)


def scaled(old: NDArray[Any], dtype: str, factor: float, plus_one: bool = False) -> NDArray[Any]:
    """Stored numbers times a factor, rounded to nearest, ties to even, in the shape and type of `old`.

    old: as numpy reads them, BF16 as uint16. dtype: "F64", "F32", "F16" or "BF16". factor: to multiply by. plus_one:
    the tensor stores weights minus one, so that `factor (1 + w) - 1` is computed.
    """
    if dtype == "F64":
        return _times(old.astype(np.float64), factor, plus_one)
    values = _times(widened(old, dtype), factor, plus_one)
    if dtype == "BF16":
        return _bfloat16(values)
    return values if dtype == "F32" else values.astype(np.float16)


def _pieces(
    header: Header, name: str, spans: tuple[tuple[int, int], ...], factor: float, plus_one: bool
) -> Iterator[Piece]:
    tensor = header.tensors[name]
    size = np.dtype(STORED[tensor.dtype]).itemsize
    for start, stop in spans:
        for at in range(start, stop, PIECE):
            place = header.data_start + tensor.start + at * size
            yield Piece(place, min(PIECE, stop - at) * size, tensor.dtype, factor, plus_one)


def _scale(file: int, piece: Piece) -> None:
    old = np.frombuffer(os.pread(file, piece.length, piece.place), STORED[piece.dtype])
    new = scaled(old, piece.dtype, piece.factor, piece.plus_one)
    write_at(file, np.ascontiguousarray(new).data, piece.place)


def _times(values: NDArray[Float], factor: float, plus_one: bool) -> NDArray[Float]:
    if plus_one:
        values += 1
    values *= factor
    if plus_one:
        values -= 1
    return values


def _bfloat16(values: NDArray[np.float32]) -> NDArray[np.uint16]:
    """32-bit floats rounded to bfloat16, as uint16 in the same shape; the input is overwritten."""
    strange = np.isnan(values)
    bits = values.view(np.uint32)
    odd = bits >> 16
    odd &= 1
    odd += 0x7FFF
    bits += odd
    bits >>= 16
    found = bits.astype("<u2")
    if strange.any():
        found[strange] = 0x7FC0
    return found
