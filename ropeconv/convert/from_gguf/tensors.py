"""The tensors of a checkpoint from those of a GGUF file: the rows of each.

Read `restore_tensors` first: it finds the rows of the GGUF file (`RowRange`) that each tensor of
the checkpoint consists of, without reading numbers. `blocks` and `part` then read them.
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
from ..to_gguf.rows import (
    DTYPES,
    FUNCTION_TOLERANCES,
    INVERSE_FUNCTIONS,
    NUMBER_FUNCTIONS,
    Rows,
    ShardWeights,
    StoredRows,
)
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


def _joined_rows(shapes: Sequence[Shape]) -> Shape:
    """The shape of one tensor with the rows of all: [8, 64] and [4, 64] give [12, 64]."""
    first = shapes[0]
    if len(first) < 2:  # vectors, such as biases
        return (sum(shape[0] for shape in shapes),)
    *outer, _, columns = first
    rows = sum(shape[-2] for shape in shapes)
    return (*outer, rows, columns)


def _before_squeeze(shapes: Sequence[Shape]) -> Shape:
    """The shape of the weights of a convolution: [channels, width] gives [channels, 1, width]."""
    width = shapes[0][-1]
    without_ones = [size for size in shapes[0] if size != 1]
    return (*without_ones[:-1], 1, width)


def _before_latent(shapes: Sequence[Shape]) -> Shape:
    """The shape of kv_b_proj, from those of its keys and values.

    Keys [heads, rank, key_width] and values [heads, value_width, rank] give
    [heads * (key_width + value_width), rank].
    """
    heads, rank, key_width = shapes[0]
    value_width = shapes[1][1]
    return heads * (key_width + value_width), rank


def _before_transpose(shapes: Sequence[Shape]) -> Shape:
    """The shape with the last two dimensions exchanged."""
    *outer, rows, columns = shapes[0]
    return (*outer, columns, rows)


def _joined_columns(shapes: Sequence[Shape]) -> Shape:
    """The shape of one tensor with the columns of all: [8, 64] and [8, 64] give [8, 128]."""
    return (*shapes[0][:-1], sum(shape[-1] for shape in shapes))


BEFORE: dict[str, Callable[[Sequence[Shape]], Shape]] = {
    "squeeze": _before_squeeze,
    "transpose": _before_transpose,
    "split": _joined_rows,
    "alternate": _joined_rows,
    "alternate_columns": _joined_columns,
    "by_key_head": _joined_rows,
    "latent": _before_latent,
}
"""Functions that give the shape before a conversion from those of its results, by its name."""


NOWHERE = ShardWeights(None, "")
"""The file of a checkpoint whose numbers do not exist."""


@dataclass(frozen=True)
class RowRange:
    """Consecutive rows of a tensor in GGUF, and their places in a tensor of the checkpoint.

    Rows that the export dealt out in turn are one range here: rows 0 and 1 in GGUF may be rows 0
    and 2 of the checkpoint. Then `stride` is twice the number of columns.
    """

    origin: str
    """The name of the tensor in GGUF, or a metadata key that lists a number of each layer."""

    first: int
    """The index of their first element in that tensor or list."""

    rows: int
    """The number of rows."""

    columns: int
    """The elements of each row."""

    stride: int
    """The distance from one row to the next in the checkpoint, in elements."""

    apart: int = 1
    """The distance from one element of a row to the next in the checkpoint; 1 if not transposed."""

    at: int = 0
    """The index of their first element in the tensor of the checkpoint.

    In the parts of a `Region`, it is counted from the beginning of the region.
    """

    interleave: int = 0
    """The rows of a head whose rotary pairs the export made neighbours; 0 for none."""

    values: str = ""
    """The function of `NUMBER_FUNCTIONS` that the export applied, such as `plus_one`; empty for none."""

    tiles: tuple[int, int] = (1, 1)
    """The groups of columns that the export reordered, and the blocks of each; (1, 1) for none."""

    @property
    def is_packed(self) -> bool:
        """Whether the rows follow each other without gaps in the checkpoint too."""
        return self.apart == 1 and self.stride == self.columns

    @property
    def extent(self) -> int:
        """The elements of the checkpoint from the first to the last one, with gaps between rows."""
        return (self.rows - 1) * self.stride + (self.columns - 1) * self.apart + 1


@dataclass(frozen=True)
class Region:
    """Consecutive elements of a tensor of the checkpoint, which are written together."""

    size: int
    """The number of elements."""

    parts: tuple[RowRange, ...]
    """The rows of the GGUF file that it consists of.

    This is one range without gaps, or several that fill the gaps of each other.
    """


@dataclass(frozen=True)
class RestoredTensor(ConvertedTensor):
    """One tensor of the checkpoint, made of rows of a GGUF file."""

    regions: tuple[Region, ...]
    """All its elements, in order."""

    @property
    def parts(self) -> Iterator[RowRange]:
        """The ranges of all regions."""
        for region in self.regions:
            yield from region.parts


def restore_tensors(
    file: GgufFile, shapes: Mapping[str, Shape], rules: Gguf, sizes: ModelSizes
) -> list[RestoredTensor]:
    """Return the tensors of a checkpoint in F32, each as the rows of the GGUF file that it gets.

    A checkpoint of these shapes is exported without its numbers, by the code of every export. That
    says which rows of the checkpoint each tensor of the file would get, and so where each row of
    the file belongs: where blk.0.attn_q.weight would get rows 0 and 2 of q_proj, its first two rows
    become these again.

    Args:
        file: The GGUF file.
        shapes: The shapes in the checkpoint, by name.
        rules: How the family becomes GGUF.
        sizes: The sizes of the model.

    Raises:
        BadSource: Where a tensor has another shape than such a checkpoint gives.
        UnsupportedBake: Where a conversion leaves elements out.
    """
    # a checkpoint whose tensors follow each other, from byte 0 on
    tensors = _empty_checkpoint(shapes)
    header = Header({tensor.name: tensor for tensor in tensors}, {}, 0)
    starts = [tensor.start for tensor in tensors]  # in bytes
    rows_of = {tensor.name: list[RowRange]() for tensor in tensors}

    for exported in out_tensors([(NOWHERE, header)], rules, sizes, F32):
        _check_shape(exported, file)
        first_in_gguf = 0  # the index of the next element of the tensor in GGUF
        for rows in exported.parts:
            # `rows.start` is the byte of the whole checkpoint at which the rows begin: they are in
            # the last tensor that begins at or before it
            tensors_begun = bisect_right(starts, rows.start)
            tensor = tensors[tensors_begun - 1]
            bytes_of_f32 = 4
            first_in_tensor = (rows.start - tensor.start) // bytes_of_f32
            place = _row_range(exported, rows, first_in_gguf, first_in_tensor)
            rows_of[tensor.name].append(place)
            first_in_gguf += rows.rows * rows.columns

    # each tensor with its rows, or with its single number from the metadata
    restored = []
    for tensor in tensors:
        ranges = rows_of[tensor.name]
        number_in_metadata = _number_in_metadata(tensor.name, rules)
        if number_in_metadata is not None:
            ranges.append(number_in_metadata)
        regions = _regions(tensor, ranges)
        restored.append(
            RestoredTensor(name=tensor.name, dtype="F32", shape=tensor.shape, regions=regions)
        )
    return restored


def _empty_checkpoint(shapes: Mapping[str, Shape]) -> list[Tensor]:
    """The entries of a header for tensors in F32, one behind the other from byte 0 on."""
    tensors = []
    start = 0
    for name, shape in shapes.items():
        stop = start + 4 * prod(shape)
        tensors.append(Tensor(name=name, dtype="F32", shape=shape, start=start, stop=stop))
        start = stop
    return tensors


def _check_shape(out: StoredRows, file: GgufFile) -> None:
    """Raise BadSource where a tensor of a GGUF file has another shape than an export gives it."""
    shape = None
    if out.name in file.tensors:
        shape = file.tensors[out.name].shape
    if shape is None or _without_ones(shape) != _without_ones(out.gguf_shape):
        raise BadSource(
            f"{out.name} has the shape {shape} in the GGUF file, and {out.gguf_shape} is expected;"
            " download it again"
        )


def _row_range(out: StoredRows, rows: Rows, first_in_gguf: int, first_in_tensor: int) -> RowRange:
    """Describe how some rows of a tensor in GGUF become rows of a tensor in a checkpoint.

    An export from checkpoint to GGUF says it in the other direction. It took the rows from places
    that are `stride` elements apart, and the elements of a row from places that are `apart`: there
    they go again. It may also have changed their order or their numbers, which is undone when they
    are read (`_converted_rows`): the rows within a head (`interleave`), groups of columns
    (`tiles`), and the numbers by a function such as "plus_one" (`values`).

    Args:
        out: The tensor as the export would write it.
        rows: Some of its rows, as places in the checkpoint.
        first_in_gguf: The index of their first element in the tensor in GGUF.
        first_in_tensor: The index of their first element in the tensor of the checkpoint.
    """
    return RowRange(
        origin=out.name,
        first=first_in_gguf,
        rows=rows.rows,
        columns=rows.columns,
        stride=rows.stride,
        apart=rows.apart,
        at=first_in_tensor,
        interleave=out.interleave,
        values=out.values,
        tiles=out.tiles,
    )


def _without_ones(shape: Shape) -> Shape:
    """A shape of GGUF, fastest dimension first, without ones at its end: [64, 1] gives [64]."""
    while shape[-1:] == (1,):
        shape = shape[:-1]
    return shape


def _number_in_metadata(name: str, rules: Gguf) -> RowRange | None:
    """The number of a tensor that GGUF has in its metadata; None for all other tensors.

    Apertus has such tensors: model.layers.3.mlp.act_fn.beta is entry 3 of the list xielu.beta.
    """
    layer = LAYER_NUMBER.search(name)
    if layer is None:
        return None
    for key, (ending, _) in rules.scalars.items():
        if name.endswith(f".{ending}"):
            return RowRange(origin=key, first=int(layer[1]), rows=1, columns=1, stride=1)
    return None


def _regions(tensor: Tensor, ranges: list[RowRange]) -> tuple[Region, ...]:
    """The regions of a tensor: each range without gaps, and each group of ranges that overlap.

    Rows that are together in GGUF may have gaps in the checkpoint: every second row, or columns of
    a transposed matrix. Such ranges overlap from their first to their last element, and form one
    region. With rows of 4 elements, rows 0 and 2 (elements 0 to 11) and rows 1 and 3 (elements 4 to
    15) are a region of 16.

    Args:
        tensor: The tensor of the checkpoint.
        ranges: Its rows in the GGUF file, with their places in the tensor.

    Raises:
        UnsupportedBake: Where the ranges do not fill the tensor.
    """
    # groups of ranges that overlap, in the order of the tensor; a range that begins behind all
    # before it begins a group
    groups: list[list[RowRange]] = []
    end_of_ranges = 0
    for rows in sorted(ranges, key=lambda rows: rows.at):
        if rows.at >= end_of_ranges:
            groups.append([])
        groups[-1].append(rows)
        end_of_ranges = max(end_of_ranges, rows.at + rows.extent)

    # a region for each group; its ranges count their places from its beginning
    regions = []
    for group in groups:
        start = group[0].at
        end_of_group = max(rows.at + rows.extent for rows in group)
        placed = tuple(replace(rows, at=rows.at - start) for rows in group)
        regions.append(Region(end_of_group - start, placed))

    # Every element of the tensor must be in a range. No two ranges have the same, since an export
    # writes each once. So it is enough that the ranges have as many elements as the tensor, and end
    # where it ends.
    elements = sum(rows.rows * rows.columns for rows in ranges)
    if elements != prod(tensor.shape) or end_of_ranges != elements:
        why = "the GGUF file lacks some of its elements"
        repair = "take the checkpoint that the file was made from"
        raise UnsupportedBake(f"the tensor {tensor.name}", "a checkpoint", why, repair)
    return tuple(regions)


FLOATS = {F32: "F32", F16: "F16", BF16: "BF16"}
"""The names in safetensors of ggml's types that are not quantised."""


def blocks(file: GgufFile, tensors: Sequence[RestoredTensor]) -> Iterator[memoryview]:
    """Yield the bytes of tensors of the checkpoint in order, in pieces, converted from a GGUF file.

    Raises:
        BadSource: Where the GGUF file is cut off.
    """
    for shard in file.shards:
        shard.path()  # fetched as a whole, where it is not here

    # Threads work ahead of the caller, and the pieces come out in order. The number of elements
    # that wait is limited, to two pieces for each thread: memory does not grow with the model.
    workers = threads()
    pending: deque[tuple[int, Future[NDArray[np.generic]]]] = deque()  # elements, and their data
    elements_waiting = 0
    most_waiting = 2 * workers * PIECE
    with ThreadPoolExecutor(workers) as pool:
        for tensor in tensors:
            for region in _cut_regions(tensor):
                future = pool.submit(_checkpoint_data, file, region, tensor.dtype)
                pending.append((region.size, future))
                elements_waiting += region.size
                while elements_waiting > most_waiting:
                    size, future = pending.popleft()
                    elements_waiting -= size
                    yield _as_bytes(future.result())
        while pending:
            _, future = pending.popleft()
            yield _as_bytes(future.result())


def part(file: GgufFile, tensor: RestoredTensor, start: int, stop: int) -> bytes:
    """Return the bytes [start, stop) of a tensor of the checkpoint, converted from the GGUF file.

    Args:
        file: The GGUF file.
        tensor: The tensor, and where its rows are in the GGUF file.
        start: The first byte.
        stop: The byte behind the last.

    Raises:
        BadSource: Where the GGUF file is cut off.
    """
    # regions are the parts of a tensor that can be converted on their own, in order; only those
    # that have some of the bytes are converted
    pieces = []
    region_start = 0
    for region in _cut_regions(tensor):
        region_stop = region_start + tensor_bytes(tensor.dtype, (region.size,))
        is_needed = region_start < stop and start < region_stop
        if is_needed:
            data = _as_bytes(_checkpoint_data(file, region, tensor.dtype))
            first_byte = max(start - region_start, 0)
            pieces.append(data[first_byte : stop - region_start])
        region_start = region_stop
    return b"".join(pieces)


def is_exact_in(file: GgufFile, tensor: RestoredTensor, dtype: str) -> bool:
    """Return whether a tensor loses nothing in another dtype.

    It is converted to the dtype and exported again, which must give the numbers of the GGUF file.
    An export may have changed the numbers by a function: the norms of Gemma store w, and GGUF has
    1 + w ("plus_one").

    Args:
        file: The GGUF file.
        tensor: The tensor, and where its rows are in the GGUF file.
        dtype: The other dtype, such as "BF16".
    """
    for region in _cut_regions(tensor):
        for part in region.parts:
            function_name = part.values  # empty without a function

            # from GGUF to the checkpoint, by the inverse function
            in_gguf = _float_rows(file, part)
            in_checkpoint = in_gguf
            if function_name:
                inverse_function = INVERSE_FUNCTIONS[function_name]
                in_checkpoint = inverse_function(in_gguf)
            narrow = encode(in_checkpoint, DTYPES[dtype])

            # and back, as an export does it
            exported = widen(narrow.view(STORED[dtype]), dtype)
            if function_name:
                function = NUMBER_FUNCTIONS[function_name]
                exported = function(exported)

            # exactly the same, but for functions such as exp, which libraries round differently
            tolerance = FUNCTION_TOLERANCES.get(function_name, 0.0)
            if not np.allclose(exported, in_gguf, rtol=tolerance, atol=0.0, equal_nan=True):
                return False
    return True


def type_of(file: GgufFile, part: RowRange) -> int:
    """Return ggml's type of the numbers of a part."""
    if part.origin in file.tensors:
        return file.tensors[part.origin].type
    return F32


def _as_bytes(array: NDArray[np.generic]) -> memoryview:
    """The bytes of an array, which are copied only where it is not contiguous."""
    return np.ascontiguousarray(array).reshape(-1).view(np.uint8).data


def _cut_regions(tensor: RestoredTensor) -> Iterator[Region]:
    """Yield the parts of a tensor that can be converted one by one, each small enough for memory.

    A tensor has one region, or several, each made of rows of the GGUF file. A region of consecutive
    rows is cut into pieces of about PIECE elements; one of rows from several places is not.
    """
    for region in tensor.regions:
        part = region.parts[0]
        is_one_range = len(region.parts) == 1 and part.is_packed
        if not is_one_range:
            yield region
            continue

        # Where the export reordered the rows of each head, a piece has whole heads: `interleave` is
        # then the rows of a head, and 0 otherwise. It has at least one head, or one row.
        head_rows = part.interleave or 1
        most_rows = PIECE // max(1, part.columns)
        heads_of_piece = max(1, most_rows // head_rows)
        rows_of_piece = heads_of_piece * head_rows
        for row in range(0, part.rows, rows_of_piece):
            rows = min(rows_of_piece, part.rows - row)
            piece = replace(part, first=part.first + row * part.columns, rows=rows)
            yield Region(rows * part.columns, (piece,))


def _checkpoint_data(file: GgufFile, region: Region, dtype: str) -> NDArray[np.generic]:
    """The elements of a part of a tensor, in the dtype and the order of the checkpoint.

    Args:
        file: The GGUF file.
        region: The part of the tensor, as the rows of the GGUF file that it is made of.
        dtype: The dtype of the checkpoint.
    """
    # usually the part is one range of rows, which follow each other
    first_part = region.parts[0]
    if first_part.is_packed:
        return _converted_rows(file, first_part, dtype)

    # Else it has several ranges, each in the gaps of the others: of four rows with 4 elements each,
    # one has the rows 0 and 2, and another the rows 1 and 3. A range is written through a view
    # [rows, columns] of its places. The view of the former begins at element 0, a row is 8 elements
    # after the one before (`stride`), and a column 1 element (`apart`).
    elements = np.empty(region.size, STORED[dtype])
    for part in region.parts:
        bytes_to_next_row = part.stride * elements.itemsize
        bytes_to_next_column = part.apart * elements.itemsize
        places = np.lib.stride_tricks.as_strided(
            elements[part.at :],
            shape=(part.rows, part.columns),
            strides=(bytes_to_next_row, bytes_to_next_column),
        )
        places[:] = _converted_rows(file, part, dtype).view(elements.dtype)
    return elements


def _converted_rows(file: GgufFile, piece: RowRange, dtype: str) -> NDArray[np.generic]:
    """Rows of the GGUF file in the dtype and the order of the checkpoint, [rows, columns]."""
    # rows of the right dtype are only moved, which keeps their bits (also those of NaN)
    if FLOATS.get(type_of(file, piece)) == dtype and not piece.values:
        return _restore_order(_stored_rows(file, piece), piece)
    values = _float_rows(file, piece)
    if piece.values:
        values = INVERSE_FUNCTIONS[piece.values](values)
    return encode(np.ascontiguousarray(values), DTYPES[dtype])


def _float_rows(file: GgufFile, piece: RowRange) -> NDArray[np.float32]:
    """Rows of the GGUF file as 32-bit floats in the order of the checkpoint, [rows, columns]."""
    kind = type_of(file, piece)
    raw = _stored_rows(file, piece)
    if kind in FLOATS:
        return _restore_order(widen(raw, FLOATS[kind]), piece)
    import gguf

    values = gguf.quants.dequantize(raw, gguf.GGMLQuantizationType(kind))
    return _restore_order(values.reshape(piece.rows, piece.columns), piece)


def _stored_rows(file: GgufFile, piece: RowRange) -> NDArray[np.generic]:
    """Read rows of a GGUF file in their stored form: floats [rows, columns], or [rows, bytes].

    Args:
        file: The GGUF file.
        piece: The rows: the name of their tensor, `origin`, and their first element there.
    """
    # some tensors of a checkpoint have a single number in each layer, which GGUF has in a metadata
    # key with a list, and not in a tensor
    is_metadata = piece.origin not in file.tensors
    if is_metadata:
        numbers = np.array(file.get(piece.origin), "<f4")
        number_of_layer = numbers[piece.first : piece.first + 1]
        return number_of_layer.reshape(1, 1)

    # a type stores its numbers in blocks: in Q8_0, 32 numbers take 34 bytes, and in F32 one takes 4
    info = file.tensors[piece.origin]
    kind = TYPES[info.type]
    blocks = piece.rows * piece.columns // kind.block
    blocks_before = piece.first // kind.block
    start = blocks_before * kind.size
    size = blocks * kind.size
    raw = np.frombuffer(file.read(piece.origin, start, size), np.uint8)
    if info.type in FLOATS:
        return raw.view(STORED[FLOATS[info.type]]).reshape(piece.rows, piece.columns)
    return raw.reshape(piece.rows, -1)


def _restore_order(values: NDArray[S], piece: RowRange) -> NDArray[S]:
    """Give rows, and the columns of each, the order of the checkpoint, which the export changed.

    Args:
        values: The rows as GGUF has them, [rows, columns].
        piece: Their range. `interleave` is the rows of a head whose rotary pairs the export made
            neighbours; `tiles` the groups of columns, and the blocks of each, that it dealt out.
    """
    shape = (piece.rows, piece.columns)
    if piece.interleave:
        # rows: [heads, pairs, 2] in GGUF become [heads, 2, pairs], where the two rows of a pair are
        # half a head apart; in a head with 4 rows, the order 0 2 1 3 becomes 0 1 2 3
        pairs_of_head = piece.interleave // 2
        in_gguf = values.reshape(-1, pairs_of_head, 2, piece.columns)
        values = in_gguf.swapaxes(1, 2).reshape(shape)
    if piece.tiles != (1, 1):
        # columns: [blocks, groups, width] in GGUF become [groups, blocks, width]; with 2 groups of
        # 3 blocks, a0 b0 a1 b1 a2 b2 becomes a0 a1 a2 b0 b1 b2
        groups, blocks_of_group = piece.tiles
        in_gguf = values.reshape(piece.rows, blocks_of_group, groups, -1)
        values = in_gguf.swapaxes(1, 2).reshape(shape)
    return values
