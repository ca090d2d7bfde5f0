"""Which positions a comparison looks at: inside the trained context, then every doubling up to the new one.

RoPE knows only distances, so a short run with positions spread over a long range sees long distances at the
price of a few hundred tokens.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

LONGEST = 8192


@dataclass(frozen=True)
class Bucket:
    """A run. positions: of its tokens, rising. counted: the tokens whose position lies in the bucket."""

    name: str
    positions: list[int]
    counted: slice


def usual_length(original: int, context: int) -> int:
    """Tokens of a run over every position that shows what there is to see, where nobody has said how many."""
    return min(context, max(512, 4 * original), LONGEST)


def doubling_buckets(original: int, context: int, tokens: int) -> list[Bucket]:
    """The runs for a trained length and a new one, of at most `tokens` tokens each."""
    return [_bucket(low, high, tokens) for low, high in pairwise(_edges(original, context))]


def tail_buckets(original: int, length: int, each: int) -> list[Bucket]:
    """Buckets of one run over every position below `length`; of each bucket its last `each` tokens are counted."""
    found = []
    for low, high in pairwise(_edges(original, length)):
        first = max(low, high - each)
        found.append(Bucket(f"{first:,}-{high - 1:,}", list(range(first, high)), slice(0, high - first)))
    return found


def spread_buckets(original: int, length: int, each: int) -> list[Bucket]:
    """Buckets of one run over every position below `length`; of each at most `each` positions, evenly spread."""
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
