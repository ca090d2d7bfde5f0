"""yarn-grid: the columns of jquesnelle/yarn's evaluation, all from one pass.

https://github.com/jquesnelle/yarn/blob/master/eval/perplexity.py truncates each document to a length and takes the mean
loss. In a causal model that is the mean over the first tokens of one pass, as long as the frequencies do not depend on
the length of the sequence.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from ...engines import TokenLosses
from ...rope.schedule import Schedule
from ..asked import Asked
from ..case import Case, Observation
from ..texts.documents import Texts
from ..texts.windows import long_enough
from .measure import Measure, register
from .position import predicted

COLUMNS = 16


@register
class YarnGrid(Measure):
    """The mean loss of the first L tokens of each document, for sixteen lengths L up to the longest."""

    name = "yarn-grid"
    summary = "mean loss of documents truncated to sixteen lengths, as jquesnelle/yarn measures it"

    def cases(self, texts: Texts, asked: Asked) -> Iterator[Case]:
        for document in long_enough(texts, asked.longest)[: asked.windows]:
            ids = texts.window(document, asked.longest - len(texts.prefix), asked.longest)
            yield Case(self.name, asked.longest, document, 0, ids, predicted(texts, ids))

    def observe(self, case: Case, losses: TokenLosses) -> list[Observation]:
        total, found = np.cumsum(losses.loss), []
        for length in np.linspace(0, len(case.ids), COLUMNS + 1).round().astype(int)[1:]:
            count = int(np.searchsorted(case.targets, length))
            if count:
                loss = float(total[count - 1] / count)
                found.append(Observation(self.name, "loss", int(length), case.document, case.window, loss))
        return found

    def refuses(self, schedule: Schedule) -> str:
        if schedule.short_inv_freq is None:
            return ""
        return "its frequencies depend on the length, and one pass has one length; measure growth"
