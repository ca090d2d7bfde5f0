"""The positions of a comparison, in buckets: the trained context, then every doubling up to the new
one.

RoPE depends only on distances, so a run of a few hundred tokens with positions spread over a long
range tests long distances.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from ..errors import BadSource
from ..loader import load_tokenizer
from ..rope.errors import counted
from ..rope.schedule import Schedule
from .comparison import Settings

if TYPE_CHECKING:
    from torch import Tensor

LONGEST = 8192
BLOCK = 32
"""Tokens without a gap in a run of `TokenRun.blocks`."""


@dataclass(frozen=True)
class Bucket:
    """A range of positions. positions: those that are compared, rising."""

    name: str
    positions: list[int]


def usual_length(original: int, context: int) -> int:
    """Return the default length of a run over every position: four times the trained context, 512
    to 8192 tokens.
    """
    return min(context, max(512, 4 * original), LONGEST)


PATIENCE = 600.0
"""Seconds that a run over every position may take without being asked for."""
SAMPLE = 256
"""Tokens that are run to estimate the time of a longer run."""


def length_beyond(original: int, context: int) -> int:
    """Return the length of a run that goes a little beyond the trained context, in tokens."""
    return min(context, original + max(512, original // 4))


def affordable_length(
    original: int, context: int, seconds: Callable[[], float], needed: int, free: int
) -> int:
    """Return the default length of a run over every position.

    That is `usual_length`, or where this ends inside the trained context `length_beyond`, if the
    estimates of its time and of the memory of its cache allow it.

    Args:
        original: The trained context in tokens.
        context: The new one.
        seconds: Runs `SAMPLE` tokens in every way that is compared, and returns how long that took.
        needed: Bytes of a cache of `length_beyond`.
        free: Bytes of free memory.
    """
    usual = usual_length(original, context)
    longer = length_beyond(original, context)
    if not usual <= original < context or needed > free / 2:
        return usual
    # attention to the tokens before costs about as much as the rest from LONGEST on
    estimate = seconds() / SAMPLE * longer * (1 + longer / LONGEST)
    return longer if estimate <= PATIENCE else usual


def tail_buckets(original: int, length: int, each: int) -> list[Bucket]:
    """Return the buckets of one run over all positions below `length`: the last `each` positions of
    every range.
    """
    firsts = [(max(low, high - each), high) for low, high in doublings(original, length)]
    return [Bucket(_name(first, high), list(range(first, high))) for first, high in firsts]


def spread_buckets(original: int, length: int, each: int) -> list[Bucket]:
    """Return the buckets of one run over all positions below `length`: `each` spread positions of
    every range.
    """
    buckets = []
    for low, high in doublings(original, length):
        count = min(each, high - low)
        positions = [low + (index + 1) * (high - low) // count - 1 for index in range(count)]
        buckets.append(Bucket(_name(low, high), positions))
    return buckets


def doublings(original: int, context: int) -> list[tuple[int, int]]:
    """Return the trained context and every doubling up to the new one, as first position and last +
    1.
    """
    edges = [0, min(original, context)]
    while edges[-1] < context:
        edges.append(min(2 * edges[-1], context))
    return list(pairwise(edges))


def _name(low: int, high: int) -> str:
    return f"{low:,}-{high - 1:,}"


SPAN = 24  # tokens that are repeated
SHARE = 0.5


def synthetic(count: int, vocabulary: int, seed: int) -> list[int]:
    """Return random tokens; about half are spans of 24 that repeat earlier ones, so that the past
    matters.
    """
    import torch

    generator = torch.Generator().manual_seed(seed)
    ids: list[int] = []
    while len(ids) < count:
        if len(ids) > 2 * SPAN and torch.rand(1, generator=generator).item() < SHARE:
            start = int(torch.randint(len(ids) - SPAN, (1,), generator=generator).item())
            ids += ids[start : start + SPAN]
        else:
            ids += torch.randint(vocabulary, (SPAN,), generator=generator).tolist()
    return ids[:count]


def of_text(text: Path | str, folder: Path, count: int, trust: bool = False) -> list[int]:
    """Return the first `count` tokens of a text.

    text: a file in UTF-8, or the text itself. folder: the checkpoint with the tokenizer. trust: run
    its code. Raises BadSource if the file cannot be read or is too short, or the tokenizer does not
    load.
    """
    if isinstance(text, Path):
        name = str(text)
        content = _read_utf8(text)
    else:
        name = "the text"
        content = text
    ids: list[int] = load_tokenizer(folder, trust, "leave --text out")(content).input_ids
    if len(ids) < count:
        has = counted(len(ids), "token")
        raise BadSource(
            f"{name} has {has}, and {count:,} are needed; give a longer text, or leave --text out"
        )
    return ids[:count]


def _read_utf8(file: Path) -> str:
    try:
        return file.read_text("utf-8")
    except (OSError, UnicodeDecodeError) as problem:
        raise BadSource(
            f"{file} cannot be read as UTF-8 text ({problem}); give another --text"
        ) from None


SPREAD = 512
"""Tokens of a spread run."""
KEPT = 256  # positions of a bucket whose logits are compared


@dataclass(frozen=True)
class TokenRun:
    """A sequence of tokens that a model reads at once.

    kind: "spread" for a few tokens over a long range, "whole" for every position. ids: the tokens.
    positions: of all tokens, rising. kept: rising indices of the tokens whose logits are compared.
    buckets: of these, in order.
    """

    kind: Literal["spread", "whole"]
    ids: list[int]
    positions: list[int]
    kept: list[int]
    buckets: list[Bucket]

    @classmethod
    def spread(cls, low: int, high: int, ids: list[int]) -> TokenRun:
        """Return a run of tokens at even distances below position `high`. Those from position `low`
        on are compared.
        """
        positions = [index * (high - 1) // max(1, len(ids) - 1) for index in range(len(ids))]
        kept = [index for index, position in enumerate(positions) if position >= low]
        bucket = Bucket(_name(low, high), [positions[index] for index in kept])
        return cls("spread", ids, positions, kept, [bucket])

    @classmethod
    def blocks(cls, low: int, high: int, ids: list[int], most: int) -> TokenRun:
        """Return a run of blocks of tokens at even distances below position `high`.

        At most `most` tokens from position `low` on are compared. The first token of a block is
        not, since llama.cpp shows it no block before (see `LlamaModel.spread_logits`).
        """
        size = BLOCK if len(ids) < high else high
        count = max(1, len(ids) // size)
        firsts = [index * (high - size) // max(1, count - 1) for index in range(count)]
        positions = [first + offset for first in firsts for offset in range(size)]

        kept = [
            index for index, position in enumerate(positions) if position >= low and index % size
        ]
        kept = kept[:: -(-len(kept) // most)]
        bucket = Bucket(_name(low, high), [positions[index] for index in kept])
        return cls("spread", ids[: count * size], positions, kept, [bucket])

    @property
    def has_gaps(self) -> bool:
        """Whether a position is left out between two tokens."""
        return self.positions[-1] - self.positions[0] >= len(self.positions)

    @classmethod
    def over_all(
        cls, kind: Literal["spread", "whole"], ids: list[int], buckets: list[Bucket]
    ) -> TokenRun:
        """Return a run over every position from 0 on. kind, ids, buckets: as in the class."""
        kept = [position for bucket in buckets for position in bucket.positions]
        return cls(kind, ids, list(range(len(ids))), kept, buckets)

    def until(self, count: int) -> TokenRun:
        """Return the run up to its first `count` compared tokens."""
        if count >= len(self.kept):
            return self
        kept = self.kept[:count]
        parts = [
            (bucket, bucket.positions[: max(0, count - rows.start)])
            for bucket, rows in self.parts()
        ]
        buckets = [replace(bucket, positions=positions) for bucket, positions in parts if positions]
        stop = kept[-1] + 1 if kept else 0
        return replace(
            self, ids=self.ids[:stop], positions=self.positions[:stop], kept=kept, buckets=buckets
        )

    def targets(self) -> Tensor:
        """Return the token after each compared one, int64 [len(kept)]; -1 after the last token of
        the run.
        """
        import torch

        return torch.tensor([self.ids[k + 1] if k + 1 < len(self.ids) else -1 for k in self.kept])

    def parts(self) -> Iterator[tuple[Bucket, slice]]:
        """Yield each bucket with the slice of its tokens in `kept`."""
        first = 0
        for bucket in self.buckets:
            yield bucket, slice(first, first := first + len(bucket.positions))


def block_runs(
    original: int, context: int, vocabulary: int, seed: int, each: int
) -> list[TokenRun]:
    """Return a run of blocks for the trained context and every doubling up to the new one.

    original, context: the two lengths. vocabulary: number of tokens. each: positions of a run that
    are compared.
    """
    runs = []
    for number, (low, high) in enumerate(doublings(original, context)):
        ids = synthetic(min(SPREAD, high), vocabulary, seed + number)
        runs.append(TokenRun.blocks(low, high, ids, each))
    return runs


def spread_tokens(schedule: Schedule, settings: Settings) -> int:
    """Return the number of tokens of all spread runs together."""
    ranges = doublings(schedule.original_context, schedule.context)
    return sum(min(settings.spread, high) for _, high in ranges)


def token_runs(
    settings: Settings, schedule: Schedule, vocabulary: int, folder: Path
) -> list[TokenRun]:
    """Return the runs of a comparison: a spread run per bucket, and a whole run if
    `settings.length` is set.

    settings: lengths, seed and text. schedule: of the output. vocabulary: number of tokens for
    synthetic text. folder: of the source, for its tokenizer. Raises BadSource as `of_text` does.
    """
    longest = max(settings.length, min(settings.spread, schedule.context))
    text = (
        None
        if settings.text is None
        else of_text(settings.text, folder, longest, settings.trust_remote_code)
    )

    def tokens(count: int, seed: int) -> list[int]:
        return text[:count] if text else synthetic(count, vocabulary, seed)

    ranges = doublings(schedule.original_context, schedule.context)
    runs = [
        TokenRun.spread(low, high, tokens(min(settings.spread, high), settings.seed + number))
        for number, (low, high) in enumerate(ranges)
    ]
    if settings.length:
        buckets = spread_buckets(schedule.original_context, settings.length, KEPT)
        runs.append(TokenRun.over_all("whole", tokens(settings.length, settings.seed), buckets))
    return runs
