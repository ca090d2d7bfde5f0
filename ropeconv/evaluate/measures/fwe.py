"""fwe: the three most frequent words of a list (frequent words extraction of RULER, https://arxiv.org/abs/2404.06654)."""

from __future__ import annotations

import math

import numpy as np

from .haystack import Haystack, Prompt
from .measure import register
from .retrieval import Retrieval
from .word_list import word_list

ASKED = 3
LEAST = 40
"""Words of a list in which the first four frequencies differ: 24, 6, 3 and 2."""


@register
class FrequentWords(Retrieval):
    """The word of rank k occurs size / (k^2 zeta(2)) times: Zipf's law with an exponent of 2. Their order is random."""

    name = "fwe"
    summary = "the three most frequent words of a list with Zipf's law"
    sizes = frozenset({"generate", "chat"})

    def prompt(self, haystack: Haystack, depth: float, length: int, draw: np.random.Generator) -> Prompt:
        words, seed = haystack.words(2 * LEAST, draw), int(draw.integers(1 << 32))
        frame = Prompt(
            "A list of words follows, some of which occur more often than the others.\n",
            "\nWhich three words occur most often in the list above? Name the most frequent one first.",
            " The three words that occur most often are",
            tuple(words[:ASKED]),
            end="\n",
        )
        return word_list(frame, haystack, length, LEAST, lambda size: _list(words, size, seed))


def _list(words: list[str], size: int, seed: int) -> list[str]:
    """A list of `size` words, the first of `words` most often."""
    counts = [round(size / (rank * rank * math.pi**2 / 6)) for rank in range(1, len(words) + 1)]
    found = [word for word, count in zip(words, counts, strict=True) for _ in range(count)][:size]
    rare = words[ASKED + 1 :]
    found += [rare[-1 - index % len(rare)] for index in range(size - len(found))]
    return [str(word) for word in np.random.default_rng(seed).permutation(found)]
