"""position: the loss by position in one pass over the longest length."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise

import numpy as np

from ...engines import TokenLosses
from ..asked import Asked
from ..case import Case, Observation
from ..texts.documents import Texts
from ..texts.windows import window_ends
from .measure import Measure, register

BLOCKS = 32


@register
class Position(Measure):
    """The mean loss of each block of positions. Read it as a difference to the first row: a text has easy places."""

    name = "position"
    summary = "loss by position in one pass, as a difference to the first row"

    def cases(self, texts: Texts, asked: Asked) -> Iterator[Case]:
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
