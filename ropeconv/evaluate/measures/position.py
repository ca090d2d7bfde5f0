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
        for window, (document, end) in enumerate(window_ends(texts, asked, asked.longest)):
            ids = texts.window(document, end, asked.longest)
            yield Case(self.name, asked.longest, document, window, ids, predicted(texts, ids))

    def observe(self, case: Case, losses: TokenLosses) -> list[Observation]:
        edges = np.linspace(0, len(case.ids), min(BLOCKS, len(case.targets)) + 1).round().astype(int)
        found = []
        for first, last in pairwise(edges):
            inside = (case.targets >= first) & (case.targets < last)
            if inside.any():
                loss = float(losses.loss[inside].mean())
                found.append(Observation(self.name, "loss", int(last), case.document, case.window, loss))
        return found


def predicted(texts: Texts, ids: np.ndarray) -> np.ndarray:
    """Indices of all tokens of a sequence that can be predicted: those behind its prefix and its first token."""
    return np.arange(max(len(texts.prefix), 1), len(ids), dtype=np.int32)
