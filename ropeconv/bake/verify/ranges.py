"""Compares the bytes of a file with the expected ones, given as ranges, on several threads."""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from itertools import chain
from pathlib import Path
from threading import Lock

import numpy as np
from numpy.typing import NDArray

from ...convert.fold import Fold, Scaling
from ...convert.fold_files import scaled, widened_header
from ...formats.disk import Advance, cores
from ...formats.safetensors import STORED, Tensor, read_header, tensor_bytes, widened
from ...models.source import Source

BLOCK = 1 << 21  # bytes that are read and compared at a time: both sides stay in the cache
THREADS = min(4, max(2, cores()))


@dataclass(frozen=True)
class Range(ABC):
    """A range of a file. start, stop: in bytes from the beginning of the file."""

    start: int
    stop: int

    @abstractmethod
    def tasks(self) -> Iterator[Task]:
        """Yield comparisons of pieces of the range, which can run at the same time."""

    def _pieces(self, step: int) -> Iterator[tuple[int, int]]:
        for at in range(0, self.stop - self.start, step):
            yield at, min(step, self.stop - self.start - at)


@dataclass(frozen=True)
class CopiedRange(Range):
    """A range that is equal to one of another file, which begins there at `place`."""

    origin: Path
    place: int

    def tasks(self) -> Iterator[Task]:
        for at, size in self._pieces(BLOCK):
            yield lambda reader, at=at, size=size: reader.unlike_file(
                self.start + at, self.origin, self.place + at, size
            )  # type: ignore[misc]


@dataclass(frozen=True)
class GeneratedRange(Range):
    """A range whose bytes are made in pieces.

    make(at, size): the bytes from `at` on, counted from the beginning of the range. unit: pieces are multiples of it.
    """

    make: Callable[[int, int], bytes]
    unit: int = 1

    def tasks(self) -> Iterator[Task]:
        for at, size in self._pieces(max(1, BLOCK // self.unit) * self.unit):
            yield lambda reader, at=at, size=size: reader.unlike(self.start + at, self.make(at, size))  # type: ignore[misc]


@dataclass(frozen=True)
class MultipliedRange(GeneratedRange):
    """The range of a tensor that a fold changes."""


@dataclass(frozen=True)
class StreamedRange(Range):
    """A range whose bytes `chunks` yields from the beginning."""

    chunks: Callable[[], Iterator[bytes | memoryview]]

    def tasks(self) -> Iterator[Task]:
        def compared(reader: RangeReader) -> int | None:
            at = self.start
            for chunk in self.chunks():
                place = reader.unlike(at, chunk)
                if place is not None:
                    return place
                at += len(chunk)
            return None if at == self.stop else at

        yield compared


class RangeReader:
    """Reads a file and compares it. One for each thread."""

    def __init__(self, path: Path, advance: Advance) -> None:
        self._file, self._advance = os.open(path, os.O_RDONLY), advance
        self._buffers = bytearray(BLOCK), bytearray(BLOCK)

    def __enter__(self) -> RangeReader:
        return self

    def __exit__(self, *error: object) -> None:
        os.close(self._file)

    def unlike_file(self, at: int, origin: Path, place: int, size: int) -> int | None:
        """Return the first place from `at` on that differs from another file from `place` on; None for equal bytes."""
        other = os.open(origin, os.O_RDONLY)
        try:
            expected = _read(other, self._buffers[1], place, size)
        finally:
            os.close(other)
        difference = self._unlike(at, expected)
        return at + len(expected) if difference is None and len(expected) < size else difference

    def unlike(self, at: int, expected: bytes | memoryview) -> int | None:
        """Return the first place from `at` on that differs from the expected bytes; None where all are equal."""
        view = memoryview(expected).cast("B")
        blocks = (self._unlike(at + done, view[done : done + BLOCK]) for done in range(0, len(view), BLOCK))
        return next((place for place in blocks if place is not None), None)

    def _unlike(self, at: int, expected: bytearray | memoryview) -> int | None:
        ours = _read(self._file, self._buffers[0], at, len(expected))
        self._advance(len(expected))
        if ours == expected:  # of a bytearray and any buffer: memcmp
            return None
        count = min(len(ours), len(expected))
        left, right = np.frombuffer(ours, np.uint8, count), np.frombuffer(expected, np.uint8, count)
        return at + int(np.argmax(left != right)) if (left != right).any() else at + count


Task = Callable[[RangeReader], "int | None"]
"""Compares a piece, and returns the place of the first different byte, or None."""


def first_difference(
    path: Path, ranges: Sequence[Range], advance: Advance = lambda done: None, whole: bool = True
) -> int | None:
    """Return a place where a file differs from its ranges, given in order; None for an equal file. Raises OSError.

    whole: also check that all bytes outside of the ranges are zero.
    """
    lock, places = Lock(), list[int]()
    expected = _with_zeros(ranges, path.stat().st_size) if whole else ranges
    tasks = chain.from_iterable(part.tasks() for part in expected)

    def counted(done: int) -> None:
        with lock:
            advance(done)

    def work(_: int) -> None:
        with RangeReader(path, counted) as reader:
            while True:
                with lock:
                    task = None if places else next(tasks, None)
                if task is None:
                    return
                place = task(reader)
                if place is not None:
                    places.append(place)

    with ThreadPoolExecutor(THREADS) as pool:
        list(pool.map(work, range(THREADS)))
    return min(places, default=None)


def _with_zeros(ranges: Sequence[Range], size: int) -> Iterator[Range]:
    at = 0
    for part in ranges:
        if part.start > at:
            yield GeneratedRange(at, part.start, lambda at, size: bytes(size))
        yield part
        at = part.stop
    if at < size:
        yield GeneratedRange(at, size, lambda at, size: bytes(size))


def _read(file: int, buffer: bytearray, at: int, size: int) -> bytearray:
    """Bytes of an open file, fewer where it ends: in the buffer, or for other sizes in a new one."""
    place = buffer if size == len(buffer) else bytearray(size)
    with memoryview(place) as view:
        done = 0
        while done < size and (count := os.preadv(file, [view[done:]], at + done)):
            done += count
    return place if done == size else place[:done]


def unchanged(at: int, stop: int, source: Source, name: str, place: int) -> Range:
    """Return the range of a file that is equal to one of a file of the source, which begins there at `place`."""
    if not source.is_generated(name):
        return CopiedRange(at, stop, source.path(name), place)
    return GeneratedRange(at, stop, lambda start, size: source.read(name, place + start, place + start + size))


def folded_ranges(source: Source, name: str, fold: Fold, wide: bool) -> list[Range]:
    """Return the ranges of a shard with factors in some of its weights. wide: these become F32."""
    header = source.headers[name]
    scalings: dict[str, list[Scaling]] = {}
    for scaling in fold.scalings:
        scalings.setdefault(scaling.tensor, []).append(scaling)
    if wide:
        head = widened_header(header, scalings)
        ranges: list[Range] = [GeneratedRange(0, len(head), lambda at, size: head[at : at + size])]
    else:
        ranges = [unchanged(0, header.data_start, source, name, 0)]
    for tensor in sorted(header.tensors.values(), key=lambda tensor: (tensor.start, tensor.stop)):
        at, place = ranges[-1].stop, header.data_start + tensor.start
        if tensor.name in scalings:
            read = partial(source.read, name)
            ranges.append(_multiplied(at, read, place, tensor, scalings[tensor.name], wide))
        else:
            ranges.append(unchanged(at, at + tensor.stop - tensor.start, source, name, place))
    return ranges


def _multiplied(
    at: int, read: Callable[[int, int], bytes], place: int, tensor: Tensor, scalings: list[Scaling], wide: bool
) -> MultipliedRange:
    """The range of a tensor that a fold changes, which begins at `at`, and in the shard of the source at `place`."""
    stored, dtype = np.dtype(STORED[tensor.dtype]), "F32" if wide else tensor.dtype
    unit = np.dtype(STORED[dtype]).itemsize

    def make(start: int, size: int) -> bytes:
        first, count = start // unit, size // unit
        begins = place + first * stored.itemsize
        old: NDArray[np.generic] = np.frombuffer(read(begins, begins + count * stored.itemsize), stored)
        new = widened(old, tensor.dtype) if wide else old.copy()
        for scaling in scalings:
            for begin, end in scaling.spans:
                part = slice(max(begin - first, 0), min(end - first, count))
                if part.start < part.stop:
                    new[part] = scaled(new[part], dtype, scaling.factor, scaling.plus_one)
        return np.ascontiguousarray(new, STORED[dtype]).tobytes()

    return MultipliedRange(at, at + tensor_bytes(dtype, tensor.shape), make, unit)


def tensor_at(path: Path, place: int) -> str:
    """Return the tensor of a safetensors file that has the byte at a place; "its header" before the data."""
    header = read_header(path)
    for tensor in header.tensors.values():
        if tensor.start <= place - header.data_start < tensor.stop:
            return tensor.name
    return "its header"
