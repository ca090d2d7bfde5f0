"""Which rows of a projection make the queries or keys that rotate, as spans [start, stop)."""

from __future__ import annotations

from collections.abc import Mapping

from ...errors import BadSource
from ...families import Family
from ...families.config import Config
from ...families.keys import positive_int
from ...families.rows import Which, fused_heads, head_count
from ...formats.safetensors import Tensor
from ...rope.spec import RopeSpec

Span = tuple[int, int]


def query_rows(rows: int, family: Family, part: Config) -> tuple[Span, ...]:
    """All rows of a projection that make queries, as spans: those of a gate behind each head are left out."""
    gate = _gate(family, part)
    if not gate:
        return ((0, rows),)
    width = rows // head_count(part, family)
    return tuple((start, start + width - gate) for start in range(0, rows, width))


def _gate(family: Family, part: Config) -> int:
    """How many rows of an output gate follow the queries of each head. Raises BadSource where it is not stated."""
    key = family.weights.q_gate
    gate = positive_int(part, (key,)) if key else 0
    if gate is None:
        raise BadSource(f"config.json has no {key}; add it")
    return gate


def rotated_rows(rows: int, which: Which, spec: RopeSpec, family: Family, part: Config) -> tuple[Span, ...]:
    if family.weights.rows == "first":
        return per_head(rows // spec.head_dim, spec.head_dim, spec.rotary_dim)
    heads = 1 if which == "k" else head_count(part, family)
    width, gate = rows // heads, _gate(family, part) if which == "q" else 0
    return tuple(((head + 1) * width - gate - spec.rotary_dim, (head + 1) * width - gate) for head in range(heads))


def fused_rows(
    name: str, which: Which, spec: RopeSpec, family: Family, part: Config, tensors: Mapping[str, Tensor]
) -> tuple[Span, ...]:
    """The rotated rows of queries or keys in a fused projection of queries, keys and values, as spans of rows."""
    starts = fused_heads(which, tensors[name].shape[0], head_count(part, family), spec.head_dim, family)
    if family.weights.fused_order.endswith("blocks"):
        return per_head(len(starts), spec.head_dim, spec.rotary_dim, starts[0])
    return tuple((start, start + spec.rotary_dim) for start in starts)


def per_head(heads: int, width: int, rotary_dim: int, start: int = 0) -> tuple[Span, ...]:
    """Spans of the first `rotary_dim` of every `width` rows, from row `start` on; one span where all rotate."""
    if rotary_dim == width:
        return ((start, start + heads * width),)
    return tuple((start + head * width, start + head * width + rotary_dim) for head in range(heads))


def elements(rows: tuple[Span, ...], columns: int) -> tuple[Span, ...]:
    return tuple((start * columns, stop * columns) for start, stop in rows)
