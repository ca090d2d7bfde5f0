"""position: the loss by position in one pass over the longest length.

sliding: perplexity with a window that moves by a stride, as transformers' documentation computes
it.

https://huggingface.co/docs/transformers/perplexity

longppl: the loss of the tokens that need a long context (Fang et al. 2024,
https://arxiv.org/abs/2410.23771).
"""

from collections.abc import Iterator
from dataclasses import replace
from itertools import pairwise, product

import numpy as np

from ...engines.engine import TokenLosses
from ...errors import UsageError
from ..cases import Case, EvaluationSizes, Observation
from ..texts import Texts, long_enough, window_ends
from .measure import Measure, register

BLOCKS = 32


@register
class Position(Measure):
    """The mean loss of each block of positions. Compare rows only, since a text has easy places."""

    name = "position"
    summary = "loss by position in one pass, as a difference to the first row"

    def cases(self, texts: Texts, sizes: EvaluationSizes) -> Iterator[Case]:
        first = max(len(texts.prefix), 1)
        for window, (document, end) in enumerate(window_ends(texts, sizes, sizes.longest)):
            ids = texts.window(document, end, sizes.longest)
            targets = np.arange(first, len(ids), dtype=np.int32)
            yield Case(self.name, sizes.longest, document, window, ids, targets)

    def observe(self, case: Case, losses: TokenLosses) -> list[Observation]:
        edges = (
            np.linspace(0, len(case.ids), min(BLOCKS, len(case.targets)) + 1).round().astype(int)
        )
        blocks = [
            (int(last), (case.targets >= first) & (case.targets < last))
            for first, last in pairwise(edges)
        ]
        return [
            Observation(
                self.name,
                "loss",
                last,
                case.document,
                case.window,
                float(losses.loss[inside].mean()),
            )
            for last, inside in blocks
            if inside.any()
        ]


@register
class Growth(Measure):
    """Windows of all lengths end at the same token, so that the difficulty of the text cancels
    between lengths.

    The loss by position of one long pass does not allow that: a text that gets easier hides a model
    that breaks.
    """

    name = "growth"
    summary = "loss of the same tokens under a growing context"
    sizes = frozenset({"targets"})

    def cases(self, texts: Texts, sizes: EvaluationSizes) -> Iterator[Case]:
        shortest = sizes.lengths[0] - len(texts.prefix)
        if shortest < 2:
            raise UsageError(
                f"a length of {sizes.lengths[0]} tokens leaves nothing to predict; give longer"
                " --lengths"
            )
        count = min(sizes.targets, shortest - 1)
        for window, (document, end) in enumerate(window_ends(texts, sizes, count)):
            for length in sizes.lengths:
                ids = texts.window(document, end, length)
                targets = np.arange(length - count, length, dtype=np.int32)
                yield Case(self.name, length, document, window, ids, targets)

    def observe(self, case: Case, losses: TokenLosses) -> list[Observation]:
        loss = float(losses.loss.mean())
        values = tuple(losses.loss.tolist())
        return [
            Observation(
                self.name, "loss", case.column, case.document, case.window, loss, values=values
            )
        ]


@register
class Sliding(Measure):
    """Every token is predicted once, from at least a window minus a stride before it (less at the
    beginning).

    stride: tokens by which a window moves.

    The windows, and the mean over tokens, are those of transformers' documentation. The script of
    jquesnelle/yarn has the same windows and takes the mean over windows.
    """

    name = "sliding"
    summary = (
        "loss with a window that moves by 256 tokens, or N with sliding:N; each token is predicted"
        " once"
    )

    def __init__(self, stride: int = 256) -> None:
        self.stride = stride

    def cases(self, texts: Texts, sizes: EvaluationSizes) -> Iterator[Case]:
        room = sizes.lengths[0] - len(texts.prefix)
        if self.stride > room:
            raise UsageError(
                f"a stride of {self.stride:,} leaves out tokens between sequences of"
                f" {sizes.lengths[0]:,}; give sliding:N with N up to {room:,}"
            )
        before = len(texts.prefix)
        total = sizes.longest - before
        for document, length in product(
            long_enough(texts, sizes.longest)[: sizes.windows], sizes.lengths
        ):
            done = 0
            for number, end in enumerate(
                [*range(min(length - before, total), total, self.stride), total]
            ):
                ids = texts.window(document, end, end - number * self.stride + before)
                targets = np.arange(
                    max(len(ids) - (end - done), max(before, 1)), len(ids), dtype=np.int32
                )
                done = end
                yield Case(self.name, length, document, number, ids, targets)

    def observe(self, case: Case, losses: TokenLosses) -> list[Observation]:
        loss = float(losses.loss.mean())
        count = len(case.targets)
        return [
            Observation(
                self.name, "loss", case.column, case.document, case.window, loss, weight=count
            )
        ]


ALPHA, BETA = 2.0, -2.0
"""The thresholds of the paper, in nats."""


@register
class LongPpl(Growth):
    """The mean loss of the key tokens, whose exponential is LongPPL.

    A token i is a key token if its long-short difference log P(i | long) - log P(i | short) is
    above ALPHA and log P(i | long) above BETA. The paper takes another, stronger model as the
    evaluator P. Here it is the first row: its shortest length is the short context and the trained
    length the long one, where no method is needed. So all rows and lengths have the same key
    tokens, and numbers of different models cannot be compared.
    """

    name = "longppl"
    summary = (
        "loss of the tokens that need a long context, by the first row inside the trained context"
    )
    pass_of = Growth.name

    def cases(self, texts: Texts, sizes: EvaluationSizes) -> Iterator[Case]:
        if sizes.trained not in sizes.lengths[1:]:
            raise UsageError(
                f"--measure longppl needs the trained length, {sizes.trained:,} tokens, and a"
                " shorter one; give --lengths 1/4T,1T,4T"
            )
        return super().cases(texts, sizes)

    def combine(self, rows: dict[str, list[Observation]], sizes: EvaluationSizes) -> str:
        places = {
            row: {
                (o.document, o.window, o.column): np.array(o.values)
                for o in observations
                if o.measure == self.name
            }
            for row, observations in rows.items()
        }
        evaluator = next(iter(places.values()), {})
        keys = dict[tuple[int, int], list[int]]()
        for (document, window, column), long in evaluator.items():
            short = evaluator.get((document, window, sizes.lengths[0]))
            if column == sizes.trained and short is not None:
                keys[document, window] = np.flatnonzero(
                    (short - long > ALPHA) & (-long > BETA)
                ).tolist()
        for row, observations in rows.items():
            rows[row] = [o for o in observations if o.measure != self.name]
            for o in observations:
                chosen = keys.get((o.document, o.window)) if o.measure == self.name else None
                if chosen:
                    loss = float(np.mean([o.values[index] for index in chosen]))
                    rows[row].append(replace(o, value=loss, weight=len(chosen), values=()))
        if evaluator and not any(keys.values()):
            return (
                "no predicted token needs the long context; give more --targets or --windows, or"
                " other texts"
            )
        return ""
