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
        """Return consecutive numbers of a file of weights, as an array.

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
    """Rows of numbers in a safetensors file, like a view of an array with strides.

    A matrix [rows, 4] of F32 has columns 4, stride 4 and apart 1. Every second row of it has stride
    8. Transposed, it has 4 rows, stride 1 and apart 4.
    """

    file: ShardWeights
    """The file."""

    dtype: str
    """The dtype in the file, a key of DTYPES."""

    start: int
    """The place of the first number in the file, in bytes."""

    rows: int
    """The number of rows."""

    columns: int
    """The numbers of each row."""

    stride: int
    """The distance from one row to the next in the file, in numbers."""

    apart: int = 1
    """The distance from one number of a row to the next in the file; 1 if not transposed."""

    scales: int = 0
    """The place of the first scale of MXFP4 in the file, in bytes; each block has one of a byte."""

    factors: tuple[float, ...] = ()
    """Factors by which the numbers are multiplied one after the other, in float32."""

    zeros: bool = False
    """Whether all numbers are 0, so that nothing is read from the file."""

    @property
    def is_one_piece(self) -> bool:
        """Whether the rows follow each other without gaps in the file."""
        return not self.zeros and self.apart == 1 and self.stride == self.columns

    @property
    def extent(self) -> int:
        """The bytes of the file from the first to the last number, with gaps between rows."""
        return self.bytes((self.rows - 1) * self.stride + (self.columns - 1) * self.apart + 1)

    def bytes(self, numbers: int) -> int:
        """Return the bytes that so many numbers have in the file, without scales."""
        if self.dtype == "MXFP4":
            return -(-numbers // TYPES[MXFP4].block) * NIBBLES
        return numbers * TYPES[DTYPES[self.dtype]].size

    def part(self, first: int, count: int, step: int = 1) -> Rows:
        """Return `count` rows from the index `first` on, every step-th: (1, 2, 3) is rows 1, 4."""
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
        """Return every number as a row of its own: [n, m] becomes [n * m, 1]."""
        return replace(self, rows=self.rows * self.columns, columns=1, stride=1)

    def transpose(self) -> Rows:
        """Return the columns as rows. No number is moved: the two distances are exchanged."""
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
    """Its rows in the checkpoint, in the order of the output."""

    interleave: int = 0
    """The rows of a head whose pairs become neighbours when they are written; 0 for none.

    Rows i and i + d/2 become 2i and 2i + 1: with 4, rows 0 1 2 3 are written as 0 2 1 3.
    """

    values: str = ""
    """The name of a function in NUMBER_FUNCTIONS that changes the numbers; empty for none."""

    tiles: tuple[int, int] = (1, 1)
    """The groups of columns that are reordered, and the blocks of each group; (1, 1) for none.

    With (2, 3), columns a0 a1 a2 b0 b1 b2 are written as a0 b0 a1 b1 a2 b2.
    """

    type: int = F32
    """ggml's number of its type in the output."""

    data: bytes = b""
    """Its bytes in the output, for a tensor that is computed and has no parts."""

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
        """The parts cut so that each is one matrix, or a vector as a matrix with one column.

        A stack [8, 64, 16] gives 8 parts of 64 rows, and a bias [64] one part of 64 rows.
        """
        if len(self.shape) < 2:
            return [part.flat() for part in self.parts]
        height = self.shape[-2]
        matrices = []
        for part in self.parts:
            for first_row in range(0, part.rows, max(1, height)):
                matrices.append(part.part(first_row, height))
        return matrices


NUMBER_FUNCTIONS: dict[str, Callable[[NDArray[np.float32]], NDArray[np.float32]]] = {
    "plus_one": lambda values: values + np.float32(1),
    "minus_exp": lambda values: -np.exp(values),
}
"""Functions by which a conversion changes numbers, by the names in the family files."""
INVERSE_FUNCTIONS: dict[str, Callable[[NDArray[np.float32]], NDArray[np.float32]]] = {
    "plus_one": lambda values: values - np.float32(1),
    "minus_exp": lambda values: np.log(-values),
}
"""The inverse of each function of NUMBER_FUNCTIONS, from GGUF to a checkpoint."""
FUNCTION_TOLERANCES = {"minus_exp": 2.0**-22}
"""The relative difference between libraries in functions that not all of them round to nearest."""
