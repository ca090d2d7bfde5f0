"""longppl: the loss of the tokens that need a long context (Fang et al. 2024, https://arxiv.org/abs/2410.23771)."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from ...engines.engine import TokenLosses
from ...errors import UsageError
from ..cases import Case, EvaluationSizes, Observation
from ..texts import Texts
from .losses import Growth
from .measure import register

ALPHA, BETA = 2.0, -2.0
"""The thresholds of the paper, in nats."""


@register
class LongPpl(Growth):
    """The mean loss of the key tokens, whose exponential is LongPPL.

    A token i is a key token if its long-short difference log P(i | long) - log P(i | short) is above ALPHA and
    log P(i | long) above BETA. The paper takes another, stronger model as the evaluator P. Here it is the first row:
    its shortest length is the short context and the trained length the long one, where no method is needed. So all rows
    and lengths have the same key tokens, and numbers of different models cannot be compared.
    """

    name = "longppl"
    summary = "loss of the tokens that need a long context, by the first row inside the trained context"

    def cases(self, texts: Texts, sizes: EvaluationSizes) -> Iterator[Case]:
        if sizes.trained not in sizes.lengths[1:]:
            raise UsageError(
                f"--measure longppl needs the trained length, {sizes.trained:,} tokens, and a shorter one; give "
                "--lengths 1/4T,1T,4T"
            )
        return super().cases(texts, sizes)

    def observe(self, case: Case, losses: TokenLosses) -> list[Observation]:
        (mean,) = super().observe(case, losses)
        return [replace(mean, values=tuple(losses.loss.tolist()))]

    def combine(self, rows: dict[str, list[Observation]], sizes: EvaluationSizes) -> str:
        places = {
            row: {(o.document, o.window, o.column): np.array(o.values) for o in found if o.measure == self.name}
            for row, found in rows.items()
        }
        evaluator = next(iter(places.values()), {})
        keys = dict[tuple[int, int], list[int]]()
        for (document, window, column), long in evaluator.items():
            short = evaluator.get((document, window, sizes.lengths[0]))
            if column == sizes.trained and short is not None:
                keys[document, window] = np.flatnonzero((short - long > ALPHA) & (-long > BETA)).tolist()
        for row, found in rows.items():
            rows[row] = [o for o in found if o.measure != self.name]
            for o in found:
                chosen = keys.get((o.document, o.window)) if o.measure == self.name else None
                if chosen:
                    loss = float(np.mean([o.values[index] for index in chosen]))
                    rows[row].append(replace(o, value=loss, weight=len(chosen), values=()))
        if evaluator and not any(keys.values()):
            return "no predicted token needs the long context; give more --targets or --windows, or other texts"
        return ""
