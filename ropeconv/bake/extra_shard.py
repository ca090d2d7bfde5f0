"""Adds tensors to a checkpoint as one more shard, so that no other shard changes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from ..formats.copying import Advance
from ..formats.index import INDEX, index_of, with_shard
from ..formats.safetensors import header_bytes, write_stream
from ..sources import Source
from ..sources.source import SINGLE
from .plan import PlannedFile

SHARD = "model-rope.safetensors"
RENAMED = "model-00001-of-00001.safetensors"


@dataclass(frozen=True)
class Additions:
    """The changes to the files of a checkpoint that add tensors.

    files: to write in addition. texts: text files to write, by name, in place of the source's. renamed: new names of
    files of the source, by their old ones.
    """

    files: tuple[PlannedFile, ...] = ()
    texts: Mapping[str, str] = field(default_factory=dict)
    renamed: Mapping[str, str] = field(default_factory=dict)


def extra_shard(source: Source, tensors: Mapping[str, NDArray[np.float32]]) -> Additions:
    """The files that add tensors to a checkpoint; empty without tensors.

    source: the checkpoint. tensors: float32, by name. A checkpoint in one file gets an index, and its file another
    name, since readers prefer `model.safetensors` to any index.
    """
    if not tensors:
        return Additions()
    header = header_bytes([(name, "F32", data.shape) for name, data in tensors.items()], {"format": "pt"})
    size = len(header) + sum(data.nbytes for data in tensors.values())
    file = PlannedFile("write", SHARD, size, make=partial(_write, header, tensors))
    index, renamed = source.text(INDEX), {}
    if index is None:
        index = index_of(RENAMED, {tensor.name: tensor.stop - tensor.start for tensor in source.tensors.values()})
        renamed = {SINGLE: RENAMED}
    text = with_shard(index, SHARD, {name: data.nbytes for name, data in tensors.items()})
    return Additions((file,), {INDEX: text}, renamed)


def _write(header: bytes, tensors: Mapping[str, NDArray[np.float32]], target: Path, advance: Advance) -> None:
    write_stream(target, header, (np.ascontiguousarray(data, "<f4").data for data in tensors.values()))
    advance(target.stat().st_size)
