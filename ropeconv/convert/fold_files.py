"""Multiplies ranges of tensors in a safetensors file: read, scaled in float32, rounded back, written in place.

Tensors of 64-bit floats are scaled in float64.
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


def scaled(old: NDArray[np.generic], dtype: str, factor: float, plus_one: bool = False) -> NDArray[np.generic]:
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
) -> Iterator[TensorPiece]:
    tensor = header.tensors[name]
    size = np.dtype(STORED[tensor.dtype]).itemsize
    for start, stop in spans:
        for at in range(start, stop, PIECE):
            place = header.data_start + tensor.start + at * size
            yield TensorPiece(place, min(PIECE, stop - at) * size, tensor.dtype, factor, plus_one)


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
    found = bits.astype("<u2")
    if strange.any():
        found[strange] = 0x7FC0
    return found


def widened_size(header: Header, wide: Collection[str]) -> int:
    """Size in bytes of the file that `copy_widened` writes."""
    return len(widened_header(header, wide)) + sum(_bytes(tensor, wide) for tensor in header.tensors.values())


def copy_widened(
    source: Source, name: str, target: Path, wide: Collection[str], advance: Advance = lambda done: None
) -> None:
    """Copies a safetensors file with some tensors widened to F32; the order of the data stays.

    source: the checkpoint. name: of the file. target: the copy. wide: names of the tensors to widen, which are F32, F16
    or BF16. advance: called with the bytes written since the last call. Raises OSError.
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
    """The tensors in the order of their data, in lists that are copied at once: every widened one in its own."""
    runs: list[list[Tensor]] = []
    for tensor in _ordered(header):
        if runs and tensor.name not in wide and runs[-1][0].name not in wide:
            runs[-1].append(tensor)
        else:
            runs.append([tensor])
    return runs


def widened_header(header: Header, wide: Collection[str]) -> bytes:
    """The header of the file that `copy_widened` writes."""
    entries = [(t.name, "F32" if t.name in wide else t.dtype, t.shape) for t in _ordered(header)]
    return header_bytes(entries, header.metadata)


def _bytes(tensor: Tensor, wide: Collection[str]) -> int:
    return tensor_bytes("F32", tensor.shape) if tensor.name in wide else tensor.stop - tensor.start


@dataclass(frozen=True)
class FoldedShard:
    """A shard that a fold changes. size: in bytes. write(target, advance): writes it to a path."""

    name: str
    size: int
    write: Callable[[Path, Advance], None]


def folded_shards(source: Source, fold: Fold | None, dtype: FoldDtype) -> list[FoldedShard]:
    """The shards of a checkpoint that a fold changes.

    source: the checkpoint. fold: None where nothing is folded. dtype: "stored", or "f32" to store scaled norms in 32
    bits. Raises UnsupportedBake for "f32" where matrices are scaled.
    """
    found: list[FoldedShard] = []
    sizes = {file.name: file.size for file in source.files()}
    for shard, header in source.headers.items() if fold else ():
        inside = [scaling for scaling in fold.scalings if scaling.tensor in header.tensors] if fold else []
        if not inside:
            continue
        wide = _wide(header, inside) if dtype == "f32" else frozenset()
        size = widened_size(header, wide) if wide else sizes[shard]
        found.append(FoldedShard(shard, size, partial(_write, source, shard, inside, wide)))
    return found


def grown_index(source: Source, fold: Fold | None, dtype: FoldDtype) -> dict[str, str]:
    """The new text of the index, by its name, where tensors become F32; empty where no size changes.

    source: the checkpoint. fold: None where nothing is folded. dtype: of the scaled tensors, "stored" or "f32".
    """
    text = source.text(INDEX)
    if fold is None or dtype == "stored" or text is None:
        return {}
    names = {scaling.tensor for scaling in fold.scalings}
    tensors = [source.tensors[name] for name in names]
    grown = (tensor_bytes("F32", tensor.shape) - (tensor.stop - tensor.start) for tensor in tensors)
    return {INDEX: with_size(text, sum(grown))}


def dtype_notes(dtype: FoldDtype) -> tuple[str, ...]:
    """The notes for the user about scaled tensors that are stored in another type."""
    if dtype == "stored":
        return ()
    return ("the scaled norms are stored in float32; what loads the model in 16 bits rounds them then",)


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
    scale_ranges(target, ((item.tensor, item.spans, item.factor, item.plus_one) for item in scalings))
