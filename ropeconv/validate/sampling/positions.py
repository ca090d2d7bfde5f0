"""The positions of a comparison, in buckets: the trained context, then every doubling up to the new one.

RoPE depends on distances alone, so a run of a few hundred tokens with positions spread over a long range tests long
distances.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

LONGEST = 8192


@dataclass(frozen=True)
class Bucket:
    """A range of positions. positions: of tokens, rising. counted: slice of those tokens that are in the range."""

    name: str
    positions: list[int]
    counted: slice


def usual_length(original: int, context: int) -> int:
    """The default number of tokens of a run over every position: four times the trained context, 512 to 8192.

    original, context: trained and new context, in tokens.
    """
    return min(context, max(512, 4 * original), LONGEST)


def doubling_buckets(original: int, context: int, tokens: int) -> list[Bucket]:
    """The buckets of spread runs, one run of at most `tokens` tokens per bucket.

    original, context: trained and new context, in tokens.
    """
    return [_bucket(low, high, tokens) for low, high in pairwise(_edges(original, context))]


def tail_buckets(original: int, length: int, each: int) -> list[Bucket]:
    """The buckets of one run over every position below `length`, with the last `each` positions of every range.

    original: the trained context, in tokens.
    """
    found = []
    for low, high in pairwise(_edges(original, length)):
        first = max(low, high - each)
        found.append(Bucket(f"{first:,}-{high - 1:,}", list(range(first, high)), slice(0, high - first)))
    return found


def spread_buckets(original: int, length: int, each: int) -> list[Bucket]:
    """The buckets of one run over every position below `length`, with `each` evenly spread positions of every range.

    original: the trained context, in tokens.
    """
    found = []
    for low, high in pairwise(_edges(original, length)):
        count = min(each, high - low)
        kept = [low + (index + 1) * (high - low) // count - 1 for index in range(count)]
        found.append(Bucket(f"{low:,}-{high - 1:,}", kept, slice(0, count)))
    return found


def _edges(original: int, context: int) -> list[int]:
    edges = [0, min(original, context)]
    while edges[-1] < context:
        edges.append(min(2 * edges[-1], context))
    return edges


def _bucket(low: int, high: int, tokens: int) -> Bucket:
    count = min(tokens, high)
    positions = [index * (high - 1) // max(1, count - 1) for index in range(count)]
    first = next(index for index, position in enumerate(positions) if position >= low)
    return Bucket(f"{low:,}-{high - 1:,}", positions, slice(first, count))
