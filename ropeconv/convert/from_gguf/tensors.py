"""The tensors of a checkpoint from those of a GGUF file: the rows of each.

Read `restore_tensors` first. `out_tensors` with a checkpoint of these tensors tells how a family's
rows are reordered, joined and stacked.
"""

from bisect import bisect_right
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from math import prod
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from ...errors import BadSource, UnsupportedBake
from ...formats.disk import threads
from ...formats.gguf.file import GgufFile
from ...formats.gguf.header import BF16, F16, F32, TYPES
from ...formats.safetensors import STORED, Header, Tensor, tensor_bytes, widen
from ...models.family import Gguf
from ...models.folder import ConvertedTensor
from ..to_gguf.conversions import LAYER_NUMBER, ModelSizes
from ..to_gguf.rows import BACK, DTYPES, ROUNDED, VALUES, Rows, ShardWeights, StoredRows
from ..to_gguf.tensors import out_tensors
from ..to_gguf.write import PIECE, encode

S = TypeVar("S", bound=np.generic)
Shape = tuple[int, ...]


def shape_before(rule: str, results: Sequence[Shape]) -> Shape | None:
    """Return the shape before a conversion, from the shapes of its results; None if unknown.

    Args:
        rule: The name of the conversion.
        results: The shapes, slowest dimension first.
    """
    if rule in BEFORE:
        return BEFORE[rule](results)
    if len(results) == 1:
        return results[0]
    return None


def _rows(shapes: Sequence[Shape]) -> Shape:
    """The shape of tensors whose rows were together."""
    first = shapes[0]
    if len(first) < 2:  # vectors, such as biases
        return (sum(shape[0] for shape in shapes),)
    *outer, _, columns = first
    rows = sum(shape[-2] for shape in shapes)
    return (*outer, rows, columns)


def _before_squeeze(shapes: Sequence[Shape]) -> Shape:
    """[channels, 1, width], as the weights of a convolution over channels are."""
    last = shapes[0][-1]
    wide = [size for size in shapes[0] if size != 1]
    return (*wide[:-1], 1, last)


def _before_latent(shapes: Sequence[Shape]) -> Shape:
    """The projection of keys [heads, rank, width] and values [heads, width, rank]."""
    heads, rank, key_width = shapes[0]
    value_width = shapes[1][1]
    return heads * (key_width + value_width), rank


def _before_transpose(shapes: Sequence[Shape]) -> Shape:
    *outer, rows, columns = shapes[0]
    return (*outer, columns, rows)


def _columns(shapes: Sequence[Shape]) -> Shape:
    """The shape of tensors whose columns were together."""
    return (*shapes[0][:-1], sum(shape[-1] for shape in shapes))


BEFORE: dict[str, Callable[[Sequence[Shape]], Shape]] = {
    "squeeze": _before_squeeze,
    "transpose": _before_transpose,
    "split": _rows,
    "alternate": _rows,
    "alternate_columns": _columns,
    "by_key_head": _rows,
    "latent": _before_latent,
}
"""The shape before each conversion, from those of its results."""


NOWHERE = ShardWeights(None, "")


@dataclass(frozen=True)
class RowRange:
    """Consecutive rows of a tensor in GGUF."""

    origin: str
    """The name of the tensor, or the metadata key of a list with its numbers."""

    first: int
    """Their first element in that tensor."""

    rows: int
    columns: int
    interleave: int
    """As in `StoredRows`, to be undone."""

    values: str
    """As in `StoredRows`, to be undone."""

    tiles: tuple[int, int]
    """As in `StoredRows`, to be undone."""

    stride: int
    """From one row to the next in the tensor of the checkpoint, in elements."""

    apart: int
    """From one element of a row to the next."""

    at: int = 0
    """The first element, counted from the beginning of its region."""

    @property
    def is_packed(self) -> bool:
        """Whether the rows are consecutive in the checkpoint too."""
        return self.apart == 1 and self.stride == self.columns

    @property
    def extent(self) -> int:
        """The elements of the checkpoint from the first to the last one."""
        return (self.rows - 1) * self.stride + (self.columns - 1) * self.apart + 1


@dataclass(frozen=True)
class Region:
    """Consecutive elements of a tensor of the checkpoint."""

    size: int
    """Their number."""

    parts: tuple[RowRange, ...]
    """The rows that it consists of."""


@dataclass(frozen=True)
class RestoredTensor(ConvertedTensor):
    """One tensor of the checkpoint."""

    regions: tuple[Region, ...]
    """In order."""

    @property
    def parts(self) -> Iterator[RowRange]:
        for region in self.regions:
            yield from region.parts


def restore_tensors(
    file: GgufFile, shapes: Mapping[str, Shape], rules: Gguf, sizes: ModelSizes
) -> list[RestoredTensor]:
    """Return the tensors of a checkpoint in F32, with the rows of the GGUF file that they have.

    A checkpoint of these shapes is exported without its numbers. The export says which rows of it
    each tensor of the file has; here that is turned round.

    Args:
        file: The GGUF file.
        shapes: The shapes in the checkpoint, by name.
        rules: How the family becomes GGUF.
        sizes: The sizes of the model.

    Raises:
        BadSource: Where a tensor has another shape than such a checkpoint gives.
        UnsupportedBake: Where a conversion leaves elements out.
    """
    tensors = _empty_checkpoint(shapes)
    header = Header({tensor.name: tensor for tensor in tensors}, {}, 0)
    starts = [tensor.start for tensor in tensors]
    parts = [list[RowRange]() for _ in tensors]

    # the same code as for an export says where every row would go, so both directions agree
    for out in out_tensors([(NOWHERE, header)], rules, sizes, F32):
        info = file.tensors.get(out.name)
        if info is None or _trim(info.shape) != _trim(out.gguf_shape):
            raise BadSource(
                f"{out.name} has the shape {info and info.shape} in the GGUF file, and"
                f" {out.gguf_shape} is expected; download it again"
            )
        first_in_gguf = 0
        for rows in out.parts:
            # the place of rows is in bytes of the whole checkpoint, of 4 for each element
            number = bisect_right(starts, rows.start) - 1
            first_in_tensor = (rows.start - starts[number]) // 4
            parts[number].append(_row_range(out, rows, first_in_gguf, first_in_tensor))
            first_in_gguf += rows.rows * rows.columns

    restored = []
    for tensor, of_tensor in zip(tensors, parts, strict=True):
        regions = _regions(tensor, [*of_tensor, *_scalar(tensor.name, rules)])
        restored.append(
            RestoredTensor(name=tensor.name, dtype="F32", shape=tensor.shape, regions=regions)
        )
    return restored


def _empty_checkpoint(shapes: Mapping[str, Shape]) -> list[Tensor]:
    """The tensors of a checkpoint in F32, one behind the other."""
    tensors = []
    start = 0
    for name, shape in shapes.items():
        stop = start + 4 * prod(shape)
        tensors.append(Tensor(name=name, dtype="F32", shape=shape, start=start, stop=stop))
        start = stop
    return tensors


def _row_range(out: StoredRows, rows: Rows, first: int, at: int) -> RowRange:
    """Rows of a tensor in GGUF, as rows of the checkpoint.

    Args:
        out: The tensor as the export has it.
        rows: Some of its rows.
        first: Their first element in the tensor in GGUF.
        at: Their first element in the tensor of the checkpoint.
    """
    return RowRange(
        origin=out.name,
        first=first,
        rows=rows.rows,
        columns=rows.columns,
        interleave=out.interleave,
        values=out.values,
        tiles=out.tiles,
        stride=rows.stride,
        apart=rows.apart,
        at=at,
    )


def _trim(shape: Shape) -> Shape:
    """A shape of GGUF, fastest dimension first, without ones at its end."""
    while shape[-1:] == (1,):
        shape = shape[:-1]
    return shape


def _scalar(name: str, rules: Gguf) -> list[RowRange]:
    """The part of a tensor whose number is in a metadata key, which lists those of all layers."""
    layer = LAYER_NUMBER.search(name)
    if layer is None:
        return []
    ranges = []
    for key, (ending, _) in rules.scalars.items():
        if name.endswith(f".{ending}"):
            # a tensor of one number: the entry of its layer in the list
            number = RowRange(
                origin=key,
                first=int(layer[1]),
                rows=1,
                columns=1,
                interleave=0,
                values="",
                tiles=(1, 1),
                stride=1,
                apart=1,
            )
            ranges.append(number)
    return ranges


def _regions(tensor: Tensor, parts: list[RowRange]) -> tuple[Region, ...]:
    """The regions of a tensor: each packed part, and others with those that they overlap."""
    # Rows that came together in GGUF are interleaved in the checkpoint (every second row, or the
    # columns of a transposed matrix), so the ranges from their first to their last element overlap.
    # They are gathered into one region; parts that touch nothing else are regions of their own.
    groups: list[list[RowRange]] = []
    edges = [0]  # where regions end
    for part in sorted(parts, key=lambda part: part.at):
        begins_behind_all = part.at >= edges[-1]
        if begins_behind_all:
            groups.append([])
            edges.append(part.at)
        groups[-1].append(part)
        edges[-1] = max(edges[-1], part.at + part.extent)

    regions = []
    for inside, start, stop in zip(groups, edges[:-1], edges[1:], strict=True):
        placed = tuple(replace(part, at=part.at - start) for part in inside)
        regions.append(Region(stop - start, placed))

    # every element once: as many as the tensor has, and none behind its end
    elements = sum(part.rows * part.columns for part in parts)
    if elements != prod(tensor.shape) or edges[-1] != elements:
        why = "the GGUF file lacks some of its elements"
        repair = "take the checkpoint that the file was made from"
        raise UnsupportedBake(f"the tensor {tensor.name}", "a checkpoint", why, repair)
    return tuple(regions)


FLOATS = {F32: "F32", F16: "F16", BF16: "BF16"}


def blocks(file: GgufFile, tensors: Sequence[RestoredTensor]) -> Iterator[memoryview]:
    """Yield the data of tensors in order, in pieces.

    Raises:
        BadSource: Where the GGUF file is cut off.
    """
    for shard in file.shards:
        shard.path()  # fetched as a whole, where it is not here

    # threads work ahead of the caller, and the pieces come out in order; the number of elements
    # that wait is limited, so that memory does not grow with the model
    workers = threads()
    pending: deque[tuple[int, Future[NDArray[np.generic]]]] = deque()
    elements_waiting = 0
    most_waiting = 2 * workers * PIECE
    with ThreadPoolExecutor(workers) as pool:
        for tensor in tensors:
            for region in _pieces(tensor):
                pending.append((region.size, pool.submit(_gather, file, region, tensor.dtype)))
                elements_waiting += region.size
                while elements_waiting > most_waiting:
                    size, future = pending.popleft()
                    elements_waiting -= size
                    yield _bytes(future.result())
        while pending:
            _, future = pending.popleft()
            yield _bytes(future.result())


def part(file: GgufFile, tensor: RestoredTensor, start: int, stop: int) -> bytes:
    """Return bytes start .. stop - 1 of a tensor.

    Raises:
        BadSource: Where the GGUF file is cut off.
    """
    blocks = []
    begin = 0
    for region in _pieces(tensor):
        end = begin + tensor_bytes(tensor.dtype, (region.size,))
        is_needed = begin < stop and start < end
        if is_needed:
            data = _bytes(_gather(file, region, tensor.dtype))
            blocks.append(data[max(start - begin, 0) : stop - begin])
        begin = end
    return b"".join(blocks)


def is_exact_in(file: GgufFile, tensor: RestoredTensor, dtype: str) -> bool:
    """Return whether the export of a tensor in another dtype gives the numbers of the GGUF file."""
    for region in _pieces(tensor):
        for part in region.parts:
            stored = _values(file, part)
            values = BACK[part.values](stored) if part.values else stored
            narrow = encode(values, DTYPES[dtype])

            # the way of an export: from the narrow numbers to those of GGUF
            again = widen(narrow.view(STORED[dtype]), dtype)
            if part.values:
                again = VALUES[part.values](again)
            tolerance = ROUNDED.get(part.values, 0.0)
            if not np.allclose(again, stored, rtol=tolerance, atol=0.0, equal_nan=True):
                return False
    return True


def type_of(file: GgufFile, part: RowRange) -> int:
    """Return ggml's type of the numbers of a part."""
    if part.origin in file.tensors:
        return file.tensors[part.origin].type
    return F32


def _bytes(array: NDArray[np.generic]) -> memoryview:
    """The bytes of an array."""
    return np.ascontiguousarray(array).reshape(-1).view(np.uint8).data


def _pieces(tensor: RestoredTensor) -> Iterator[Region]:
    """The regions of a tensor, those of one packed part in pieces."""
    for region in tensor.regions:
        part = region.parts[0]
        if len(region.parts) > 1 or not part.is_packed:
            yield region
            continue

        # whole heads, since `_in_order` moves rows within a head
        unit = part.interleave or 1
        rows_of_piece = PIECE // max(1, part.columns)
        step = max(unit, rows_of_piece // unit * unit)
        for row in range(0, part.rows, step):
            rows = min(step, part.rows - row)
            piece = replace(part, first=part.first + row * part.columns, rows=rows)
            yield Region(rows * part.columns, (piece,))


def _gather(file: GgufFile, region: Region, dtype: str) -> NDArray[np.generic]:
    """The elements of a region in the dtype of the checkpoint."""
    if region.parts[0].is_packed:
        return _convert(file, region.parts[0], dtype)
    # each part is a matrix that lies in the region with gaps, which the other parts fill
    out = np.empty(region.size, STORED[dtype])
    for part in region.parts:
        shape = (part.rows, part.columns)
        strides = (part.stride * out.itemsize, part.apart * out.itemsize)
        place = np.lib.stride_tricks.as_strided(out[part.at :], shape, strides)
        place[:] = _convert(file, part, dtype).view(out.dtype)
    return out


def _convert(file: GgufFile, piece: RowRange, dtype: str) -> NDArray[np.generic]:
    """A piece in the dtype and the order of the checkpoint."""
    # rows of the right dtype are only moved, which keeps their bits (also those of NaN)
    if FLOATS.get(type_of(file, piece)) == dtype and not piece.values:
        return _in_order(_read(file, piece), piece)
    values = _values(file, piece)
    if piece.values:
        values = BACK[piece.values](values)
    return encode(np.ascontiguousarray(values), DTYPES[dtype])


def _values(file: GgufFile, piece: RowRange) -> NDArray[np.float32]:
    """A piece as 32-bit floats, in the order of the checkpoint."""
    kind = type_of(file, piece)
    raw = _read(file, piece)
    if kind in FLOATS:
        return _in_order(widen(raw, FLOATS[kind]), piece)
    import gguf

    values = gguf.quants.dequantize(raw, gguf.GGMLQuantizationType(kind))
    return _in_order(values.reshape(piece.rows, piece.columns), piece)


def _read(file: GgufFile, piece: RowRange) -> NDArray[np.generic]:
    """A piece of the file: floats [rows, columns], or the bytes of blocks [rows, bytes]."""
    if piece.origin not in file.tensors:  # a metadata key that lists a number of each layer
        numbers = np.array(file.get(piece.origin), "<f4")
        return numbers[piece.first :][:1].reshape(1, 1)

    # in quantised types, blocks of some numbers have a size: 32 of Q8_0 take 34 bytes
    info = file.tensors[piece.origin]
    kind = TYPES[info.type]
    size = piece.rows * piece.columns // kind.block * kind.size
    start = piece.first // kind.block * kind.size
    raw = np.frombuffer(file.read(piece.origin, start, size), np.uint8)
    if info.type in FLOATS:
        return raw.view(STORED[FLOATS[info.type]]).reshape(piece.rows, piece.columns)
    return raw.reshape(piece.rows, -1)


def _in_order(values: NDArray[S], piece: RowRange) -> NDArray[S]:
    """Undo `interleave` for the rows of each head, and `tiles` for columns.

    Columns go from (block, group) to (group, block).
    """
    shape = (piece.rows, piece.columns)
    if piece.interleave:
        # [heads, pairs, 2, columns]: in GGUF the two rows of a pair are neighbours, and in a
        # checkpoint they are half a head apart
        half = piece.interleave // 2
        pairs = values.reshape(-1, half, 2, piece.columns)
        values = pairs.swapaxes(1, 2).reshape(shape)
    if piece.tiles != (1, 1):
        groups, each = piece.tiles
        tiles = values.reshape(piece.rows, each, groups, -1)
        values = tiles.swapaxes(1, 2).reshape(shape)
    return values
