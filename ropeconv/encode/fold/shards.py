"""Shards with folded weights: copied by the kernel, and then multiplied in the ranges that a fold names."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from ...errors import UnsupportedBake
from ...formats.copying import Advance
from ...formats.index import INDEX, with_size
from ...formats.safetensors import Header, tensor_bytes
from ...sources import Source
from ..target import FoldDtype
from .arithmetic import scale_ranges
from .placement import Fold, Scaling
from .widening import copy_widened, widened_size


@dataclass(frozen=True)
class FoldedShard:
    """A shard that a fold changes. size: in bytes. write(target, advance): writes it to a path."""

    name: str
    size: int
    write: Callable[[Path, Advance], None]


def folded_shards(source: Source, fold: Fold | None, dtype: FoldDtype) -> list[FoldedShard]:
    """The shards of a checkpoint that a fold changes.

    source: the checkpoint. fold: None where nothing is folded. dtype: "stored", or "f32" to store scaled norms in 32
    bits. Raises UnsupportedBake for "f32" where matrices are scaled.
    """
    found: list[FoldedShard] = []
    sizes = {file.name: file.size for file in source.files()}
    for shard, header in source.headers.items() if fold else ():
        inside = [scaling for scaling in fold.scalings if scaling.tensor in header.tensors] if fold else []
        if not inside:
            continue
        wide = _wide(header, inside) if dtype == "f32" else frozenset()
        size = widened_size(header, wide) if wide else sizes[shard]
        found.append(FoldedShard(shard, size, partial(_write, source, shard, inside, wide)))
    return found


def grown_index(source: Source, fold: Fold | None, dtype: FoldDtype) -> dict[str, str]:
    """The new text of the index, by its name, where tensors become F32; empty where no size changes.

    source: the checkpoint. fold: None where nothing is folded. dtype: of the scaled tensors, "stored" or "f32".
    """
    text = source.text(INDEX)
    if fold is None or dtype == "stored" or text is None:
        return {}
    names = {scaling.tensor for scaling in fold.scalings}
    tensors = [source.tensors[name] for name in names]
    grown = (tensor_bytes("F32", tensor.shape) - (tensor.stop - tensor.start) for tensor in tensors)
    return {INDEX: with_size(text, sum(grown))}


def dtype_notes(dtype: FoldDtype) -> tuple[str, ...]:
    """The notes for the user about scaled tensors that are stored in another type."""
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


def _write(
    source: Source, shard: str, scalings: list[Scaling], wide: frozenset[str], target: Path, advance: Advance
) -> None:
    if wide:
        copy_widened(source, shard, target, wide, advance)
    else:
        source.copy(shard, target, advance)
    scale_ranges(target, ((item.tensor, item.spans, item.factor, item.plus_one) for item in scalings))
