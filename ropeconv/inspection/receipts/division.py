"""Divides tensors by the powers of two that a bake multiplied them by, after a check of what the receipt says."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator
from math import frexp, prod
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from ...errors import BadSource
from ...formats.copying import copy_file
from ...formats.safetensors import STORED, Header, Tensor, read_header, widened
from .receipt import ScaledRecord

EXACT = ("F32", "BF16", "F16")
CLOSE = 1e-9  # the factor is a product of float64 numbers
CHUNK = 1 << 20  # elements that are read at a time


def check_scaled(one: ScaledRecord, tensor: Tensor) -> None:
    """Raises BadSource where a receipt says of a tensor what no bake does. one: from the receipt. tensor: it names."""
    mantissa, exponent = frexp(one.factor)
    if not abs(mantissa - 0.5) <= CLOSE or abs(exponent) > 126:
        raise _untrue(one, f"was multiplied by {one.factor:g}, which is no power of two")
    if tensor.dtype not in EXACT:
        raise _untrue(one, f"was multiplied as {tensor.dtype}")
    end = 0
    for start, stop in sorted(one.spans):
        if not end <= start < stop <= prod(tensor.shape):
            raise _untrue(one, f"was multiplied from element {start} to {stop}, of {prod(tensor.shape)}")
        end = stop


def _untrue(one: ScaledRecord, what: str) -> BadSource:
    return BadSource(f"the receipt says that {one.tensor} {what}; do not trust it, take the source again")


def write_divided(
    shard: Callable[[], Path], scaled: Iterable[ScaledRecord], target: Path, advance: Callable[[int], None]
) -> None:
    """Copies a shard and divides its tensors.

    shard: gives its local path. scaled: what to divide. target: the new file. advance: called with the bytes written
    since the last call. Raises BadSource where the division would not be exact.
    """
    copy_file(shard(), target, advance)
    header = read_header(target)
    file = os.open(target, os.O_RDWR)
    try:
        for one in scaled:
            tensor = header.tensors[one.tensor]
            check_scaled(one, tensor)
            for place, size in _pieces(header, tensor, one):
                old = np.frombuffer(os.pread(file, size, place), STORED[tensor.dtype])
                os.pwrite(file, _divided(old, tensor.dtype, one), place)
    finally:
        os.close(file)


def _pieces(header: Header, tensor: Tensor, one: ScaledRecord) -> Iterator[tuple[int, int]]:
    """Places and sizes in bytes of what is read at a time."""
    size = np.dtype(STORED[tensor.dtype]).itemsize
    for start, stop in one.spans:
        for at in range(start, stop, CHUNK):
            yield header.data_start + tensor.start + at * size, (min(at + CHUNK, stop) - at) * size


def _divided(old: NDArray[np.generic], dtype: str, one: ScaledRecord) -> bytes:
    """Stored numbers divided by a power of two. Only normal numbers were surely multiplied without rounding."""
    values = widened(old, dtype)
    new = values / np.float32(one.factor)
    least = np.finfo(np.float16 if dtype == "F16" else np.float32).tiny
    for numbers in (np.abs(values), np.abs(new)):
        if not (np.isfinite(numbers) & (numbers >= least)).all():
            raise BadSource(
                f"{one.tensor} was multiplied by {one.factor:g} and has numbers that may have lost bits; take the "
                "source again"
            )
    if dtype == "BF16":
        return np.ascontiguousarray((new.view(np.uint32) >> 16).astype("<u2")).tobytes()
    return np.ascontiguousarray(new.astype(STORED[dtype])).tobytes()
