"""Writes converted tensors by threads.

Where bytes do not change, the kernel copies ranges. Else each piece is read, converted and written
at its place by one thread, so that memory holds only the current pieces, in any order. Several
files that differ in their types are written together, from one reading.
"""

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, ThreadPoolExecutor, wait
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import partial
from itertools import islice
from pathlib import Path
from typing import BinaryIO, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ...formats.disk import Advance, copy_part, threads, write_at
from ...formats.gguf.header import MXFP4, Q8_0, TYPES, TensorInfo
from ...formats.safetensors import STORED, widen
from .rows import DTYPES, NIBBLES, NUMBER_FUNCTIONS, Rows, StoredRows

PIECE = 1 << 18
"""Elements of a piece: numpy works long enough at a time for threads to run side by side."""
PIECES = 8
"""Pieces that a thread converts at a time."""
COPY = 1 << 26
"""Bytes that a thread copies at a time: progress and interruptions wait for that."""

Task = Callable[[], int]
"""Writes a part of the file, and returns the number of its bytes."""


@dataclass(frozen=True)
class TensorFile:
    """A GGUF file that has its header, and the tensors that are written into it."""

    path: Path
    """The file."""

    start: int
    """The first byte of its data."""

    tensors: list[StoredRows]
    infos: Mapping[str, TensorInfo]
    """The offsets of the tensors, by name."""


@dataclass(frozen=True)
class TensorPlace:
    """A tensor of a file, and the byte of the file at which it begins."""

    tensor: StoredRows
    start: int
    file: BinaryIO


def are_alike(first: Sequence[StoredRows], second: Sequence[StoredRows]) -> bool:
    """Return whether two files have the same tensors in the same order, but for their types."""
    if len(first) != len(second):
        return False
    pairs = zip(first, second, strict=True)
    return all(one == replace(other, type=one.type) for one, other in pairs)


def write_tensors(files: Sequence[TensorFile], advance: Advance) -> None:
    """Write all tensors into GGUF files that differ in their types, and read each weight once.

    The tasks of `_tasks` run in several threads, in any order.

    Args:
        files: The files, whose tensors are alike.
        advance: Always called in this thread.

    Raises:
        OSError: Where a file cannot be written; all threads end then, as for the other.
        BadSource: Where a file of the checkpoint was cut off.
    """
    with ExitStack() as opened:
        writers = []
        for file in files:
            writer = opened.enter_context(file.path.open("r+b"))
            # a file has its length from the beginning, so that tasks write their parts in any order
            infos = file.infos.values()
            size = max((info.offset + info.size for info in infos), default=0)
            writer.truncate(file.start + size)
            writers.append(writer)
        tasks = _tasks_of_all(files, writers)

        # A large model has more tasks than a queue should hold. Two tasks for each thread keep all
        # of them busy, and when one is done, the next is submitted.
        pool = ThreadPoolExecutor(threads())
        try:
            submitted = {pool.submit(task) for task in islice(tasks, 2 * threads())}
            while submitted:
                done, submitted = wait(submitted, return_when=FIRST_COMPLETED)
                for future in done:
                    bytes_written = future.result()  # raises the error of the task
                    advance(bytes_written)
                    next_task = next(tasks, None)
                    if next_task is not None:
                        submitted.add(pool.submit(next_task))
        finally:
            pool.shutdown(cancel_futures=True)


def _tasks_of_all(files: Sequence[TensorFile], writers: Sequence[BinaryIO]) -> Iterator[Task]:
    """The tasks that write all tensors into all files."""
    for alike in zip(*(file.tensors for file in files), strict=True):
        places = []
        for tensor, file, writer in zip(alike, files, writers, strict=True):
            start = file.start + file.infos[tensor.name].offset
            places.append(TensorPlace(tensor, start, writer))
        yield from _tasks(places)


def output_blocks(tensor: StoredRows) -> Iterator[bytes]:
    """Yield the bytes of a tensor in the output, in pieces."""
    if tensor.data:
        yield tensor.data
    for rows, _ in _pieces(tensor, first_byte=0):
        [encoded] = _output_rows(tensor, rows, (tensor.type,)).values()
        yield encoded.tobytes()


def _tasks(places: Sequence[TensorPlace]) -> Iterator[Task]:
    """Yield functions that write one tensor into all output files, each a part of the work.

    The output files may have the tensor in several types. Each function has no arguments, and
    returns the number of bytes that it has written.

    Args:
        places: For each output file, the tensor with its type there, and its first byte.
    """
    places_to_convert = []
    for place in places:
        tensor = place.tensor

        # a tensor that ropeconv has computed, whose bytes are in memory
        if tensor.data:
            yield partial(write_at, place.file.fileno(), tensor.data, place.start)
            continue

        # A tensor whose bytes are copied. `interleave` and `tiles` change the order of rows and
        # columns, and `values` is the name of a function of the numbers.
        keeps_order = not tensor.interleave and tensor.tiles == (1, 1)
        keeps_numbers = not tensor.values
        keeps_type = all(_is_copied(part, tensor.type) for part in tensor.parts)
        if keeps_order and keeps_numbers and keeps_type:
            yield from _copy_tasks(tensor, place.start, place.file)
            continue

        places_to_convert.append(place)
    if not places_to_convert:
        return

    # A tensor to convert, in pieces of some rows. `zip` joins the places of the same rows in all
    # files, so that a piece is read once. A function converts 8 pieces (`PIECES`).
    pieces_by_file = [_pieces(place.tensor, place.start) for place in places_to_convert]
    pieces = zip(*pieces_by_file, strict=True)
    next_pieces = list(islice(pieces, PIECES))
    while next_pieces:
        yield partial(_convert, places_to_convert, next_pieces)
        next_pieces = list(islice(pieces, PIECES))


def _copy_tasks(tensor: StoredRows, place: int, target: BinaryIO) -> Iterator[Task]:
    """The tasks that copy a tensor whose bytes do not change, from the byte `place` on.

    The kernel copies them, or lets both files share the blocks on the disk.
    """
    for part in tensor.parts:
        assert part.file.path is not None
        for offset in range(0, part.extent, COPY):
            yield partial(
                _copy,
                source=part.file.path,
                start=part.start + offset,
                target=target.name,
                place=place + offset,
                size=min(COPY, part.extent - offset),
            )
        place += part.extent  # the parts follow each other in the output


def _is_copied(part: Rows, type: int) -> bool:
    """Whether the bytes of a part are those of the output, in a file of this machine."""
    if not part.is_one_piece or part.factors or part.file.path is None:
        return False
    return DTYPES[part.dtype] == type and type != MXFP4


class PlacedRows(NamedTuple):
    """Rows of the checkpoint, and where they are written."""

    rows: Rows
    first_byte: int
    """The byte of the output at which they begin."""


def _pieces(tensor: StoredRows, first_byte: int) -> Iterator[PlacedRows]:
    """Yield some rows of a tensor at a time; `first_byte` is the place of the first of them."""
    kind = TYPES[tensor.type]
    # a piece has whole heads, since rows move within a head; `interleave` is the rows of a head
    head_rows = tensor.interleave or 1
    for part in tensor.parts:
        rows_of_piece = PIECE // max(1, part.columns)
        step = max(head_rows, rows_of_piece // head_rows * head_rows)
        for first_row in range(0, part.rows, step):
            row_count = min(step, part.rows - first_row)
            yield PlacedRows(part.part(first_row, row_count), first_byte)
            first_byte += row_count * part.columns // kind.block * kind.size


def _convert(places: Sequence[TensorPlace], pieces: list[tuple[PlacedRows, ...]]) -> int:
    """Convert some rows of a tensor, and write them into each output file.

    The output files may have the tensor in several types, such as F16 and Q8_0. The rows are read
    once, and encoded in each type.

    Args:
        places: For each output file, the tensor with its type there.
        pieces: The pieces of the tensor to convert. A piece is a tuple with an entry for each
            output file: the rows, which are the same in all entries, and their first byte in that
            file.

    Returns:
        The number of bytes written.
    """
    tensor = places[0].tensor  # the files differ only in the type
    types = {place.tensor.type for place in places}
    written = 0
    for piece in pieces:
        rows = piece[0].rows
        rows_by_type = _output_rows(tensor, rows, types)
        for place, rows_in_file in zip(places, piece, strict=True):
            data = rows_by_type[place.tensor.type].data
            written += write_at(place.file.fileno(), data, rows_in_file.first_byte)
    return written


def _copy(source: Path, start: int, target: str, place: int, size: int) -> int:
    """Copy a part of a file. Returns the number of bytes."""
    # the writer is opened anew, since copies move its position
    with source.open("rb") as reader, open(target, "r+b") as writer:
        copy_part(reader, start, writer, place, size)
    return size


def _output_rows(
    tensor: StoredRows, rows: Rows, types: Collection[int]
) -> dict[int, NDArray[np.generic]]:
    """Read some rows of a checkpoint, and convert them to each type of the output files.

    Args:
        tensor: The tensor of the rows, with the changes of its order and its numbers.
        rows: The place of the rows in the checkpoint.
        types: The ggml types of the output files.

    Returns:
        Contiguous arrays by type, {F16: [rows, columns], Q8_0: [rows, bytes]}, whose bytes are
        written to the output files.
    """
    # gpt-oss: MXFP4 is only written as MXFP4
    if rows.dtype == "MXFP4":
        return {MXFP4: mxfp4(rows)}

    # the type of the checkpoint: numbers that do not change keep their bits
    stored = _reorder(tensor, _checkpoint_rows(rows))
    stored_type = DTYPES[rows.dtype]
    function_name = tensor.values  # a function of the numbers, "plus_one" for Gemma's norms, or ""
    numbers_change = bool(function_name or rows.factors)
    by_type: dict[int, NDArray[np.generic]] = {}
    if stored_type in types and not numbers_change:
        by_type[stored_type] = np.ascontiguousarray(stored)
    other_types = [ggml_type for ggml_type in types if ggml_type not in by_type]
    if not other_types:
        return by_type

    # other types: changes are computed in float32, as in llama.cpp's converter
    numbers = widen(stored, rows.dtype)
    for factor in rows.factors:
        numbers = numbers * np.float32(factor)
    if function_name:
        change = NUMBER_FUNCTIONS[function_name]
        numbers = change(numbers)
    for ggml_type in other_types:
        by_type[ggml_type] = np.ascontiguousarray(encode(numbers, ggml_type))
    return by_type


def _reorder(tensor: StoredRows, stored: NDArray[np.generic]) -> NDArray[np.generic]:
    """Put rows and columns into the order of the output; the numbers themselves do not change.

    Args:
        tensor: The tensor, with the changes of its order.
        stored: Rows as the checkpoint has them, [rows, columns].
    """
    shape = stored.shape
    row_count, column_count = shape

    # `tiles` (2, 3): the columns a0 a1 a2 b0 b1 b2 become a0 b0 a1 b1 a2 b2, since each row is
    # [groups, blocks, width] and becomes [blocks, groups, width]
    if tensor.tiles != (1, 1):
        by_group = stored.reshape(row_count, *tensor.tiles, -1)
        stored = by_group.swapaxes(1, 2).reshape(shape)

    # `interleave` 4: the rows 0 1 2 3 of each head become 0 2 1 3, since the rows are
    # [heads, 2, pairs] and become [heads, pairs, 2]
    if tensor.interleave:
        pairs = tensor.interleave // 2
        by_half = stored.reshape(-1, 2, pairs, column_count)
        stored = by_half.swapaxes(1, 2).reshape(shape)
    return stored


def _checkpoint_rows(rows: Rows) -> NDArray[np.generic]:
    """Read rows from a file of a checkpoint, as an array [rows, columns] in the dtype of the file.

    Args:
        rows: The place of the rows in the file. There may be gaps between them, such as for every
            second row of a matrix.
    """
    dtype = np.dtype(STORED[rows.dtype])
    row_count = rows.rows
    shape = (row_count, rows.columns)

    # rows of zeros, which no file has
    if rows.zeros:
        return np.zeros(shape, dtype)

    # all numbers between the start of the first row and the end of the last row
    has_gaps = not rows.is_one_piece
    bytes_with_gaps = rows.extent
    numbers_with_gaps = bytes_with_gaps // dtype.itemsize
    stored = rows.file.numbers(STORED[rows.dtype], rows.start, numbers_with_gaps, sparse=has_gaps)
    if not has_gaps:
        return stored.reshape(shape)

    # a strided view without the gaps; copying it reads only the pages of the file that it touches
    bytes_to_next_row = rows.stride * dtype.itemsize  # `stride` and `apart` count elements
    bytes_to_next_column = rows.apart * dtype.itemsize
    view = np.lib.stride_tricks.as_strided(
        stored, shape=shape, strides=(bytes_to_next_row, bytes_to_next_column)
    )
    return np.array(view)


def mxfp4(rows: Rows) -> NDArray[np.uint8]:
    """Return rows of a checkpoint in MXFP4 in ggml's order of the bytes.

    A number has 4 bits, so a block is 16 bytes (NIBBLES) and a scale of one byte. Checkpoints have
    the scales in another tensor, and ggml has them in front of each block.

    Args:
        rows: Rows of a checkpoint, which has the scales of its blocks apart from their numbers.

    Returns:
        uint8 [blocks, 17]: the scale of a block, then its numbers in 16 bytes.
    """
    # the distance from row to row in the file, in blocks: with a gap where other rows are between
    blocks_of_row = rows.columns // TYPES[MXFP4].block
    stride = rows.stride // TYPES[MXFP4].block
    blocks_in_file = (rows.rows - 1) * stride + blocks_of_row
    stored = rows.file.numbers("u1", rows.start, blocks_in_file * NIBBLES, sparse=True)
    stored_scales = rows.file.numbers("u1", rows.scales, blocks_in_file, sparse=True)

    # views without the gaps: numbers [blocks, 16 bytes], and scales [blocks]
    packed = np.lib.stride_tricks.as_strided(
        stored,
        shape=(rows.rows, blocks_of_row, NIBBLES),
        strides=(stride * NIBBLES, NIBBLES, 1),
    ).reshape(-1, NIBBLES)
    scales = np.lib.stride_tricks.as_strided(
        stored_scales, shape=(rows.rows, blocks_of_row), strides=(stride, 1)
    ).reshape(-1)

    # A byte of a checkpoint has the numbers (0, 1) of a block, the next one (2, 3), and so on, the
    # first in its low half. In ggml bytes have (0, 16), (1, 17), ... (dequantize_row_mxfp4 in
    # ggml-quants.c). So all 32 numbers of a block are put in a row, and its halves are combined.
    low = packed & 0x0F
    high = packed >> 4
    numbers = np.stack([low, high], axis=2).reshape(-1, 2 * NIBBLES)
    first_half = numbers[:, :NIBBLES]
    second_half = numbers[:, NIBBLES:]
    out = np.empty((len(packed), NIBBLES + 1), np.uint8)
    out[:, 0] = scales
    out[:, 1:] = first_half | second_half << 4
    return out


def encode(values: NDArray[np.float32], type: int) -> NDArray[np.generic]:
    """Convert rows of float32 to a ggml type, as an array with the bytes that a file has.

    Args:
        values: The rows.
        type: ggml's number of the type.
    """
    import gguf

    # Blocks of zeros divide by 0, and large numbers overflow in F16: no reason for a warning. For
    # Q8_0, gguf-py is asked only where the fast way cannot do it.
    with np.errstate(divide="ignore", over="ignore", invalid="ignore"):
        if type == Q8_0:
            encoded = _q8_0(values)
            if encoded is not None:
                return encoded
        return gguf.quants.quantize(values, gguf.GGMLQuantizationType(type))


def _q8_0(values: NDArray[np.float32]) -> NDArray[np.uint8] | None:
    """Return rows of numbers as bytes of Q8_0, the same as from gguf-py in half the time.

    A block of 32 numbers x is stored as a scale d = max |x| / 127, in 16 bits, and the whole
    numbers round(x / d), in 8 bits each. A half is rounded away from zero.

    Args:
        values: The rows, [rows, columns].

    Returns:
        uint8 [rows, columns / 32 * 34]; None where some d or 1 / d is infinite or not a number.
    """
    blocks = values.reshape(-1, TYPES[Q8_0].block)  # [blocks, 32]

    # d, and 2 / d; a block of zeros has d = 0, and 0 for 2 / d too
    scale = _largest_magnitudes(blocks) / np.float32(127)
    two_over_scale = np.where(scale == 0, np.float32(0), 2 / scale)
    is_finite = scale.max() < np.inf and two_over_scale.max() < np.inf  # false for NaN too
    if not is_finite:
        return None

    # round(x / d) by way of 2 x / d, which is cut to a whole number (`astype`): for x / d = 1.7
    # that is 3, and half of it, rounded away from zero, is 2
    doubled = (blocks * two_over_scale).astype(np.int16)
    rounded = _halve(doubled)

    # a block of 34 bytes: the scale as float16, then 32 numbers of 8 bits
    out = np.empty((len(blocks), TYPES[Q8_0].size), np.uint8)
    out[:, :2] = scale.astype(np.float16).view(np.uint8)
    out.view(np.int8)[:, 2:] = rounded
    return out.reshape(len(values), -1)


def _largest_magnitudes(blocks: NDArray[np.float32]) -> NDArray[np.float32]:
    """Return max |x| of each block of numbers x: [blocks, 32] gives [blocks, 1].

    The floats are compared as the integers that have their bits, which is faster. Without the
    highest bit, which is the sign, both have the same order.
    """
    bits_without_sign = blocks.view(np.int32) & 0x7FFFFFFF
    largest: NDArray[np.float32] = bits_without_sign.max(axis=1, keepdims=True).view(np.float32)
    return largest


def _halve(doubled: NDArray[np.int16]) -> NDArray[np.int16]:
    """Return t / 2 for whole numbers t, with a half rounded away from zero: 3 gives 2, -3 gives -2.

    So a number y is rounded by way of t, the integer part of 2 y: y = 1.7 has t = 3 and gives 2,
    and y = 1.4 has t = 2 and gives 1. The array is changed.
    """
    # a shift by one bit divides by 2 and rounds down, which is away from zero for negative numbers;
    # 1 is added to the others
    minus_one_if_negative = doubled >> 15
    doubled += 1 + minus_one_if_negative
    doubled >>= 1
    return doubled
