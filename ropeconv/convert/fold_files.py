"""Multiplies ranges of tensors in a safetensors file: read, scaled in float32 (F64 in float64), rounded, written in
place.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from ..errors import UnsupportedBake
from ..formats.disk import Advance, threads, write_at
from ..formats.safetensors import (
    INDEX,
    STORED,
    Header,
    Tensor,
    header_bytes,
    read_header,
    tensor_bytes,
    widened,
    with_size,
)
from ..models.source import Source
from ..options import FoldDtype
from .fold import Fold, Scaling

Float = TypeVar("Float", np.float32, np.float64)
PIECE = 1 << 17  # elements: what is read, scaled and written stays in the cache


class TensorPiece(NamedTuple):
    """A range of a file to scale. place, length: in bytes. dtype: as safetensors names it."""

    place: int
    length: int
    dtype: str
    factor: float
    plus_one: bool


def scale_ranges(path: Path, scalings: Iterable[Scaling]) -> None:
    """Scale elements of tensors in a safetensors file, in place.

    Scalings of the same element are applied in their order, each rounded.
    """
    header = read_header(path)
    file = os.open(path, os.O_RDWR)
    try:
        with ThreadPoolExecutor(threads()) as pool:
            for scaling in scalings:
                list(pool.map(partial(_scale, file), _pieces(header, scaling)))
    finally:
        os.close(file)


def scaled(old: NDArray[np.generic], dtype: str, factor: float, plus_one: bool = False) -> NDArray[np.generic]:
    """Return stored numbers times a factor, rounded to nearest, ties to even, in the shape and type of `old`.

    old: as numpy reads them, BF16 as uint16. dtype: "F64", "F32", "F16" or "BF16". plus_one: compute factor (1 + w) -
    1.
    """
    if dtype == "F64":
        return _times(old.astype(np.float64), factor, plus_one)
    values = _times(widened(old, dtype), factor, plus_one)
    if dtype == "BF16":
        return _bfloat16(values)
    return values if dtype == "F32" else values.astype(np.float16)


def _pieces(header: Header, scaling: Scaling) -> Iterator[TensorPiece]:
    tensor = header.tensors[scaling.tensor]
    size = np.dtype(STORED[tensor.dtype]).itemsize
    for start, stop in scaling.spans:
        for at in range(start, stop, PIECE):
            place = header.data_start + tensor.start + at * size
            length = min(PIECE, stop - at) * size
            yield TensorPiece(place, length, tensor.dtype, scaling.factor, scaling.plus_one)


def _scale(file: int, piece: TensorPiece) -> None:
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
    rounded = bits.astype("<u2")
    if strange.any():
        rounded[strange] = 0x7FC0
    return rounded


def copy_widened(
    source: Source, name: str, target: Path, wide: Collection[str], advance: Advance = lambda done: None
) -> None:
    """Copy a safetensors file of a checkpoint with some tensors (F32, F16 or BF16) widened to F32, in the same order.

    Raises OSError.
    """
    header = source.headers[name]
    head = widened_header(header, wide)
    with target.open("wb") as writer:
        writer.write(head)
        advance(len(head))
        goal = len(head)
        for run in _runs(header, wide):
            origin, size = header.data_start + run[0].start, run[-1].stop - run[0].start
            if run[0].name in wide:
                old = np.frombuffer(source.read(name, origin, origin + size), STORED[run[0].dtype])
                new = np.ascontiguousarray(widened(old, run[0].dtype), "<f4")
                writer.seek(goal)
                writer.write(new.data)
                advance(new.nbytes)
                goal += new.nbytes
            else:
                source.copy_part(name, origin, writer, goal, size, advance)
                goal += size


def _ordered(header: Header) -> list[Tensor]:
    return sorted(header.tensors.values(), key=lambda tensor: (tensor.start, tensor.stop))


def _runs(header: Header, wide: Collection[str]) -> list[list[Tensor]]:
    """The tensors in the order of their data, in lists that are copied at once: each widened one is a list."""
    runs: list[list[Tensor]] = []
    for tensor in _ordered(header):
        if runs and tensor.name not in wide and runs[-1][0].name not in wide:
            runs[-1].append(tensor)
        else:
            runs.append([tensor])
    return runs


def widened_header(header: Header, wide: Collection[str]) -> bytes:
    """Return the header of the file that `copy_widened` writes."""
    entries = [(t.name, "F32" if t.name in wide else t.dtype, t.shape) for t in _ordered(header)]
    return header_bytes(entries, header.metadata)


@dataclass(frozen=True)
class FoldedShard:
    """A shard that a fold changes. size: in bytes. write(target, advance): writes it to a path."""

    name: str
    size: int
    write: Callable[[Path, Advance], None]


def folded_shards(source: Source, fold: Fold, dtype: FoldDtype) -> list[FoldedShard]:
    """Return the shards of a checkpoint that a fold changes. dtype: "f32" stores scaled norms in 32 bits.

    Raises UnsupportedBake for "f32" where matrices are scaled.
    """
    shards: list[FoldedShard] = []
    sizes = {file.name: file.size for file in source.files()}
    for name, header in source.headers.items():
        scalings = [scaling for scaling in fold.scalings if scaling.tensor in header.tensors]
        if not scalings:
            continue
        wide, size = _wide(header, scalings) if dtype == "f32" else frozenset(), sizes[name]
        if wide:
            kept = (t.stop - t.start for t in header.tensors.values() if t.name not in wide)
            widened_bytes = (tensor_bytes("F32", header.tensors[tensor].shape) for tensor in wide)
            size = len(widened_header(header, wide)) + sum(kept) + sum(widened_bytes)
        shards.append(FoldedShard(name, size, partial(_write, source, name, scalings, wide)))
    return shards


def grown_index(source: Source, fold: Fold, dtype: FoldDtype) -> dict[str, str]:
    """Return the new text of the index, by its name, where tensors become F32; empty where no size changes."""
    text = source.text(INDEX)
    if dtype == "stored" or text is None:
        return {}
    tensors = [source.tensors[name] for name in fold.tensors]
    grown = (tensor_bytes("F32", tensor.shape) - (tensor.stop - tensor.start) for tensor in tensors)
    return {INDEX: with_size(text, sum(grown))}


def _wide(header: Header, scalings: list[Scaling]) -> frozenset[str]:
    for scaling in scalings:
        if len(header.tensors[scaling.tensor].shape) > 1:
            raise UnsupportedBake(
                "--fold-dtype f32", scaling.tensor, "it is a matrix, and only norms are small enough",
                "leave --fold-dtype out",
            )  # fmt: skip
    return frozenset(scaling.tensor for scaling in scalings)


def _write(
    source: Source, shard: str, scalings: list[Scaling], wide: frozenset[str], target: Path, advance: Advance
) -> None:
    if wide:
        copy_widened(source, shard, target, wide, advance)
    else:
        source.copy(shard, target, advance)
    scale_ranges(target, scalings)
