"""TokenRun: tokens that a model reads, their positions, and those whose logits are compared."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

from ...rope.schedule import Schedule
from ..settings import Settings
from .positions import Bucket, doubling_buckets, spread_buckets
from .tokens import of_text, synthetic

KEPT = 256  # positions of a bucket whose logits are compared


@dataclass(frozen=True)
class TokenRun:
    """A sequence of tokens that a model reads at once.

    kind: "spread" for a few tokens over a long range, "whole" for every position. ids: the tokens. positions: of all
    tokens, rising. kept: rising indices of the tokens whose logits are compared. buckets: of these, in order.
    """

    kind: Literal["spread", "whole"]
    ids: list[int]
    positions: list[int]
    kept: list[int]
    buckets: list[Bucket]

    def until(self, count: int) -> TokenRun:
        """The run cut after its first `count` compared tokens."""
        if count >= len(self.kept):
            return self
        kept, buckets, first = self.kept[:count], [], 0
        for bucket in self.buckets:
            inside = bucket.positions[: max(0, count - first)]
            first += len(bucket.positions)
            if inside:
                buckets.append(replace(bucket, positions=inside, counted=slice(0, len(inside))))
        stop = kept[-1] + 1 if kept else 0
        return replace(self, ids=self.ids[:stop], positions=self.positions[:stop], kept=kept, buckets=buckets)

    def targets(self) -> Any:
        """The token after each compared one, int64 [len(kept)]; -1 after the last token of the run."""
        import torch

        return torch.tensor([self.ids[k + 1] if k + 1 < len(self.ids) else -1 for k in self.kept])

    def parts(self) -> Iterator[tuple[Bucket, slice]]:
        """Yields each bucket with the slice of its tokens in `kept`."""
        first = 0
        for bucket in self.buckets:
            yield bucket, slice(first, first := first + bucket.counted.stop - bucket.counted.start)


def token_runs(settings: Settings, schedule: Schedule, vocabulary: int, folder: Path) -> list[TokenRun]:
    """The runs of a comparison: a spread run per bucket, and a whole run where `settings.length` is set.

    settings: lengths, seed and text. schedule: of the output, for trained and new context. vocabulary: number of tokens
    for synthetic text. folder: of the source, for its tokenizer. Raises BadSource as `of_text` does.
    """
    runs = doubling_buckets(schedule.original_context, schedule.context, settings.spread)
    longest = max(settings.length, *(len(run.positions) for run in runs))
    text = None if settings.text is None else of_text(settings.text, folder, longest, settings.trust_remote_code)
    found = []
    for number, run in enumerate(runs):
        count = len(run.positions)
        ids = text[:count] if text else synthetic(count, vocabulary, settings.seed + number)
        kept = list(range(run.counted.start, run.counted.stop))
        found.append(TokenRun("spread", ids, run.positions, kept, [run]))
    if settings.length:
        whole = spread_buckets(schedule.original_context, settings.length, KEPT)
        ids = text[: settings.length] if text else synthetic(settings.length, vocabulary, settings.seed)
        kept = [position for bucket in whole for position in bucket.positions]
        found.append(TokenRun("whole", ids, list(range(settings.length)), kept, whole))
    return found
