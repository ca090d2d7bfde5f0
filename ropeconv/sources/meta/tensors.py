"""Converts consolidated.NN.pth to safetensors, one tensor at a time, from memory-mapped files loaded weights-only."""

from __future__ import annotations

import pickletools
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from ...errors import BadSource
from ...formats.safetensors import write_stream
from .layout import Shard, Target

STORAGES = {"BFloat16Storage": "bfloat16", "HalfStorage": "float16", "FloatStorage": "float32"}


def peek_dtype(path: Path) -> str:
    """The dtype of the tensors in a .pth file, from the names in its pickle; nothing is executed.

    Raises BadSource when it is not a zip of the kind torch.save writes, or holds another dtype.
    """
    try:
        with zipfile.ZipFile(path) as archive:
            name = next(entry for entry in archive.namelist() if entry.endswith("data.pkl"))
            operations = pickletools.genops(archive.read(name))
            found = {STORAGES[word] for word in _words(operations) if word in STORAGES}
    except (zipfile.BadZipFile, StopIteration, ValueError):
        raise BadSource(
            f"{path.name} is not a checkpoint that torch.save wrote, or is truncated; download it again"
        ) from None
    if len(found) != 1:
        raise BadSource(
            f"{path.name} mixes dtypes or holds none of {', '.join(STORAGES.values())}; convert it with torch first"
        )
    return found.pop()


def _words(operations: Any) -> Iterator[str]:
    for _, argument, _ in operations:
        if isinstance(argument, str):
            yield from argument.split()


def write_shard(shard: Shard, parts: list[Path], path: Path, advance: Callable[[int], None]) -> None:
    """Writes one safetensors file, tensor by tensor.

    shard, parts: as in `shard_blocks`, whose errors it raises. path: the file to write. advance: called with the bytes
    of each tensor.
    """

    def blocks() -> Iterator[memoryview]:
        for block in shard_blocks(shard, parts):
            yield block
            advance(len(block))

    write_stream(path, shard.header(), blocks())


def shard_blocks(shard: Shard, parts: list[Path]) -> Iterator[memoryview]:
    """Yields the data of one safetensors file, tensor by tensor.

    shard: what it holds. parts: the .pth files of all model-parallel parts, in order. Raises BadSource for .pth files
    that torch cannot load as plain weights, and for tensors that are missing or of another shape.
    """
    import torch

    try:
        loaded = [torch.load(part, map_location="cpu", weights_only=True, mmap=True) for part in parts]
    except Exception as problem:
        raise BadSource(
            f"{parts[0].name} cannot be read as plain weights ({type(problem).__name__}); download it again"
        ) from None

    for target in shard.targets:
        tensor = _make(target, loaded)
        yield memoryview(tensor.contiguous().view(torch.uint8).numpy().reshape(-1))


def _make(target: Target, parts: list[dict[str, Any]]) -> Any:
    import torch

    missing = [part for part in parts if target.origin not in part]
    if missing:
        raise BadSource(f"the .pth files have no {target.origin}; download the checkpoint again")
    pieces = [part[target.origin] for part in parts]
    join = target.join
    if target.origin.startswith("tok_embeddings") and pieces[0].shape[-1] == target.shape[-1]:
        join = 0  # Llama 3 splits the vocabulary, Llama 2 the width
    whole = pieces[0] if join is None or len(pieces) == 1 else torch.cat(pieces, dim=join)
    if tuple(whole.shape) != target.shape:
        raise BadSource(
            f"{target.origin} has shape {list(whole.shape)} where params.json implies {list(target.shape)}; "
            "the files do not belong together, download the checkpoint again"
        )
    return _halves(whole, target.heads) if target.heads else whole


def _halves(weight: Any, heads: int) -> Any:
    """Rows of each head from pairs (0, 1), (2, 3), ... to halves (0, r/2), (1, r/2 + 1), ..."""
    rows, columns = weight.shape
    pairs = weight.view(heads, rows // heads // 2, 2, columns)
    return pairs.transpose(1, 2).reshape(rows, columns)
