"""The files over which a checkpoint is spread: which tensors share one, their names, and the index."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TypeVar

from . import jsontext

T = TypeVar("T")
SHARD_BYTES = 5_000_000_000
"""Of the data of a file, as transformers cuts checkpoints for the Hub."""


def grouped(items: Iterable[T], size: Callable[[T], int], limit: int = SHARD_BYTES) -> list[tuple[T, ...]]:
    """Items in order, in groups of at most `limit` bytes each, or of one item. size: of an item, in bytes."""
    groups: list[list[T]] = [[]]
    filled = 0
    for item in items:
        if groups[-1] and filled + size(item) > limit:
            groups.append([])
            filled = 0
        groups[-1].append(item)
        filled += size(item)
    return [tuple(group) for group in groups]


def shard_names(count: int) -> list[str]:
    """The names of `count` files of one checkpoint."""
    if count == 1:
        return ["model.safetensors"]
    return [f"model-{number:05d}-of-{count:05d}.safetensors" for number in range(1, count + 1)]


def index_text(total: int, weight_map: dict[str, str]) -> str:
    """The text of model.safetensors.index.json. total: bytes of all tensors. weight_map: the file of each tensor."""
    return jsontext.dump({"metadata": {"total_size": total}, "weight_map": weight_map})
