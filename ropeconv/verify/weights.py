"""What the safetensors files of an output have to hold, as ranges of the source's files and of scaled tensors."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..encode.fold.arithmetic import scaled
from ..encode.fold.placement import Fold, Scaling
from ..encode.fold.widening import widened_header
from ..formats.floats import STORED, widened
from ..formats.safetensors import Tensor, read_header, tensor_bytes
from ..sources import Source
from .ranges import Copied, Made, Range


def unchanged(at: int, stop: int, source: Source, name: str, place: int) -> Range:
    """The range of a file that is equal to one of the source.

    at, stop: where it is. source: which is converted when it is read, or has a file. name: of that file. place: where
    the range begins there.
    """
    if not source.is_generated(name):
        return Copied(at, stop, source.path(name), place)
    return Made(at, stop, lambda start, size: source.read(name, place + start, place + start + size))


def folded_ranges(source: Source, name: str, fold: Fold, wide: bool) -> list[Range]:
    """The ranges of a shard with factors in some of its weights.

    source: the checkpoint. name: of the shard. fold: what is multiplied. wide: whether the multiplied tensors are
    stored in 32 bits.
    """
    header = source.headers[name]
    inside = [one for one in fold.scalings if one.tensor in header.tensors]
    names = {one.tensor for one in inside}
    head = widened_header(header, names) if wide else None
    at = header.data_start if head is None else len(head)
    found: list[Range] = [
        unchanged(0, at, source, name, 0) if head is None else Made(0, at, lambda at, size: head[at : at + size])
    ]
    for tensor in sorted(header.tensors.values(), key=lambda tensor: (tensor.start, tensor.stop)):
        place = header.data_start + tensor.start
        if tensor.name not in names:
            found.append(unchanged(at, at + tensor.stop - tensor.start, source, name, place))
        else:
            scalings = [one for one in inside if one.tensor == tensor.name]
            found.append(_multiplied(at, partial(source.read, name), place, tensor, scalings, wide))
        at = found[-1].stop
    return found


def _multiplied(
    at: int, read: Callable[[int, int], bytes], place: int, tensor: Tensor, scalings: list[Scaling], wide: bool
) -> Made:
    """The range of a tensor that a fold changes.

    at: where it begins. read: bytes start .. stop - 1 of the shard of the source. place: where it begins there.
    """
    stored, dtype = np.dtype(STORED[tensor.dtype]), "F32" if wide else tensor.dtype
    unit = np.dtype(STORED[dtype]).itemsize

    def make(start: int, size: int) -> bytes:
        first, count = start // unit, size // unit
        begins = place + first * stored.itemsize
        old: NDArray[Any] = np.frombuffer(read(begins, begins + count * stored.itemsize), stored)
        new = widened(old, tensor.dtype) if wide else old.copy()
        for one in scalings:
            for begin, end in one.spans:
                part = slice(max(begin - first, 0), min(end - first, count))
                if part.start < part.stop:
                    new[part] = scaled(new[part], dtype, one.factor, one.plus_one)
        return np.ascontiguousarray(new, STORED[dtype]).tobytes()

    return Made(at, at + tensor_bytes(dtype, tensor.shape), make, unit)


def tensor_at(path: Path, place: int) -> str:
    """The tensor of a safetensors file that has the byte at a place; "its header" before the data."""
    header = read_header(path)
    for tensor in header.tensors.values():
        if tensor.start <= place - header.data_start < tensor.stop:
            return tensor.name
    return "its header"
