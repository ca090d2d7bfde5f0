"""sliding: perplexity with a window that moves by a stride, as transformers' documentation computes it.

https://huggingface.co/docs/transformers/perplexity
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from ...engines import TokenLosses
from ...errors import UsageError
from ..asked import Asked
from ..case import Case, Observation
from ..texts.documents import Texts
from ..texts.windows import long_enough
from .measure import Measure, register


@register
class Sliding(Measure):
    """Every token is predicted once, from at least a window minus a stride before it (less at the beginning)."""

    name = "sliding"
    summary = "loss with a window that moves by --stride (sliding:256), each token predicted once"

    def cases(self, texts: Texts, asked: Asked) -> Iterator[Case]:
        room = asked.lengths[0] - len(texts.prefix)
        if asked.stride > room:
            raise UsageError(
                f"a stride of {asked.stride:,} leaves out tokens between sequences of {asked.lengths[0]:,}; give "
                f"sliding:N with N up to {room:,}"
            )
        for document in long_enough(texts, asked.longest)[: asked.windows]:
            for length in asked.lengths:
                yield from self._windows(texts, document, length, asked)

    def _windows(self, texts: Texts, document: int, length: int, asked: Asked) -> Iterator[Case]:
        before, room = len(texts.prefix), length - len(texts.prefix)
        total, done = asked.longest - before, 0
        for number, end in enumerate(_ends(total, room, asked.stride)):
            ids = texts.window(document, end, min(length, end + before))
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
