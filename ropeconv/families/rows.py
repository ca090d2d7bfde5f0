"""Which tensors and rows of a checkpoint make the queries and the keys of each head, from names and shapes alone."""

from __future__ import annotations

from collections.abc import Container
from typing import Literal

from ..errors import BadSource
from .family import Family
from .keys import Config, positive_int

Which = Literal["q", "k"]


def layer_prefixes(layer: int, family: Family) -> tuple[str, ...]:
    """What the names of a layer's tensors may begin with. layer: its number, which counts attention blocks."""
    number, block = divmod(layer, family.layers.blocks)
    named = family.weights.block[block] if family.weights.block else block
    return tuple(pattern.format(layer=number, block=named) for pattern in family.weights.layer)


def layer_prefix(layer: int, family: Family, names: Container[str]) -> str | None:
    """What the names of a layer's tensors begin with; None where its projection is not among them.

    layer: its number. family: of the model. names: of all tensors of the checkpoint.
    """
    weights = family.weights
    for prefix in layer_prefixes(layer, family):
        if any(probe and f"{prefix}{probe}.weight" in names for probe in (weights.k, weights.fused, weights.q)):
            return prefix
    return None


def head_count(part: Config, family: Family) -> int:
    """Number of heads of queries. part: the text part of config.json. Raises BadSource where it is not stated."""
    heads = positive_int(part, family.keys.heads, family.defaults.heads)
    if heads is None:
        raise BadSource(f"config.json has no {family.keys.heads[0]}; add it")
    return heads


def fused_heads(which: Which, rows: int, heads: int, head_dim: int, family: Family) -> tuple[int, ...]:
    """The first row of each head's queries or keys in a fused projection of queries, keys and values.

    which: "q" or "k". rows: of the projection. heads: number of heads of queries. head_dim: rows of one head. family:
    of the model, which knows the order of the rows.
    """
    order = family.weights.fused_order
    gates = heads if order == "gate-and-blocks" else 0
    kv = (rows // head_dim - gates - heads) // 2
    if order.endswith("blocks"):
        first, count = (gates, heads) if which == "q" else (gates + heads, kv)
        return tuple((first + head) * head_dim for head in range(count))
    if order == "per-head":
        kv = heads
    group = heads // kv + 2
    offsets = range(group - 2) if which == "q" else (group - 2,)
    return tuple((index * group + offset) * head_dim for index in range(kv) for offset in offsets)
