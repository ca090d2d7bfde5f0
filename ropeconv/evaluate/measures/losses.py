"""position: the loss by position in one pass over the longest length.

sliding: perplexity with a window that moves by a stride, as transformers' documentation computes it.

https://huggingface.co/docs/transformers/perplexity
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise

import numpy as np

from ...engines.engine import TokenLosses
from ...errors import UsageError
from ..cases import Case, EvaluationSizes, Observation
from ..texts import Texts, long_enough, window_ends
from .measure import Measure, register

BLOCKS = 32


@register
class Position(Measure):
    """The mean loss of each block of positions. Read it as a difference to the first row: a text has easy places."""

    name = "position"
    summary = "loss by position in one pass, as a difference to the first row"

    def cases(self, texts: Texts, asked: EvaluationSizes) -> Iterator[Case]:
        first = max(len(texts.prefix), 1)
        for window, (document, end) in enumerate(window_ends(texts, asked, asked.longest)):
            ids = texts.window(document, end, asked.longest)
            targets = np.arange(first, len(ids), dtype=np.int32)
            yield Case(self.name, asked.longest, document, window, ids, targets)

    def observe(self, case: Case, losses: TokenLosses) -> list[Observation]:
        edges = np.linspace(0, len(case.ids), min(BLOCKS, len(case.targets)) + 1).round().astype(int)
        found = []
        for first, last in pairwise(edges):
            inside = (case.targets >= first) & (case.targets < last)
            if inside.any():
                loss = float(losses.loss[inside].mean())
                found.append(Observation(self.name, "loss", int(last), case.document, case.window, loss))
        return found


@register
class Growth(Measure):
    """Windows of all lengths end at the same token, so that the difficulty of the text cancels between lengths.

    The loss by position of one long pass does not allow that: a text that gets easier hides a model that breaks.
    """

    name = "growth"
    summary = "loss of the same tokens under a growing context"
    sizes = frozenset({"targets"})

    def cases(self, texts: Texts, asked: EvaluationSizes) -> Iterator[Case]:
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


@register
class Sliding(Measure):
    """Every token is predicted once, from at least a window minus a stride before it (less at the beginning).

    The windows, and the mean over tokens, are those of transformers' documentation. The script of jquesnelle/yarn has
    the same windows and takes the mean over windows.
    """

    name = "sliding"
    summary = "loss with a window that moves by --stride (sliding:256), each token predicted once"

    def cases(self, texts: Texts, asked: EvaluationSizes) -> Iterator[Case]:
        room = asked.lengths[0] - len(texts.prefix)
        if asked.stride > room:
            raise UsageError(
                f"a stride of {asked.stride:,} leaves out tokens between sequences of {asked.lengths[0]:,}; give "
                f"sliding:N with N up to {room:,}"
            )
        for document in long_enough(texts, asked.longest)[: asked.windows]:
            for length in asked.lengths:
                yield from self._windows(texts, document, length, asked)

    def _windows(self, texts: Texts, document: int, length: int, asked: EvaluationSizes) -> Iterator[Case]:
        before, room = len(texts.prefix), length - len(texts.prefix)
        total, done = asked.longest - before, 0
        for number, end in enumerate(_ends(total, room, asked.stride)):
            ids = texts.window(document, end, end - number * asked.stride + before)
            targets = np.arange(max(len(ids) - (end - done), max(before, 1)), len(ids), dtype=np.int32)
            done = end
            yield Case(self.name, length, document, number, ids, targets)

    def observe(self, case: Case, losses: TokenLosses) -> list[Observation]:
        loss = float(losses.loss.mean())
        count = len(case.targets)
        return [Observation(self.name, "loss", case.column, case.document, case.window, loss, weight=count)]


def _ends(total: int, room: int, stride: int) -> list[int]:
    """Ends of the windows over `total` tokens of a text: the first at `room`, each later one `stride` further."""
    ends = list(range(min(room, total), total, stride))
    return [*ends, total]
