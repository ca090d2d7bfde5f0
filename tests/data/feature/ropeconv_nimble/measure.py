"""The loss of the last token of each sequence."""

from collections.abc import Iterator

import numpy as np

from ropeconv.engines.engine import TokenLosses
from ropeconv.features.evaluation.cases import Case, EvaluationSizes, Observation
from ropeconv.features.evaluation.measures.measure import Measure, register
from ropeconv.features.evaluation.texts import Texts, window_ends


@register
class LastToken(Measure):
    """The loss of the last token, with all before it."""

    name = "last"
    summary = "loss of the last token"

    def cases(self, texts: Texts, sizes: EvaluationSizes) -> Iterator[Case]:
        """Yield a sequence for each length and window."""
        for length in sizes.lengths:
            for window, (document, end) in enumerate(window_ends(texts, sizes, length)):
                ids = texts.window(document, end, length)
                targets = np.array([len(ids) - 1], dtype=np.int32)
                yield Case(self.name, length, document, window, ids, targets)

    def observe(self, case: Case, losses: TokenLosses) -> list[Observation]:
        """Return the loss of a sequence."""
        loss = float(losses.loss[-1])
        return [Observation(self.name, "loss", case.column, case.document, case.window, loss)]
