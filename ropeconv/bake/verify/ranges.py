"""Compares the bytes of a file with those it ought to have, given as ranges, on several threads."""

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
        """Yields comparisons of pieces of the range, which can run at the same time."""

    def _pieces(self, step: int) -> Iterator[tuple[int, int]]:
        """Places, from the beginning of the range, and sizes of pieces of `step` bytes."""
        for at in range(0, self.stop - self.start, step):
            yield at, min(step, self.stop - self.start - at)


@dataclass(frozen=True)
class CopiedRange(Range):
    """A range that is equal to one of another file. origin: that file. place: where the range begins there."""

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

    make(at, size): the bytes at a place, counted from the beginning of the range. unit: pieces are multiples of it.
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
    """A range whose bytes are made one after the other. chunks: yields them, from the beginning."""

    chunks: Callable[[], Iterator[bytes | memoryview]]

    def tasks(self) -> Iterator[Task]:
        yield self._compared

    def _compared(self, reader: RangeReader) -> int | None:
        at = self.start
        for chunk in self.chunks():
            found = reader.unlike(at, chunk)
            if found is not None:
                return found
            at += len(chunk)
        return None if at == self.stop else at


class RangeReader:
    """Reads a file and compares it. One for each thread. advance: called with the bytes done since the last call."""

    def __init__(self, path: Path, advance: Advance) -> None:
        self._file, self._advance = os.open(path, os.O_RDONLY), advance
        self._other: tuple[Path, int] | None = None
        self._buffers = bytearray(BLOCK), bytearray(BLOCK)

    def __enter__(self) -> RangeReader:
        return self

    def __exit__(self, *error: object) -> None:
        os.close(self._file)
        if self._other is not None:
            os.close(self._other[1])

    def unlike_file(self, at: int, origin: Path, place: int, size: int) -> int | None:
        """The place from `at` on that is unlike another file from `place` on; None where `size` bytes are equal."""
        if self._other is None or self._other[0] != origin:
            if self._other is not None:
                os.close(self._other[1])
            self._other = origin, os.open(origin, os.O_RDONLY)
        wanted = _read(self._other[1], self._buffers[1], place, size)
        found = self._unlike(at, wanted)
        return at + len(wanted) if found is None and len(wanted) < size else found

    def unlike(self, at: int, wanted: bytes | memoryview) -> int | None:
        """The first place from `at` on that is unlike the wanted bytes; None where all are equal."""
        view = memoryview(wanted).cast("B")
        for done in range(0, len(view), BLOCK):
            found = self._unlike(at + done, view[done : done + BLOCK])
            if found is not None:
                return found
        return None

    def _unlike(self, at: int, wanted: bytearray | memoryview) -> int | None:
        ours = _read(self._file, self._buffers[0], at, len(wanted))
        self._advance(len(wanted))
        if ours == wanted:  # of a bytearray and any buffer: memcmp
            return None
        count = min(len(ours), len(wanted))
        left, right = np.frombuffer(ours, np.uint8, count), np.frombuffer(wanted, np.uint8, count)
        return at + int(np.argmax(left != right)) if (left != right).any() else at + count


Task = Callable[[RangeReader], "int | None"]
"""Compares a piece, and returns the place of the first other byte, or None."""


def first_difference(
    path: Path, ranges: Sequence[Range], advance: Advance = lambda done: None, whole: bool = True
) -> int | None:
    """A place in which a file is not as its ranges say, None where it is; what no range covers has to be zero.

    path: the file. ranges: in order. advance: called with the bytes compared since the last call. whole: also compare
    what no range covers. Raises OSError.
    """
    lock, found = Lock(), list[int]()
    every = _with_zeros(ranges, path.stat().st_size) if whole else ranges
    tasks = chain.from_iterable(one.tasks() for one in every)

    def counted(done: int) -> None:
        with lock:
            advance(done)

    def work(_: int) -> None:
        with RangeReader(path, counted) as reader:
            while True:
                with lock:
                    task = None if found else next(tasks, None)
                if task is None:
                    return
                place = task(reader)
                if place is not None:
                    found.append(place)

    with ThreadPoolExecutor(THREADS) as pool:
        list(pool.map(work, range(THREADS)))
    return min(found, default=None)


def _with_zeros(ranges: Sequence[Range], size: int) -> Iterator[Range]:
    at = 0
    for one in ranges:
        if one.start > at:
            yield GeneratedRange(at, one.start, _zeros)
        yield one
        at = one.stop
    if at < size:
        yield GeneratedRange(at, size, _zeros)


def _zeros(at: int, size: int) -> bytes:
    return bytes(size)


def _read(file: int, buffer: bytearray, at: int, size: int) -> bytearray:
    """Bytes of an open file, fewer where it ends: in the buffer, or for other sizes in a new one."""
    place = buffer if size == len(buffer) else bytearray(size)
    with memoryview(place) as view:
        done = 0
        while done < size and (count := os.preadv(file, [view[done:]], at + done)):
            done += count
    return place if done == size else place[:done]


def unchanged(at: int, stop: int, source: Source, name: str, place: int) -> Range:
    """The range of a file that is equal to one of the source.

    at, stop: where it is. source: which is converted when it is read, or has a file. name: of that file. place: where
    the range begins there.
    """
    if not source.is_generated(name):
        return CopiedRange(at, stop, source.path(name), place)
    return GeneratedRange(at, stop, lambda start, size: source.read(name, place + start, place + start + size))


def folded_ranges(source: Source, name: str, fold: Fold, wide: bool) -> list[Range]:
    """The ranges of a shard with factors in some of its weights.

    source: the checkpoint. name: of the shard. fold: what is multiplied. wide: whether the multiplied tensors are
    stored in 32 bits.
    """
    header = source.headers[name]
    inside = [scaling for scaling in fold.scalings if scaling.tensor in header.tensors]
    names = {scaling.tensor for scaling in inside}
    ranges: list[Range] = []
    if wide:
        head = widened_header(header, names)
        ranges.append(GeneratedRange(0, len(head), lambda at, size: head[at : at + size]))
    else:
        ranges.append(unchanged(0, header.data_start, source, name, 0))
    at = ranges[0].stop
    for tensor in sorted(header.tensors.values(), key=lambda tensor: (tensor.start, tensor.stop)):
        place = header.data_start + tensor.start
        if tensor.name not in names:
            ranges.append(unchanged(at, at + tensor.stop - tensor.start, source, name, place))
        else:
            scalings = [scaling for scaling in inside if scaling.tensor == tensor.name]
            ranges.append(_multiplied(at, partial(source.read, name), place, tensor, scalings, wide))
        at = ranges[-1].stop
    return ranges


def _multiplied(
    at: int, read: Callable[[int, int], bytes], place: int, tensor: Tensor, scalings: list[Scaling], wide: bool
) -> MultipliedRange:
    """The range of a tensor that a fold changes.

    at: where it begins. read: bytes start .. stop - 1 of the shard of the source. place: where it begins there.
    """
    stored, dtype = np.dtype(STORED[tensor.dtype]), "F32" if wide else tensor.dtype
    unit = np.dtype(STORED[dtype]).itemsize

    def make(start: int, size: int) -> bytes:
        first, count = start // unit, size // unit
        begins = place + first * stored.itemsize
        old: NDArray[np.generic] = np.frombuffer(read(begins, begins + count * stored.itemsize), stored)
        new = widened(old, tensor.dtype) if wide else old.copy()
        for one in scalings:
            for begin, end in one.spans:
                part = slice(max(begin - first, 0), min(end - first, count))
                if part.start < part.stop:
                    new[part] = scaled(new[part], dtype, one.factor, one.plus_one)
        return np.ascontiguousarray(new, STORED[dtype]).tobytes()

    return MultipliedRange(at, at + tensor_bytes(dtype, tensor.shape), make, unit)


def tensor_at(path: Path, place: int) -> str:
    """The tensor of a safetensors file that has the byte at a place; "its header" before the data."""
    header = read_header(path)
    for tensor in header.tensors.values():
        if tensor.start <= place - header.data_start < tensor.stop:
            return tensor.name
    return "its header"
