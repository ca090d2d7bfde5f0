"""Shards whose weights take a factor: copied by the kernel, and then changed in the ranges that a fold names."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Literal

from ...bake.plan import Step
from ...errors import UnsupportedBake, UsageError
from ...formats.copying import Advance, copy_file
from ...formats.index import INDEX, with_size
from ...formats.safetensors import Header, tensor_bytes
from ...sources import Source
from .arithmetic import scale_ranges
from .placement import Fold, Scaling
from .widening import copy_widened, widened_size

FoldDtype = Literal["stored", "f32"]


def folded_shards(source: Source, fold: Fold | None, dtype: FoldDtype = "stored") -> dict[str, Step]:
    """The step for every shard that a fold changes.

    dtype: "f32" stores the scaled tensors in 32 bits, which is for norms only. Raises UsageError where nothing is
    folded, UnsupportedBake where it is folded into matrices.
    """
    if fold is None:
        if dtype != "stored":
            raise UsageError("--fold-dtype goes with a fold; add --encoding weights, or leave it out")
        return {}
    found = {}
    for shard, header in source.headers.items():
        inside = [scaling for scaling in fold.scalings if scaling.tensor in header.tensors]
        if not inside:
            continue
        size = next(file.size for file in source.files() if file.name == shard)
        wide = _wide(header, inside) if dtype == "f32" else frozenset()
        make = partial(_fold, source, shard, inside, wide)
        found[shard] = Step("patch", shard, widened_size(header, wide) if wide else size, make=make)
    return found


def grown_index(source: Source, fold: Fold | None, dtype: FoldDtype) -> dict[str, str]:
    """The index with another total size, where tensors grow."""
    text = source.text(INDEX)
    if fold is None or dtype == "stored" or text is None:
        return {}
    names = {scaling.tensor for scaling in fold.scalings}
    tensors = [source.tensors[name] for name in names]
    grown = (tensor_bytes("F32", tensor.shape) - (tensor.stop - tensor.start) for tensor in tensors)
    return {INDEX: with_size(text, sum(grown))}


def dtype_notes(dtype: FoldDtype) -> tuple[str, ...]:
    """What to tell people about tensors of another type."""
    if dtype == "stored":
        return ()
    return ("the scaled norms are stored in float32; what loads the model in 16 bits rounds them then",)


def _wide(header: Header, scalings: list[Scaling]) -> frozenset[str]:
    for scaling in scalings:
        if len(header.tensors[scaling.tensor].shape) > 1:
            raise UnsupportedBake(
                "--fold-dtype f32", scaling.tensor, "it is a matrix, and only norms are small enough",
                "leave --fold-dtype out",
            )  # fmt: skip
    return frozenset(scaling.tensor for scaling in scalings)


def _fold(
    source: Source, shard: str, scalings: list[Scaling], wide: frozenset[str], target: Path, advance: Advance
) -> None:
    if wide:
        copy_widened(source.path(shard), target, wide, advance)
    else:
        copy_file(source.path(shard), target, advance)
    scale_ranges(target, ((item.tensor, item.spans, item.factor, item.plus_one) for item in scalings))
