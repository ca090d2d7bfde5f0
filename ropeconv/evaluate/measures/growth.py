"""growth: the loss of the same tokens under a growing context."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from ...engines import TokenLosses
from ...errors import UsageError
from ..asked import Asked
from ..case import Case, Observation
from ..texts.documents import Texts
from ..texts.windows import window_ends
from .measure import Measure, register


@register
class Growth(Measure):
    """Windows of all lengths end at the same token, so that the difficulty of the text cancels between lengths.

    The loss by position of one long pass does not allow that: a text that gets easier hides a model that breaks.
    """

    name = "growth"
    summary = "loss of the same tokens under a growing context"
    sizes = frozenset({"targets"})

    def cases(self, texts: Texts, asked: Asked) -> Iterator[Case]:
        shortest = asked.lengths[0] - len(texts.prefix)
        if shortest < 2:
            raise UsageError(f"a length of {asked.lengths[0]} tokens leaves nothing to predict; give longer --lengths")
        count = min(asked.targets, shortest - 1)
        for window, (document, end) in enumerate(window_ends(texts, asked, count)):
            for length in asked.lengths:
                ids = texts.window(document, end, length)
                targets = np.arange(length - count, length, dtype=np.int32)
                yield Case(self.name, length, document, window, ids, targets)

    def observe(self, case: Case, losses: TokenLosses) -> list[Observation]:
        loss = float(losses.loss.mean())
        return [Observation(self.name, "loss", case.column, case.document, case.window, loss)]
