"""The tensors of a checkpoint from those of a GGUF file: the rows of each, and the shards that they are written to.

How a family's rows are reordered, joined and stacked is what `out_tensors` does with a checkpoint of these tensors.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from math import prod
from pathlib import Path

from ...errors import BadSource, UnsupportedBake
from ...families.gguf import Gguf
from ...formats.gguf import GgufFile
from ...formats.gguf.types import F32
from ...formats.safetensors import Header, Tensor, header_bytes, tensor_bytes
from ..conversions import Sizes
from ..rows import OutTensor
from ..tensors import is_numbered, out_tensors

NOWHERE = Path()


@dataclass(frozen=True)
class Part:
    """Consecutive rows of a tensor in GGUF.

    origin: its name. first: the element that they begin with. rows, columns: their size. interleave, values: as in
    `OutTensor`, what has to be undone.
    """

    origin: str
    first: int
    rows: int
    columns: int
    interleave: int
    values: str


@dataclass(frozen=True)
class Restored:
    """One tensor of the checkpoint. parts: its rows, in order. dtype: as safetensors names it."""

    name: str
    shape: tuple[int, ...]
    parts: tuple[Part, ...]
    dtype: str = "F32"

    @property
    def size(self) -> int:
        """Size in bytes."""
        return tensor_bytes(self.dtype, self.shape)


@dataclass(frozen=True)
class Shard:
    """One safetensors file of the checkpoint. tensors: in order."""

    name: str
    tensors: tuple[Restored, ...]

    def header(self) -> bytes:
        """The bytes of its header."""
        return header_bytes(((one.name, one.dtype, one.shape) for one in self.tensors), {"format": "pt"})

    @property
    def size(self) -> int:
        """Size of the file in bytes."""
        return len(self.header()) + sum(one.size for one in self.tensors)


def restored_tensors(file: GgufFile, names: Mapping[str, tuple[str, ...]], rules: Gguf, sizes: Sizes) -> list[Restored]:
    """The tensors of a checkpoint, all in F32.

    file: the GGUF model. names: those in the checkpoint by those in GGUF. rules: of the family for GGUF. sizes: of the
    model. Raises BadSource where a tensor has another shape than such a checkpoint gives, UnsupportedBake where a
    conversion does not move whole rows.
    """
    header = _checkpoint_header(file, names, rules)
    made = out_tensors([(NOWHERE, header)], rules, sizes, F32)
    tensors = list(header.tensors.values())
    starts, parts = [one.start for one in tensors], [list[tuple[int, Part]]() for _ in tensors]
    for out in made:
        info = file.tensors.get(out.name)
        if info is None or info.shape != out.shape:
            raise BadSource(
                f"{out.name} has the shape {info and info.shape} in the GGUF file, and {out.shape} belongs there; "
                "download it again"
            )
        for start, part in _parts(out):
            parts[bisect_right(starts, start) - 1].append((start, part))
    return [
        Restored(one.name, one.shape, tuple(part for _, part in sorted(found, key=lambda item: item[0])))
        for one, found in zip(tensors, parts, strict=True)
    ]


def _checkpoint_header(file: GgufFile, names: Mapping[str, tuple[str, ...]], rules: Gguf) -> Header:
    """The header of a safetensors file with these tensors in F32, in the order of the GGUF file."""
    found, at = {}, 0
    for target, origins in names.items():
        shape = tuple(reversed(file.tensors[target].shape))
        shape = shape[1:] if is_numbered(origins[0], rules) else shape
        for name in origins:
            stop = at + 4 * prod(shape)
            found[name] = Tensor(name, "F32", shape, at, stop)
            at = stop
    return Header(found, {}, 0)


def _parts(out: OutTensor) -> Iterator[tuple[int, Part]]:
    """Yields where the rows of a tensor are in the checkpoint, in bytes, and which rows of the GGUF tensor they are."""
    first = 0
    for rows in out.parts:
        if not rows.packed or out.tiles != (1, 1):
            raise UnsupportedBake(
                f"the tensor {out.name}",
                "a checkpoint",
                "how it was made from those of the checkpoint is not undone",
                "take the checkpoint that the file was made from",
            )
        yield rows.start, Part(out.name, first, rows.rows, rows.columns, out.interleave, out.values)
        first += rows.rows * rows.columns
