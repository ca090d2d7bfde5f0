"""The tensors of a checkpoint from those of a GGUF file: the rows of each.

How a family's rows are reordered, joined and stacked is what `out_tensors` does with a checkpoint of these tensors.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from math import prod

from ...errors import BadSource, UnsupportedBake
from ...families.gguf import Gguf
from ...formats.gguf import GgufFile
from ...formats.gguf.types import F32
from ...formats.safetensors import Header, Tensor, tensor_bytes
from ..conversions import Sizes
from ..rows import OutTensor, Weights
from ..scalars import LAYER
from ..tensors import out_tensors
from .shapes import Shape

NOWHERE = Weights(None, "")


@dataclass(frozen=True)
class Part:
    """Consecutive rows of a tensor in GGUF.

    origin: its name, or the metadata key of a list that has them. first: the element that they begin with. rows,
    columns: their size. interleave, values, tiles: as in `OutTensor`, what has to be undone. stride: from one row to
    the next in the tensor of the checkpoint, in elements. apart: from one element of a row to the next. at: the first
    one, counted from where its region begins.
    """

    origin: str
    first: int
    rows: int
    columns: int
    interleave: int
    values: str
    tiles: tuple[int, int]
    stride: int
    apart: int
    at: int = 0

    @property
    def is_packed(self) -> bool:
        """Whether the rows follow each other in the checkpoint too."""
        return self.apart == 1 and self.stride == self.columns

    @property
    def extent(self) -> int:
        """Elements of the checkpoint from the first to the last one."""
        return (self.rows - 1) * self.stride + (self.columns - 1) * self.apart + 1


@dataclass(frozen=True)
class Region:
    """Consecutive elements of a tensor of the checkpoint. size: their number. parts: that they consist of."""

    size: int
    parts: tuple[Part, ...]


@dataclass(frozen=True)
class Restored:
    """One tensor of the checkpoint. regions: in order. dtype: as safetensors names it."""

    name: str
    shape: tuple[int, ...]
    regions: tuple[Region, ...]
    dtype: str = "F32"

    @property
    def size(self) -> int:
        """Size in bytes."""
        return tensor_bytes(self.dtype, self.shape)

    @property
    def parts(self) -> Iterator[Part]:
        """The parts of all regions."""
        return (part for region in self.regions for part in region.parts)


def restored_tensors(file: GgufFile, shapes: Mapping[str, Shape], rules: Gguf, sizes: Sizes) -> list[Restored]:
    """The tensors of a checkpoint, all in F32.

    file: the GGUF model. shapes: in the checkpoint, by name. rules: of the family for GGUF. sizes: of the model. Raises
    BadSource where a tensor has another shape than such a checkpoint gives, UnsupportedBake where a conversion leaves
    elements out.
    """
    header = _checkpoint_header(shapes)
    made = out_tensors([(NOWHERE, header)], rules, sizes, F32)
    tensors = list(header.tensors.values())
    starts, parts = [one.start for one in tensors], [list[Part]() for _ in tensors]
    for out in made:
        info = file.tensors.get(out.name)
        if info is None or trimmed(info.shape) != trimmed(out.shape):
            raise BadSource(
                f"{out.name} has the shape {info and info.shape} in the GGUF file, and {out.shape} belongs there; "
                "download it again"
            )
        for start, part in _parts(out):
            number = bisect_right(starts, start) - 1
            parts[number].append(replace(part, at=(start - starts[number]) // 4))
    for one, found in zip(tensors, parts, strict=True):
        found += _scalar(one.name, rules)
    return [Restored(one.name, one.shape, _regions(one, found)) for one, found in zip(tensors, parts, strict=True)]


def trimmed(shape: Shape) -> Shape:
    """A shape of GGUF, fastest dimension first, without ones at its end."""
    return trimmed(shape[:-1]) if shape[-1:] == (1,) else shape


def _scalar(name: str, rules: Gguf) -> list[Part]:
    """The part of a tensor whose number is in a metadata key, the list of those of all layers; none for others."""
    layer = LAYER.search(name)
    keys = [key for key, ending in rules.scalars.items() if name.endswith(f".{ending}")]
    return [Part(key, int(layer[1]), 1, 1, 0, "", (1, 1), 1, 1) for key in keys if layer]


def _checkpoint_header(shapes: Mapping[str, Shape]) -> Header:
    """The header of a safetensors file with these tensors in F32."""
    found, at = {}, 0
    for name, shape in shapes.items():
        stop = at + 4 * prod(shape)
        found[name] = Tensor(name, "F32", shape, at, stop)
        at = stop
    return Header(found, {}, 0)


def _parts(out: OutTensor) -> Iterator[tuple[int, Part]]:
    """Yields where the rows of a tensor are in the checkpoint, in bytes, and which rows of the GGUF tensor they are."""
    first = 0
    for rows in out.parts:
        how = (out.interleave, out.values, out.tiles)
        yield rows.start, Part(out.name, first, rows.rows, rows.columns, *how, rows.stride, rows.apart)
        first += rows.rows * rows.columns


def _regions(tensor: Tensor, parts: list[Part]) -> tuple[Region, ...]:
    """The regions of a tensor: packed parts alone, others together with those that they overlap."""
    found: list[list[Part]] = []
    edges = [0]  # where regions end
    for part in sorted(parts, key=lambda part: part.at):
        if part.at >= edges[-1]:
            found.append([])
            edges.append(part.at)
        found[-1].append(part)
        edges[-1] = max(edges[-1], part.at + part.extent)
    regions = [
        Region(last - first, tuple(replace(part, at=part.at - first) for part in inside))
        for inside, first, last in zip(found, edges[:-1], edges[1:], strict=True)
    ]
    given = sum(part.rows * part.columns for part in parts)
    if given != prod(tensor.shape) or edges[-1] != given:
        raise UnsupportedBake(
            f"the tensor {tensor.name}",
            "a checkpoint",
            "the GGUF file has not all of its elements",
            "take the checkpoint that the file was made from",
        )
    return tuple(regions)
