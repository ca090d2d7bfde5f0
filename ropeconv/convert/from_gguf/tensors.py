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


NO_FILE = ShardWeights(None, "")
"""The file of a checkpoint whose numbers do not exist."""


@dataclass(frozen=True)
class RowRange:
    """Consecutive rows of a tensor in GGUF, and their places in a tensor of the checkpoint.

    Rows that the export dealt out in turn are one range here: rows 0 and 1 in GGUF may be rows 0
    and 2 of the checkpoint. Then `row_stride` is twice the number of columns.
    """

    origin: str
    """The name of the tensor in GGUF, or a metadata key that lists a number of each layer."""

    first_in_gguf: int
    """The index of their first element in that tensor or list."""

    row_count: int
    """The number of rows."""

    columns: int
    """The elements of each row."""

    row_stride: int
    """The distance from one row to the next in the checkpoint, in elements."""

    column_stride: int = 1
    """The distance from one element of a row to the next in the checkpoint; 1 if not transposed."""

    first_in_tensor: int = 0
    """The index of their first element in the tensor of the checkpoint.

    In the parts of a `Region`, it is counted from the beginning of the region.
    """

    interleave: int = 0
    """The rows of a head whose rotary pairs the export made neighbours; 0 for none."""

    values: str = ""
    """The function by which the export changed the numbers, such as "plus_one"; empty for none."""

    tiles: tuple[int, int] = (1, 1)
    """The groups of columns that the export reordered, and the blocks of each; (1, 1) for none."""

    @property
    def is_packed(self) -> bool:
        """Whether the rows follow each other without gaps in the checkpoint too."""
        return self.column_stride == 1 and self.row_stride == self.columns

    @property
    def end_in_tensor(self) -> int:
        """The index of the element behind their last one in the tensor of the checkpoint."""
        first_of_last_row = self.first_in_tensor + (self.row_count - 1) * self.row_stride
        return first_of_last_row + (self.columns - 1) * self.column_stride + 1


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
    """Return the plan of a checkpoint: for each of its tensors, the rows of a GGUF file to copy.

    The conversion from a checkpoint to GGUF is planned and inverted. `out_tensors` plans it for a
    checkpoint with these shapes. If it takes the first two rows of blk.0.attn_q.weight from the
    rows 0 and 2 of q_proj, the first two rows of blk.0.attn_q.weight are copied to the rows 0 and 2
    of q_proj.

    Args:
        file: The GGUF file.
        shapes: The shape of each tensor of the checkpoint, by name.
        rules: How checkpoints of the family become GGUF.
        sizes: The sizes of the model.

    Returns:
        The tensors of the checkpoint, with the dtype F32.

    Raises:
        BadSource: Where a tensor of the file does not have the shape that the conversion gives.
        UnsupportedBake: Where the conversion leaves out elements of a tensor.
    """
    # the headers of a checkpoint whose tensors follow each other, from byte 0 on
    tensors = _empty_checkpoint(shapes)
    header = Header({tensor.name: tensor for tensor in tensors}, {}, 0)
    starts = [tensor.start for tensor in tensors]  # in bytes
    ranges_of = {tensor.name: list[RowRange]() for tensor in tensors}

    for exported in out_tensors([(NO_FILE, header)], rules, sizes, F32):
        _check_shape(exported, file)
        # A tensor in GGUF consists of rows of the checkpoint, in this order. `first_in_gguf` is the
        # index of the first element of the current rows.
        first_in_gguf = 0
        for source_rows in exported.parts:
            # the tensor of the checkpoint with these rows: the last tensor that starts at or before
            # their first byte
            tensors_begun = bisect_right(starts, source_rows.start)
            tensor = tensors[tensors_begun - 1]
            bytes_of_f32 = 4
            first_in_tensor = (source_rows.start - tensor.start) // bytes_of_f32
            rows_to_copy = _invert_rows(
                exported, source_rows, first_in_gguf=first_in_gguf, first_in_tensor=first_in_tensor
            )
            ranges_of[tensor.name].append(rows_to_copy)
            first_in_gguf += source_rows.rows * source_rows.columns

    restored = []
    for tensor in tensors:
        ranges = ranges_of[tensor.name]
        # Apertus: GGUF has the number of a tensor such as mlp.act_fn.beta in a metadata key
        number_in_metadata = _number_in_metadata(tensor.name, rules)
        if number_in_metadata is not None:
            ranges.append(number_in_metadata)
        regions = _join_regions(tensor, ranges)
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


def _invert_rows(
    exported: StoredRows, source_rows: Rows, *, first_in_gguf: int, first_in_tensor: int
) -> RowRange:
    """Return the copy of rows from GGUF to a checkpoint that inverts their copy to GGUF.

    Args:
        exported: The tensor in GGUF, as the conversion to GGUF would write it.
        source_rows: The places in the checkpoint from which it would take these rows.
        first_in_gguf: The index of their first element in the tensor in GGUF.
        first_in_tensor: The index of their first element in the tensor of the checkpoint.
    """
    return RowRange(
        origin=exported.name,
        first_in_gguf=first_in_gguf,
        row_count=source_rows.rows,
        columns=source_rows.columns,
        # the places in the checkpoint: its elements from one row, and one column, to the next
        first_in_tensor=first_in_tensor,
        row_stride=source_rows.stride,
        column_stride=source_rows.apart,
        # changes by the conversion to GGUF, which `_converted_rows` undoes: the order of rows
        # within a head, the order of groups of columns, and a function such as "plus_one"
        interleave=exported.interleave,
        tiles=exported.tiles,
        values=exported.values,
    )


def _without_ones(shape: Shape) -> Shape:
    """A shape of GGUF, fastest dimension first, without ones at its end: [64, 1] gives [64]."""
    while shape[-1:] == (1,):
        shape = shape[:-1]
    return shape


def _number_in_metadata(name: str, rules: Gguf) -> RowRange | None:
    """Return the entry of a metadata list that a checkpoint has as a tensor with one number.

    For Apertus, the tensor model.layers.3.mlp.act_fn.beta is entry 3 of the list xielu.beta.

    Args:
        name: The name of a tensor in the checkpoint.
        rules: How checkpoints of the family become GGUF. `scalars` has the ending of the tensor's
            name and its shape for each key: {"xielu.beta": ("mlp.act_fn.beta", (1,))}.

    Returns:
        The entry as one row with one column, or None for a tensor that is a tensor in GGUF too.
    """
    layer = LAYER_NUMBER.search(name)
    if layer is None:
        return None
    layer_number = int(layer[1])
    for key, (ending, _shape) in rules.scalars.items():
        if name.endswith(f".{ending}"):
            return RowRange(
                origin=key, first_in_gguf=layer_number, row_count=1, columns=1, row_stride=1
            )
    return None


def _join_regions(tensor: Tensor, ranges: list[RowRange]) -> tuple[Region, ...]:
    """Return the regions of a tensor: spans of elements that are copied from GGUF together.

    A range of rows in GGUF may have gaps in the checkpoint, which other ranges fill. For rows of 4
    elements, a range with the rows 0 and 2 spans the elements 0 to 11, and a range with the rows 1
    and 3 the elements 4 to 15. Ranges that overlap form one region, here the elements 0 to 15.

    Args:
        tensor: The tensor of the checkpoint.
        ranges: The ranges of rows in the GGUF file from which the tensor is copied.

    Raises:
        UnsupportedBake: Where the ranges do not fill the tensor.
    """
    # Groups of overlapping ranges. A range that starts behind all earlier ranges starts a group.
    groups: list[list[RowRange]] = []
    end_of_ranges = 0
    for rows in sorted(ranges, key=lambda rows: rows.first_in_tensor):
        if rows.first_in_tensor >= end_of_ranges:
            groups.append([])
        groups[-1].append(rows)
        end_of_ranges = max(end_of_ranges, rows.end_in_tensor)

    # a region for each group, whose ranges have indexes relative to the start of the region
    regions = []
    for group in groups:
        start_of_region = group[0].first_in_tensor
        end_of_region = max(rows.end_in_tensor for rows in group)
        relative_ranges = []
        for rows in group:
            relative_start = rows.first_in_tensor - start_of_region
            relative_ranges.append(replace(rows, first_in_tensor=relative_start))
        regions.append(Region(size=end_of_region - start_of_region, parts=tuple(relative_ranges)))

    # The ranges must fill the tensor. No element is in two ranges, since a conversion to GGUF
    # writes each element once. So nothing is missing where the number of elements is right and the
    # last range ends at this number.
    elements_in_ranges = sum(rows.row_count * rows.columns for rows in ranges)
    has_all_elements = elements_in_ranges == prod(tensor.shape)
    has_no_gap = end_of_ranges == elements_in_ranges
    if not has_all_elements or not has_no_gap:
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

            # exactly the same, except for functions such as exp, which libraries round differently
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
    """Yield the regions of a tensor, spans of its elements, cut into pieces that fit into memory.

    A region whose rows are consecutive in GGUF and in the checkpoint is cut into pieces of about
    262,144 elements (`PIECE`). All other regions are yielded whole.
    """
    for region in tensor.regions:
        # several ranges of rows, or one range with gaps
        rows, *further_ranges = region.parts
        is_consecutive = not further_ranges and rows.is_packed
        if not is_consecutive:
            yield region
            continue

        # Rows of one head stay together where the conversion to GGUF changed their order. A head
        # has `interleave` rows then; 0 means an unchanged order.
        rows_of_head = rows.interleave or 1
        most_rows = PIECE // max(1, rows.columns)
        heads_of_piece = max(1, most_rows // rows_of_head)
        rows_of_piece = heads_of_piece * rows_of_head
        for first_row in range(0, rows.row_count, rows_of_piece):
            row_count = min(rows_of_piece, rows.row_count - first_row)
            first_element = rows.first_in_gguf + first_row * rows.columns
            piece = replace(rows, first_in_gguf=first_element, row_count=row_count)
            yield Region(size=row_count * rows.columns, parts=(piece,))


def _checkpoint_data(file: GgufFile, region: Region, dtype: str) -> NDArray[np.generic]:
    """Read consecutive elements of a checkpoint's tensor from a GGUF file.

    Args:
        file: The GGUF file.
        region: The elements, as the ranges of rows in the GGUF file that they consist of.
        dtype: The dtype of the result, such as "BF16".
    """
    # most regions: one range of rows without gaps (`is_packed`)
    first_range = region.parts[0]
    if first_range.is_packed:
        return _converted_rows(file, first_range, dtype)

    # Several ranges of rows, each with gaps that the others fill. For rows of 4 elements, a range
    # with the rows 0 and 2 is written through a strided view of the elements: it starts at element
    # 0, and its second row starts 8 elements later.
    elements = np.empty(region.size, STORED[dtype])
    for rows in region.parts:
        bytes_to_next_row = rows.row_stride * elements.itemsize
        bytes_to_next_column = rows.column_stride * elements.itemsize
        view_of_rows = np.lib.stride_tricks.as_strided(
            elements[rows.first_in_tensor :],
            shape=(rows.row_count, rows.columns),
            strides=(bytes_to_next_row, bytes_to_next_column),
        )
        view_of_rows[:] = _converted_rows(file, rows, dtype).view(elements.dtype)
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
    return _restore_order(values.reshape(piece.row_count, piece.columns), piece)


def _stored_rows(file: GgufFile, piece: RowRange) -> NDArray[np.generic]:
    """Read rows of a tensor from a GGUF file, without dequantising them.

    Args:
        file: The GGUF file.
        piece: The rows. `piece.origin` is the name of the tensor, or of a metadata list for a
            tensor that GGUF stores there.

    Returns:
        Floats [rows, columns] for a type such as BF16, or bytes [rows, bytes] for a quantised type.
    """
    # Apertus: mlp.act_fn.beta of layer 3 is entry 3 of a metadata list
    is_in_metadata = piece.origin not in file.tensors
    if is_in_metadata:
        layer = piece.first_in_gguf
        numbers = np.array(file.get(piece.origin), "<f4")
        return numbers[layer : layer + 1].reshape(1, 1)

    # a type stores its elements in blocks: 32 elements in 34 bytes for Q8_0, one in 4 for F32
    info = file.tensors[piece.origin]
    gguf_type = TYPES[info.type]
    blocks_before = piece.first_in_gguf // gguf_type.block
    blocks = piece.row_count * piece.columns // gguf_type.block
    first_byte = blocks_before * gguf_type.size
    byte_count = blocks * gguf_type.size
    stored = np.frombuffer(file.read(piece.origin, first_byte, byte_count), np.uint8)
    if info.type in FLOATS:
        return stored.view(STORED[FLOATS[info.type]]).reshape(piece.row_count, piece.columns)
    return stored.reshape(piece.row_count, -1)


def _restore_order(values: NDArray[S], piece: RowRange) -> NDArray[S]:
    """Return rows of a GGUF file in the order of the checkpoint, which the export has changed.

    Args:
        values: The rows as GGUF has them, [rows, columns].
        piece: The changes of the order. `piece.interleave` is the number of rows of a head whose
            rows the export reordered, or 0. `piece.tiles` is the number of groups of columns that
            the export reordered, and the number of blocks in each group, or (1, 1).
    """
    shape = (piece.row_count, piece.columns)
    if piece.interleave:
        # In GGUF the two rows of a rotary pair are neighbours, [heads, pairs, 2, columns]. In the
        # checkpoint they are half a head apart, [heads, 2, pairs, columns]. In a head with the rows
        # 0 to 3, GGUF has the order 0 2 1 3.
        pairs_of_head = piece.interleave // 2
        by_pair = values.reshape(-1, pairs_of_head, 2, piece.columns)
        values = by_pair.swapaxes(1, 2).reshape(shape)
    if piece.tiles != (1, 1):
        # GGUF has the first block of every group, then every second block: [rows, blocks, groups,
        # columns of a block]. With the groups a and b of 3 blocks, that is a0 b0 a1 b1 a2 b2. In
        # the checkpoint it is a0 a1 a2 b0 b1 b2, [rows, groups, blocks, columns of a block].
        groups, blocks_of_group = piece.tiles
        by_block = values.reshape(piece.row_count, blocks_of_group, groups, -1)
        values = by_block.swapaxes(1, 2).reshape(shape)
    return values
