"""The positions of a comparison, in buckets: the trained context, then every doubling of it.

RoPE depends only on distances, so a run of a few hundred tokens with positions spread over a long
range tests long distances.
"""

from __future__ import annotations

import math
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

LONGEST_USUAL_LENGTH = 8192
"""The longest run over every position that is made by default."""
EQUAL_COST_LENGTH = 8192
"""The tokens at which attention to all tokens before takes about as long as all else."""
BLOCK = 32
"""Tokens without a gap in a run of `TokenRun.blocks`."""


@dataclass(frozen=True)
class Bucket:
    """A range of positions."""

    name: str

    positions: list[int]
    """The positions that are compared, rising."""


def usual_length(original: int, context: int) -> int:
    """Return the default length of a run over every position.

    The length is four times the trained context, from 512 to 8192 tokens.
    """
    return min(context, max(512, 4 * original), LONGEST_USUAL_LENGTH)


LONGEST_SECONDS = 600.0
"""Seconds that a run over every position may take without being asked for."""
SAMPLE = 256
"""Tokens that are run to estimate the time of a longer run."""


def length_beyond(original: int, context: int) -> int:
    """Return the length of a run that goes a little beyond the trained context, in tokens."""
    return min(context, original + max(512, original // 4))


def affordable_length(
    original: int, context: int, seconds: Callable[[], float], needed: int, free: int
) -> int:
    """Return how many tokens to run from position 0 on, if the user names no number.

    The usual length is four times the trained context, up to 8,192 tokens. For a trained context of
    8,192 or more, such a run would end within the trained context. The length is then a quarter
    more than the trained context, if time and memory allow that.

    Args:
        original: The trained context in tokens.
        context: The new context in tokens.
        seconds: Runs `SAMPLE` tokens through all models, and returns the time in seconds.
        needed: Bytes of the KV cache for the longer run (`length_beyond`).
        free: Bytes of free memory.
    """
    usual = usual_length(original, context)
    usual_shows_extension = usual > original or context <= original
    if usual_shows_extension:
        return usual

    # the other half of the memory is for the weights and for what else runs on the machine
    if needed > free / 2:
        return usual

    # The sample is so short that attention costs nearly nothing. Its cost grows with the length,
    # and at EQUAL_COST_LENGTH tokens it equals the cost of the rest of the model.
    longer = length_beyond(original, context)
    seconds_per_token = seconds() / SAMPLE
    cost_of_attention = longer / EQUAL_COST_LENGTH  # over the cost of the rest
    estimated_seconds = longer * seconds_per_token * (1 + cost_of_attention)
    if estimated_seconds > LONGEST_SECONDS:
        return usual
    return longer


def tail_buckets(original: int, length: int, each: int) -> list[Bucket]:
    """Return the last positions of every range, for a run over all positions.

    Args:
        original: The trained context in tokens.
        length: The length of the run in tokens.
        each: The number of positions of a range.
    """
    buckets = []
    for low, high in doublings(original, length):
        first = max(low, high - each)
        buckets.append(Bucket(_name(first, high), list(range(first, high))))
    return buckets


def spread_buckets(original: int, length: int, each: int) -> list[Bucket]:
    """Return the positions that are compared in a run over all positions, by range (bucket).

    The ranges are the trained context, and then up to each doubling of it. In each, some positions
    at even distances are compared: 8447, 8703, ..., 16383 of the range 8,192 to 16,383, say.

    Args:
        original: The trained context in tokens.
        length: The length of the run in tokens.
        each: The number of positions of a range.
    """
    buckets = []
    for low, high in doublings(original, length):
        # the range in `count` equal parts: the last position of each, which is high - 1 at the end
        size = high - low
        count = min(each, size)
        positions = []
        for part in range(1, count + 1):
            end = low + part * size // count
            positions.append(end - 1)
        buckets.append(Bucket(_name(low, high), positions))
    return buckets


def doublings(original: int, context: int) -> list[tuple[int, int]]:
    """Return the trained context and every doubling up to the new one.

    Each is the first position and the one after the last.
    """
    edges = [0, min(original, context)]
    while edges[-1] < context:
        edges.append(min(2 * edges[-1], context))
    return list(pairwise(edges))


def _name(low: int, high: int) -> str:
    """Return the name of a range: its first and its last position."""
    return f"{low:,}-{high - 1:,}"


SPAN_TOKENS = 24  # tokens that are repeated
REPEATED_SHARE = 0.5


def synthetic(count: int, vocabulary: int, seed: int) -> list[int]:
    """Return random tokens, about half of them in spans of 24 that repeat earlier ones.

    A model predicts a repeat by attention to the past, so that a wrong RoPE changes its logits.

    Args:
        count: How many tokens.
        vocabulary: The number of different tokens.
        seed: The seed of the random numbers.
    """
    import torch

    generator = torch.Generator().manual_seed(seed)
    ids: list[int] = []
    while len(ids) < count:
        # a model predicts a repeated span by attention to its first occurrence
        has_earlier_spans = len(ids) > 2 * SPAN_TOKENS
        if has_earlier_spans and torch.rand(1, generator=generator).item() < REPEATED_SHARE:
            start = int(torch.randint(len(ids) - SPAN_TOKENS, (1,), generator=generator).item())
            ids += ids[start : start + SPAN_TOKENS]
        else:
            ids += torch.randint(vocabulary, (SPAN_TOKENS,), generator=generator).tolist()
    return ids[:count]


def of_text(text: Path | str, folder: Path, count: int, trust: bool = False) -> list[int]:
    """Return the first tokens of a text.

    Args:
        text: A file in UTF-8, or the text itself.
        folder: The checkpoint with the tokenizer.
        count: How many tokens.
        trust: Whether to run the code of the tokenizer.

    Raises:
        BadSource: The file cannot be read or is too short, or the tokenizer does not load.
    """
    if isinstance(text, Path):
        name = str(text)
        content = _read_utf8(text)
    else:
        name = "the text"
        content = text
    tokenizer = load_tokenizer(folder, trust, "leave --text out")
    ids: list[int] = tokenizer(content).input_ids
    if len(ids) < count:
        has = counted(len(ids), "token")
        raise BadSource(
            f"{name} has {has}, and {count:,} are needed; give a longer text, or leave --text out"
        )
    return ids[:count]


def _read_utf8(file: Path) -> str:
    """Return the text of a file in UTF-8."""
    try:
        return file.read_text("utf-8")
    except (OSError, UnicodeDecodeError) as problem:
        raise BadSource(
            f"{file} cannot be read as UTF-8 text ({problem}); give another --text"
        ) from None


SPREAD_TOKENS = 512
"""Tokens of a spread run."""
PART_TOKENS = 128
"""Tokens of the part of a spread run that is run in every variant."""
MAIN_PASSES = 2
"""How often the tokens of a run are read: by the reference, and by the output."""
VARIANT_PASSES = 4
"""How often those of its part are read by the other models: the unscaled source, a small fault, and
the reference with two roundings.
"""
KEPT = 256
"""Positions of a bucket whose logits are compared."""


@dataclass(frozen=True)
class TokenRun:
    """A sequence of tokens that a model reads at once."""

    kind: Literal["spread", "whole"]
    """Either "spread", a few tokens over a long range, or "whole", every position."""

    ids: list[int]
    """The tokens."""

    positions: list[int]
    """The positions of all tokens, rising."""

    kept: list[int]
    """Rising indices of the tokens whose logits are compared."""

    buckets: list[Bucket]
    """The buckets of these tokens, in order."""

    @classmethod
    def spread(cls, low: int, high: int, ids: list[int]) -> TokenRun:
        """Return a run of tokens at even distances below position `high`.

        Those from position `low` on are compared.
        """
        # the first token is at position 0, and the last one at high - 1
        last = high - 1
        steps = max(1, len(ids) - 1)
        positions = [index * last // steps for index in range(len(ids))]
        kept = [index for index, position in enumerate(positions) if position >= low]
        bucket = Bucket(_name(low, high), [positions[index] for index in kept])
        return cls(kind="spread", ids=ids, positions=positions, kept=kept, buckets=[bucket])

    @classmethod
    def blocks(cls, low: int, high: int, ids: list[int], most: int) -> TokenRun:
        """Return a run of blocks of tokens, with gaps between the positions of the blocks.

        512 tokens for the positions up to 8,192 become 16 blocks of 32 tokens: at the positions 0
        to 31, 544 to 575, and so on to 8,160 to 8,191. llama.cpp can run such blocks, and not
        single tokens with gaps.

        Args:
            low: The first position whose logits may be compared.
            high: The end of the positions: the last block ends at `high - 1`.
            ids: At most `high` tokens. If there are exactly `high`, the run is one block without
                gaps.
            most: The largest number of tokens whose logits are compared.
        """
        has_every_position = len(ids) >= high
        block_size = high if has_every_position else BLOCK
        block_count = max(1, len(ids) // block_size)

        # the first block starts at position 0, the last one at `last_start`, the others between
        # them at even distances
        last_start = high - block_size
        gaps = max(1, block_count - 1)
        positions: list[int] = []
        for block in range(block_count):
            start = last_start * block // gaps
            positions += range(start, start + block_size)

        # The first token of a block is not compared: llama.cpp lets it attend only to itself (see
        # `LlamaModel.spread_logits`).
        candidates = []
        for index, position in enumerate(positions):
            is_first_of_block = index % block_size == 0
            if position >= low and not is_first_of_block:
                candidates.append(index)

        # at most `most` of the candidates, at even distances
        step = math.ceil(len(candidates) / most)
        kept = candidates[::step]
        bucket = Bucket(_name(low, high), [positions[index] for index in kept])
        used_ids = ids[: block_count * block_size]
        return cls(kind="spread", ids=used_ids, positions=positions, kept=kept, buckets=[bucket])

    def part(self) -> TokenRun:
        """Return a shorter spread run over the same positions, with its first 128 tokens.

        512 tokens at positions 0, 16, ..., 8191 become 128 at 0, 64, ..., 8191.
        """
        low = self.positions[self.kept[0]]
        high = self.positions[-1] + 1
        shorter = TokenRun.spread(low, high, self.ids[:PART_TOKENS])
        [bucket] = shorter.buckets
        return replace(shorter, buckets=[replace(bucket, name=self.buckets[0].name)])

    @property
    def has_gaps(self) -> bool:
        """Whether a position is left out between two tokens."""
        return self.positions[-1] - self.positions[0] >= len(self.positions)

    @classmethod
    def over_all(
        cls, kind: Literal["spread", "whole"], ids: list[int], buckets: list[Bucket]
    ) -> TokenRun:
        """Return a run over every position from 0 on, which compares those of the buckets."""
        kept: list[int] = []
        for bucket in buckets:
            kept += bucket.positions
        return cls(kind, ids, list(range(len(ids))), kept, buckets)

    def until(self, count: int) -> TokenRun:
        """Return the beginning of this run, up to a number of tokens whose logits are compared.

        Args:
            count: How many tokens with compared logits the returned run has.
        """
        if count >= len(self.kept):
            return self
        kept = self.kept[:count]  # the indices of tokens whose logits are compared
        token_count = 0
        if kept:
            token_count = kept[-1] + 1

        # The buckets are ranges of positions, in their order. They hold the positions of all tokens
        # that are compared, and here only the first `count` of them stay.
        buckets = []
        for bucket, rows in self.parts():
            positions_before_bucket = rows.start
            positions = bucket.positions[: max(0, count - positions_before_bucket)]
            if positions:  # empty buckets are left out
                buckets.append(replace(bucket, positions=positions))
        return replace(
            self,
            ids=self.ids[:token_count],
            positions=self.positions[:token_count],
            kept=kept,
            buckets=buckets,
        )

    def targets(self) -> Tensor:
        """Return the token after each compared one, int64 [len(kept)].

        It is -1 after the last token of the run.
        """
        import torch

        following = [*self.ids[1:], -1]
        return torch.tensor([following[index] for index in self.kept])

    def parts(self) -> Iterator[tuple[Bucket, slice]]:
        """Yield each bucket with the slice of its tokens in `kept`."""
        first = 0
        for bucket in self.buckets:
            last = first + len(bucket.positions)
            yield bucket, slice(first, last)
            first = last


def block_runs(
    original: int, context: int, vocabulary: int, seed: int, each: int
) -> list[TokenRun]:
    """Return a run of synthetic tokens for the trained context and each doubling up to the new one.

    A run has 512 tokens, as blocks with gaps between their positions (`TokenRun.blocks`). A range
    of fewer positions has a token for each.

    Args:
        original: The trained context in tokens.
        context: The new one.
        vocabulary: The number of different tokens.
        seed: The seed of the first run.
        each: How many positions of a run are compared at most.
    """
    runs = []
    for number, (low, high) in enumerate(doublings(original, context)):
        token_count = min(SPREAD_TOKENS, high)
        ids = synthetic(token_count, vocabulary, seed + number)
        runs.append(TokenRun.blocks(low, high, ids, most=each))
    return runs


def count_spread_tokens(schedule: Schedule, settings: Settings, in_parts: bool) -> int:
    """Return how many tokens all models read together in the spread runs, in float32.

    Args:
        schedule: The frequencies and factors that the output must have.
        settings: How many tokens a run has.
        in_parts: Whether the variants of the source read only 128 tokens of a longer run.
    """
    count = 0
    for _, high in doublings(schedule.original_context, schedule.context):
        run_tokens = min(settings.spread, high)
        part_tokens = run_tokens
        if in_parts:
            part_tokens = min(run_tokens, PART_TOKENS)
        count += MAIN_PASSES * run_tokens + VARIANT_PASSES * part_tokens
        # the reference and the output read a shorter part too, to be compared with the variants
        if part_tokens < run_tokens:
            count += MAIN_PASSES * part_tokens
    return count


def token_runs(
    settings: Settings, schedule: Schedule, vocabulary: int, folder: Path
) -> list[TokenRun]:
    """Return the sequences of tokens (runs) by which two models are compared.

    For each range of positions (bucket) there is a spread run: by default 512 tokens whose
    positions are spread over the range, with gaps. With `settings.length` there is a whole run too,
    which has every position from 0 on.

    Args:
        settings: Lengths, seed and text.
        schedule: The frequencies and factors that the output must have.
        vocabulary: The number of tokens for synthetic text.
        folder: The folder of the source, for its tokenizer.

    Raises:
        BadSource: As `of_text` does.
    """
    # tokens of the user's text, as many as the longest run needs
    text: list[int] = []
    if settings.text is not None:
        longest = max(settings.length, min(settings.spread, schedule.context))
        text = of_text(settings.text, folder, longest, settings.trust_remote_code)

    def tokens(count: int, seed: int) -> list[int]:
        if text:
            return text[:count]
        return synthetic(count, vocabulary, seed)

    # a run for each doubling: 0 to the trained context, then to twice of it, and so on
    runs = []
    ranges = doublings(schedule.original_context, schedule.context)
    for number, (low, high) in enumerate(ranges):
        ids = tokens(min(settings.spread, high), settings.seed + number)
        runs.append(TokenRun.spread(low, high, ids))
    # a whole run, of which KEPT (256) positions of each range are compared
    if settings.length:
        buckets = spread_buckets(schedule.original_context, settings.length, KEPT)
        runs.append(TokenRun.over_all("whole", tokens(settings.length, settings.seed), buckets))
    return runs
