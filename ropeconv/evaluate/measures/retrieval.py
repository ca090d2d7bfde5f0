"""Retrieval, the common part of measures that hide facts in the user's own texts and ask for them."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator

import numpy as np

from ...engines import TokenLosses
from ..asked import Asked
from ..case import Case, Observation
from ..texts.documents import Texts
from .haystack import Haystack, Prompt, haystacks
from .measure import Measure

SPARE = 16
"""Tokens that a model may generate beyond those of the answer: it may begin with a few words of its own."""


class Retrieval(Measure):
    """A question whose answer stands in the sequence.

    The answer is part of the sequence, so that one forward pass says how likely each of its tokens is (`accuracy`: the
    share of them that were the likeliest; `log_prob`: their mean log-probability), and nothing is generated. With
    `Asked.generate`, greedy decoding follows the question, and `accuracy` is 1 where the answer occurs in it.
    Sequences of all lengths with the same sample and depth have the same question and answer.
    """

    metrics = ("accuracy", "log_prob")
    sizes = frozenset({"depths", "generate", "chat"})

    @abstractmethod
    def prompt(self, haystack: Haystack, depth: float, draw: np.random.Generator) -> Prompt:
        """What is asked.

        haystack: where the sequence is from. depth: of the fact, from 0 to 1. draw: random numbers, of which the first
        ones decide question and answer.
        """

    def cases(self, texts: Texts, asked: Asked) -> Iterator[Case]:
        depths = [float(depth) for depth in np.linspace(0, 1, asked.depths)] if asked.depths > 1 else [0.5]
        for window, haystack in enumerate(haystacks(texts, asked.windows, asked.seed, asked.chat)):
            for length in asked.lengths:
                for number, depth in enumerate(depths):
                    draw = np.random.default_rng((asked.seed, window, number))
                    prompt = self.prompt(haystack, depth, draw)
                    ids, targets = haystack.sequence(prompt, length, self.name)
                    yield Case(
                        self.name, length, haystack.document, window, np.array(ids, np.int32),
                        np.array(targets, np.int32), depth, prompt.answer,
                        len(ids) - targets[0] + SPARE if asked.generate else 0,
                    )  # fmt: skip

    def observe(self, case: Case, losses: TokenLosses) -> list[Observation]:
        right, log_prob = float(losses.right.mean()), -float(losses.loss.mean())
        return [self._observation(case, "accuracy", right), self._observation(case, "log_prob", log_prob)]

    def observe_text(self, case: Case, text: str) -> list[Observation]:
        return [self._observation(case, "accuracy", float(_occurs(case.answer, text)), 1)]

    def _observation(self, case: Case, metric: str, value: float, weight: int = 0) -> Observation:
        weight = weight or len(case.targets)
        return Observation(self.name, metric, case.column, case.document, case.window, value, case.depth, weight)


def _occurs(answer: str, text: str) -> bool:
    """Whether an answer stands in a text as a whole word or number."""
    before, found, after = text.partition(answer)
    while found:
        if not before[-1:].isalnum() and not after[:1].isalnum():
            return True
        before, found, after = after.partition(answer)
    return False
