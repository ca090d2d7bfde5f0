"""Findings, the differences of an output from its plan, and the comparison of a file with ranges of
expected bytes.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from itertools import chain
from pathlib import Path
from threading import Lock

import numpy as np
from numpy.typing import NDArray

from ..convert.fold import Fold, Scaling, scale_numbers
from ..errors import Disagreement
from ..formats.disk import Advance, cores
from ..formats.jsontext import JsonObject
from ..formats.safetensors import STORED, read_header
from ..models.source import Source
from ..rope.errors import counted
from ..rope.summary import Summary

LONGEST = 3  # differences that a message names
BLOCK = 1 << 21  # bytes that are read and compared at a time: both sides stay in the cache
THREADS = min(4, max(2, cores()))


@dataclass(frozen=True)
class Options:
    """How an output is compared."""

    quick: bool = False
    """Leave out the bytes of the weights."""

    edited: bool = False
    """Accept other files where these do not change the computation, as --ignore-receipt does."""

    code: bool = False
    """Accept other modelling code, as --trust-remote-code does."""


@dataclass(frozen=True)
class Verification(Summary):
    """The result of a comparison without differences."""

    files: int
    """The number of files."""

    bytes: int
    """The bytes of the weights that were compared."""

    quick: bool = False
    """Whether the weights were left out."""

    notes: tuple[str, ...] = ()
    """Sentences on harmless differences."""

    unverified: tuple[str, ...] = ()
    """Sentences on parts that could not be compared; empty without `quick`."""

    def to_dict(self) -> JsonObject:
        """Return the fields as JSON-ready data."""
        return vars(self) | {"notes": list(self.notes), "unverified": list(self.unverified)}

    def summary(self) -> dict[str, str]:
        """Return what is shown, by name."""
        return {
            "sentence": self.sentence,
            "files": f"{self.files:,}",
            "bytes": f"{self.bytes:,}",
            "quick": "yes" if self.quick else "no",
            "notes": "\n".join(self.notes),
            "unverified": "\n".join(self.unverified),
        }

    @property
    def sentence(self) -> str:
        """The result for people."""
        weights = f" ({self.bytes:,} bytes of weights)."
        if self.quick:
            weights = "; --quick left out the weights."
        match = counted(self.files, "file matches", "files match")
        return f"{match} the source and the recipe{weights}"


@dataclass
class Findings:
    """The differences of a comparison. Fields without a comment are those of `Verification`."""

    options: Options

    wrong: list[str] = field(default_factory=list)
    """Clauses on the differences that matter."""

    notes: list[str] = field(default_factory=list)
    unverified: list[str] = field(default_factory=list)
    files: int = 0
    bytes: int = 0

    def add_difference(self, clause: str, *, harmless: bool = False) -> None:
        """Record a difference as a clause, as a note where it is harmless."""
        if harmless:
            self.notes.append(clause)
        else:
            self.wrong.append(clause)

    def result(self, baked: Path) -> Verification:
        """Return the result for an output. Raises Disagreement where something differs."""
        if self.wrong:
            clauses = "; ".join(self.wrong[:LONGEST])
            more = len(self.wrong) - LONGEST
            if more > 0:
                clauses += f"; and {more} more"
            raise Disagreement(
                f"{baked} is not what its recipe and source give: {clauses}; name the source it was"
                " made from, or run apply again"
            )
        return Verification(
            files=self.files,
            bytes=self.bytes,
            quick=self.options.quick,
            notes=tuple(self.notes),
            unverified=tuple(self.unverified),
        )


@dataclass(frozen=True)
class CopiedRange:
    """A range of a file that is equal to one of another file."""

    start: int
    """The first byte, counted from the beginning of the file."""

    stop: int
    """The byte after the last."""

    origin: Path
    """The other file."""

    place: int
    """The first byte of the range in the other file."""

    def tasks(self) -> Iterator[Task]:
        """Yield comparisons of pieces of the range, which can run at the same time."""

        def compared(reader: RangeReader, at: int) -> int | None:
            size = min(BLOCK, self.stop - at)
            place_in_origin = self.place + at - self.start
            return reader.difference_from_file(at, self.origin, place_in_origin, size)

        return (partial(compared, at=at) for at in range(self.start, self.stop, BLOCK))


@dataclass(frozen=True)
class GeneratedRange:
    """A range whose bytes are made in pieces."""

    start: int
    stop: int

    make: Callable[[int, int], bytes]
    """make(at, size) returns bytes from `at` on, counted from the beginning of the range."""

    unit: int = 1
    """Pieces have a multiple of this many bytes."""

    multiplied: bool = False
    """Whether it is a tensor that a fold changes."""

    def tasks(self) -> Iterator[Task]:
        """Yield comparisons of pieces of the range, which can run at the same time."""
        step = max(1, BLOCK // self.unit) * self.unit

        def compared(reader: RangeReader, at: int) -> int | None:
            return reader.unlike(at, self.make(at - self.start, min(step, self.stop - at)))

        return (partial(compared, at=at) for at in range(self.start, self.stop, step))


@dataclass(frozen=True)
class StreamedRange:
    """A range whose bytes `chunks` yields from the beginning."""

    start: int
    stop: int
    chunks: Callable[[], Iterator[bytes | memoryview]]

    @classmethod
    def with_bytes(cls, start: int, stop: int, data: bytes) -> StreamedRange:
        """Return the range from `start` to `stop` that has the given bytes."""
        return cls(start, stop, chunks=lambda: iter((data,)))

    def tasks(self) -> Iterator[Task]:
        """Yield the comparison of the range."""

        def compared(reader: RangeReader) -> int | None:
            at = self.start
            for chunk in self.chunks():
                place = reader.unlike(at, chunk)
                if place is not None:
                    return place
                at += len(chunk)
            return None if at == self.stop else at

        yield compared


Range = CopiedRange | GeneratedRange | StreamedRange


class RangeReader:
    """Reads a file and compares it. One for each thread."""

    def __init__(self, path: Path, advance: Advance) -> None:
        self._file = os.open(path, os.O_RDONLY)
        self._advance = advance
        self._buffers = bytearray(BLOCK), bytearray(BLOCK)

    def __enter__(self) -> RangeReader:
        return self

    def __exit__(self, *error: object) -> None:
        os.close(self._file)

    def difference_from_file(
        self, start: int, origin: Path, origin_start: int, size: int
    ) -> int | None:
        """Return the place of the first byte that differs from another file; None for equal bytes.

        Args:
            start: The first byte in the file.
            origin: The other file.
            origin_start: The first byte in the other file.
            size: How many bytes are compared.

        Returns:
            The place in the file, as a number of bytes from its beginning. Where the other file
            ends too early, it is the place at which that has no more bytes.
        """
        _, origin_buffer = self._buffers
        origin_file = os.open(origin, os.O_RDONLY)
        try:
            expected = _read(origin_file, origin_buffer, origin_start, size)
        finally:
            os.close(origin_file)

        first_difference = self._unlike(start, expected)
        origin_ends_early = len(expected) < size
        if first_difference is None and origin_ends_early:
            return start + len(expected)
        return first_difference

    def unlike(self, at: int, expected: bytes | memoryview) -> int | None:
        """Compare bytes of the file, from `at` on, with the expected ones.

        Returns:
            The place of the first byte that differs; None where all are equal.
        """
        view = memoryview(expected).cast("B")
        for done in range(0, len(view), BLOCK):
            place = self._unlike(at + done, view[done : done + BLOCK])
            if place is not None:
                return place
        return None

    def _unlike(self, start: int, expected: bytearray | memoryview) -> int | None:
        """Return the place of the first byte that differs; None where all are equal.

        Args:
            start: The first byte of the file that is compared.
            expected: The bytes that it should have from there on, at most BLOCK.
        """
        buffer, _ = self._buffers
        actual = _read(self._file, buffer, start, len(expected))
        self._advance(len(expected))
        if actual == expected:  # a bytearray and any buffer are compared by memcmp, which is fast
            return None

        # the exact place is only needed for the message; numpy finds it quickly
        count = min(len(actual), len(expected))
        actual_bytes = np.frombuffer(actual, np.uint8, count)
        expected_bytes = np.frombuffer(expected, np.uint8, count)
        differs = actual_bytes != expected_bytes
        if not differs.any():  # the file ends too early
            return start + count
        return start + int(np.argmax(differs))


Task = Callable[[RangeReader], "int | None"]
"""Compares a piece, and returns the place of the first different byte, or None."""


def first_difference(
    path: Path, ranges: Sequence[Range], advance: Advance = lambda done: None, whole: bool = True
) -> int | None:
    """Return a byte at which a file differs from the expected ranges; None for an equal file.

    Several threads compare pieces of the file at once and stop at a difference, so it is the first
    one that is found, which another one may precede in the file.

    Args:
        path: The file.
        ranges: The expected bytes, as ranges in the order of the file.
        advance: Called with the bytes that were compared since the last call.
        whole: Whether the file is compared as a whole: all bytes outside of the ranges must be
            zero. Without it only the ranges are compared.

    Raises:
        OSError: Where a file cannot be read.
    """
    # the gaps between the ranges, and after the last one, are padding
    expected: list[Range] = list(ranges)
    if whole:
        stop = 0
        for part in ranges:
            expected.append(GeneratedRange(stop, part.start, _zeros))
            stop = part.stop
        expected.append(GeneratedRange(stop, path.stat().st_size, _zeros))

    tasks = chain.from_iterable(part.tasks() for part in expected)
    comparison = _SharedComparison(path, tasks, advance)
    with ThreadPoolExecutor(THREADS) as pool:
        workers = [pool.submit(comparison.run) for _ in range(THREADS)]
        for worker in workers:
            worker.result()  # raises what the thread raised
    return min(comparison.differing_places, default=None)


class _SharedComparison:
    """A comparison of a file that several threads share; each of them calls `run`."""

    def __init__(self, path: Path, tasks: Iterator[Task], advance: Advance) -> None:
        self.differing_places: list[int] = []
        self._path = path
        self._tasks = tasks  # each compares a piece of the file
        self._advance = advance
        self._lock = Lock()

    def run(self) -> None:
        """Compare pieces of the file until none is left, or a thread has found a difference."""
        with RangeReader(self._path, self._count) as reader:
            task = self._next_task()
            while task is not None:
                place = task(reader)
                if place is not None:
                    self.differing_places.append(place)
                task = self._next_task()

    def _next_task(self) -> Task | None:
        """Take a piece that no thread has; None where nothing is left to do."""
        with self._lock:
            if self.differing_places:  # one difference is enough
                return None
            return next(self._tasks, None)

    def _count(self, done: int) -> None:
        """Pass on the bytes that a thread has compared, for one thread at a time."""
        with self._lock:
            self._advance(done)


def _zeros(at: int, size: int) -> bytes:
    """Make the bytes of padding, for a GeneratedRange."""
    return bytes(size)


def _read(file: int, buffer: bytearray, at: int, size: int) -> bytearray:
    """Read bytes of an open file; fewer than `size` where it ends.

    Args:
        file: The number of the open file.
        buffer: Memory that is used again where it has the wanted size.
        at: The first byte.
        size: How many bytes.
    """
    content = buffer
    if size != len(buffer):
        content = bytearray(size)
    # preadv(2) reads into memory that is there, and may read less than was asked for
    done = 0
    with memoryview(content) as view:
        while done < size:
            count = os.preadv(file, [view[done:]], at + done)
            if count == 0:  # the end of the file
                break
            done += count
    if done < size:
        return content[:done]
    return content


def folded_ranges(source: Source, name: str, fold: Fold) -> list[Range]:
    """Return the bytes that a shard should have after a fold, as ranges.

    A fold multiplies some weights by a factor, such as those of the keys by the attention factor.
    These are computed again; all other bytes are those of the source.

    Args:
        source: The checkpoint before the fold.
        name: The name of the shard, such as model-00001-of-00004.safetensors.
        fold: The factors, and the tensors that they multiply.
    """
    scalings: dict[str, list[Scaling]] = {}  # by the name of the tensor
    for scaling in fold.scalings:
        scalings.setdefault(scaling.tensor, []).append(scaling)

    # the header, and then the tensors in the order of the file
    header = source.headers[name]
    ranges = [_unchanged_range(source, name, 0, header.data_start)]
    read_shard = partial(source.read, name)  # read_shard(start, stop) returns bytes of the shard
    in_order = sorted(header.tensors.values(), key=lambda tensor: (tensor.start, tensor.stop))
    for tensor in in_order:
        start = header.data_start + tensor.start
        stop = header.data_start + tensor.stop
        if tensor.name not in scalings:
            ranges.append(_unchanged_range(source, name, start, stop))
            continue

        # a tensor that the fold multiplies: it is computed in pieces, by make(start, size), each of
        # a multiple of the size of one number
        make = partial(_multiply_piece, read_shard, start, tensor.dtype, scalings[tensor.name])
        bytes_per_number = np.dtype(STORED[tensor.dtype]).itemsize
        ranges.append(
            GeneratedRange(
                start=start, stop=stop, make=make, unit=bytes_per_number, multiplied=True
            )
        )
    return ranges


def _unchanged_range(source: Source, name: str, start: int, stop: int) -> Range:
    """The bytes of a shard of a source between two places, for the same places of the output."""
    if not source.is_generated(name):
        return CopiedRange(start=start, stop=stop, origin=source.path(name), place=start)

    # the shard of a converted source is not a file on the disk
    def make(at: int, size: int) -> bytes:
        return source.read(name, start + at, start + at + size)

    return GeneratedRange(start, stop, make)


def _multiply_piece(
    read: Callable[[int, int], bytes],
    tensor_start: int,
    dtype: str,
    scalings: list[Scaling],
    start: int,
    size: int,
) -> bytes:
    """Return a piece of a tensor as a fold leaves it: some of its numbers multiplied by a factor.

    Args:
        read: Returns the bytes of the shard between two places in it.
        tensor_start: The place of the tensor's first byte in the shard.
        dtype: The dtype of the tensor.
        scalings: The factors, and which numbers of the tensor they multiply.
        start: The first byte of the piece, counted from the beginning of the tensor.
        size: The bytes of the piece.
    """
    # the numbers of the piece as the source has them
    piece_start = tensor_start + start
    data = read(piece_start, piece_start + size)
    stored = np.dtype(STORED[dtype])
    numbers: NDArray[np.generic] = np.frombuffer(data, stored).copy()

    # which numbers of the tensor these are, such as 1000 to 1999
    piece_first = start // stored.itemsize
    piece_stop = piece_first + len(numbers)

    # a span is counted from the first number of the tensor too, and only a part of it may be in the
    # piece; the numbers are multiplied as when the output was written
    for scaling in scalings:
        for span_first, span_stop in scaling.spans:
            first = max(span_first, piece_first)
            stop = min(span_stop, piece_stop)
            if first >= stop:
                continue
            in_piece = slice(first - piece_first, stop - piece_first)
            scaled = scale_numbers(numbers[in_piece], dtype, scaling.factor, scaling.plus_one)
            numbers[in_piece] = scaled
    return numbers.tobytes()


def tensor_at(path: Path, place: int) -> str:
    """Return the name of the tensor of a safetensors file that has the byte at a place.

    It is "its header" for a byte before the data.
    """
    header = read_header(path)
    offset = place - header.data_start
    for name, tensor in header.tensors.items():
        if tensor.start <= offset < tensor.stop:
            return name
    return "its header"
