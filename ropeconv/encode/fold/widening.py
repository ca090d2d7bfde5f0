"""Copies a safetensors file with some tensors widened to 32-bit floats; the others are copied by the kernel."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path

import numpy as np

from ...formats.copying import Advance
from ...formats.floats import STORED, widened
from ...formats.safetensors import Header, Tensor, header_bytes, tensor_bytes
from ...sources import Source


def widened_size(header: Header, wide: Collection[str]) -> int:
    """Size in bytes of the file that `copy_widened` writes."""
    return len(widened_header(header, wide)) + sum(_bytes(tensor, wide) for tensor in header.tensors.values())


def copy_widened(
    source: Source, name: str, target: Path, wide: Collection[str], advance: Advance = lambda done: None
) -> None:
    """Copies a safetensors file with some tensors widened to F32; the order of the data stays.

    source: the checkpoint. name: of the file. target: the copy. wide: names of the tensors to widen, which are F32, F16
    or BF16. advance: called with the bytes written since the last call. Raises OSError.
    """
    header = source.headers[name]
    head = widened_header(header, wide)
    with target.open("wb") as writer:
        writer.write(head)
        advance(len(head))
        goal = len(head)
        for run in _runs(header, wide):
            origin, size = header.data_start + run[0].start, run[-1].stop - run[0].start
            if run[0].name in wide:
                old = np.frombuffer(source.read(name, origin, origin + size), STORED[run[0].dtype])
                new = np.ascontiguousarray(widened(old, run[0].dtype), "<f4")
                writer.seek(goal)
                writer.write(new.data)
                advance(new.nbytes)
                goal += new.nbytes
            else:
                source.copy_part(name, origin, writer, goal, size, advance)
                goal += size


def _ordered(header: Header) -> list[Tensor]:
    return sorted(header.tensors.values(), key=lambda tensor: (tensor.start, tensor.stop))


def _runs(header: Header, wide: Collection[str]) -> list[list[Tensor]]:
    """The tensors in the order of their data, in lists that are copied at once: every widened one in its own."""
    runs: list[list[Tensor]] = []
    for tensor in _ordered(header):
        if runs and tensor.name not in wide and runs[-1][0].name not in wide:
            runs[-1].append(tensor)
        else:
            runs.append([tensor])
    return runs


def widened_header(header: Header, wide: Collection[str]) -> bytes:
    """The header of the file that `copy_widened` writes."""
    entries = [(t.name, "F32" if t.name in wide else t.dtype, t.shape) for t in _ordered(header)]
    return header_bytes(entries, header.metadata)


def _bytes(tensor: Tensor, wide: Collection[str]) -> int:
    return tensor_bytes("F32", tensor.shape) if tensor.name in wide else tensor.stop - tensor.start
