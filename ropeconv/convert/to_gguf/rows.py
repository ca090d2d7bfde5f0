"""Tensors during a conversion to GGUF, as the rows of checkpoint files that they consist of."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property
from math import prod
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from ...errors import BadSource
from ...formats.gguf.header import BF16, F16, F32, MXFP4, TYPES
from ...models.source import Source

DTYPES = {"F32": F32, "F16": F16, "BF16": BF16, "MXFP4": MXFP4}
"""ggml's number for each type of a checkpoint.

MXFP4 is a pair of tensors there, blocks and scales.
"""
NIBBLES = 16
"""Bytes of a block of MXFP4 in a checkpoint, without its scale."""


@dataclass(frozen=True)
class ShardWeights:
    """A safetensors file of a checkpoint, fetched or converted when its numbers are read."""

    source: Source | None
    """None for a file of which only the header is known."""

    name: str

    @cached_property
    def path(self) -> Path | None:
        """The path of the file on this machine; None for one that is made when it is read."""
        assert self.source is not None, self.name
        if self.source.is_generated(self.name):
            return None
        return self.source.path(self.name)

    def read(self, start: int, stop: int) -> bytes:
        """Return some bytes of the file, which is not fetched for them."""
        assert self.source is not None, self.name
        return self.source.read(self.name, start, stop)

    def numbers(
        self, dtype: str, start: int, count: int, sparse: bool = False
    ) -> NDArray[np.generic]:
        """Return numbers of the file.

        Args:
            dtype: Their type, as numpy names it.
            start: The place of the first, in bytes.
            count: The number of them.
            sparse: Whether few of them are needed, so that a local file is mapped and not read.

        Raises:
            BadSource: Where it was cut off.
        """
        kind = np.dtype(dtype)
        stop = start + count * kind.itemsize
        if self.path is None:
            return np.frombuffer(self.read(start, stop), kind)
        # a mapped file that is cut off ends the process by SIGBUS, and np.fromfile returns less
        if self.path.stat().st_size < stop:
            raise BadSource(f"{self.path.name} was cut off while it was read; run again")
        if sparse:
            return np.memmap(self.path, kind, "r", start, (count,))
        return np.fromfile(self.path, kind, count, offset=start)


@dataclass(frozen=True)
class Rows:
    """Rows of numbers in a safetensors file."""

    file: ShardWeights
    dtype: str
    start: int
    """The first byte."""

    rows: int
    columns: int
    """Numbers per row."""

    stride: int
    """From one row to the next, in numbers."""

    apart: int = 1
    """From one number of a row to the next."""

    scales: int = 0
    """The first byte of the scales of MXFP4, one per block."""

    factors: tuple[float, ...] = ()
    """The numbers are multiplied by them one after the other in float32."""

    zeros: bool = False
    """They are all 0, and nothing is read."""

    @property
    def is_one_piece(self) -> bool:
        """Whether the rows are one piece of the file."""
        return not self.zeros and self.apart == 1 and self.stride == self.columns

    @property
    def extent(self) -> int:
        """The number of bytes from the first to the last number."""
        return self.bytes((self.rows - 1) * self.stride + (self.columns - 1) * self.apart + 1)

    def bytes(self, numbers: int) -> int:
        """Return the size of so many numbers in the file."""
        if self.dtype == "MXFP4":
            return -(-numbers // TYPES[MXFP4].block) * NIBBLES
        return numbers * TYPES[DTYPES[self.dtype]].size

    def part(self, first: int, count: int, step: int = 1) -> Rows:
        """Return `count` rows, every step-th from the first on."""
        skipped = self.bytes(first * self.stride)
        scales = 0
        if self.scales:  # a byte for each block of 16 bytes
            scales = self.scales + skipped // NIBBLES
        return replace(
            self,
            start=self.start + skipped,
            rows=count,
            stride=self.stride * step,
            scales=scales,
        )

    def flat(self) -> Rows:
        """Return every number as a row of its own."""
        return replace(self, rows=self.rows * self.columns, columns=1, stride=1)

    def transpose(self) -> Rows:
        """Return the columns as rows."""
        return replace(
            self, rows=self.columns, columns=self.rows, stride=self.apart, apart=self.stride
        )


@dataclass(frozen=True)
class StoredRows:
    """A tensor of the checkpoint, a result of conversions, or a tensor of the output."""

    name: str
    shape: tuple[int, ...]
    """As in safetensors, slowest dimension first."""

    parts: tuple[Rows, ...]
    """Its rows, in order."""

    interleave: int = 0
    """Rows per head whose pairs are reordered from (i, i + d/2) to (2i, 2i + 1), 0 for none."""

    values: str = ""
    """Name of a function in VALUES, or empty."""

    tiles: tuple[int, int] = (1, 1)
    """Groups of columns, and the blocks of each: from (group, block) to (block, group)."""

    type: int = F32
    """ggml's number, in the output."""

    data: bytes = b""
    """Its bytes there, where it has no parts."""

    @property
    def gguf_shape(self) -> tuple[int, ...]:
        """The shape as in GGUF, fastest dimension first."""
        return tuple(reversed(self.shape)) or (1,)

    @property
    def elements(self) -> int:
        """The number of elements."""
        return prod(self.shape)

    @property
    def size(self) -> int:
        """The size in the output, in bytes."""
        return TYPES[self.type].bytes(self.shape)

    @property
    def matrices(self) -> list[Rows]:
        """One part for each matrix of a stack; for a vector, its elements as rows of one."""
        if len(self.shape) < 2:
            return [part.flat() for part in self.parts]
        height = self.shape[-2]
        matrices = []
        for part in self.parts:
            for first in range(0, part.rows, height or 1):
                matrices.append(part.part(first, height))
        return matrices


VALUES: dict[str, Callable[[NDArray[np.float32]], NDArray[np.float32]]] = {
    "plus_one": lambda values: values + np.float32(1),
    "minus_exp": lambda values: -np.exp(values),
}
BACK: dict[str, Callable[[NDArray[np.float32]], NDArray[np.float32]]] = {
    "plus_one": lambda values: values - np.float32(1),
    "minus_exp": lambda values: np.log(-values),
}
"""The inverse of each, from GGUF to a checkpoint."""
ROUNDED = {"minus_exp": 2.0**-22}
"""The relative difference between libraries in functions that not all of them round to nearest."""
