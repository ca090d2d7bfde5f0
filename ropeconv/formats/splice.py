"""Splice: other bytes in the place of a range of a file, without the file in memory."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Splice:
    """Other bytes in the place of a range of a file. start, stop: the range. data: what stands there instead."""

    start: int
    stop: int
    data: bytes

    def size(self, before: int) -> int:
        """The size of the file with it. before: without it, in bytes."""
        return before - (self.stop - self.start) + len(self.data)

    def applied(self, blocks: Iterable[bytes]) -> Iterator[bytes]:
        """The content of the file with it. blocks: the content without it."""
        at, inserted = 0, False
        for block in blocks:
            yield block[: max(0, self.start - at)]
            after = block[max(0, self.stop - at) :]
            at += len(block)
            if at >= self.stop and not inserted:
                yield self.data
                inserted = True
            yield after
        if not inserted:
            yield self.data

    def read(self, before: Callable[[int, int], bytes], start: int, stop: int) -> bytes:
        """Bytes start .. stop - 1 of the file with it. before: reads the file without it, likewise."""
        end = self.start + len(self.data)
        found = before(start, min(stop, self.start)) if start < self.start else b""
        found += self.data[max(0, start - self.start) : max(0, stop - self.start)]
        moved = self.stop - end
        return found + (before(max(start, end) + moved, stop + moved) if stop > end else b"")


def write_blocks(blocks: Callable[[], Iterable[bytes]], target: Path, advance: Callable[[int], None]) -> None:
    """Writes a file. blocks: gives its content in pieces. advance: called with the bytes of each of them."""
    with target.open("wb") as file:
        for block in blocks():
            file.write(block)
            advance(len(block))
