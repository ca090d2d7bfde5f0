"""TwoLists: a checkpoint with LongRoPE's two lists, of which the length of the whole sequence decides."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace

from ...engines import Engine, Progress, TokenLosses
from ...engines.transformers import TransformersEngine
from ...rope.schedule import Schedule


class TwoLists(Engine):
    """A loaded checkpoint that has one list of frequencies for each sequence, in whatever chunks that is read.

    transformers decides at every forward pass, so that the first chunks of a long sequence would have the short list.
    loaded: the checkpoint. schedule: with two lists. patch: makes the checkpoint compute a schedule, and returns a
    function that undoes it.
    """

    gives = frozenset({"token_losses", "tokens"})

    def __init__(
        self, loaded: TransformersEngine, schedule: Schedule, patch: Callable[[Schedule], Callable[[], None]]
    ) -> None:
        self.loaded, self.schedule, self.patch, self.runtime = loaded, schedule, patch, loaded.runtime

    def token_losses(self, ids: Sequence[int], targets: Sequence[int], progress: Progress | None = None) -> TokenLosses:
        with self._for(len(ids)):
            return self.loaded.token_losses(ids, targets, progress)

    def generate(self, ids: Sequence[int], count: int) -> list[int]:
        with self._for(len(ids) + count):
            return self.loaded.generate(ids, count)

    def not_finite_in(self, ids: Sequence[int]) -> str:
        with self._for(len(ids)):
            return self.loaded.not_finite_in(ids)

    @contextmanager
    def _for(self, length: int) -> Iterator[None]:
        """The list for a sequence of `length` tokens, while it is entered."""
        short = self.schedule.short_inv_freq
        assert short is not None
        vector = self.schedule.inv_freq if length > self.schedule.original_context else short
        undo = self.patch(replace(self.schedule, inv_freq=vector, short_inv_freq=None))
        try:
            yield
        finally:
            undo()
