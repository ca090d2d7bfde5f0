"""cwe: the ten common words of a list (common words extraction of RULER, https://arxiv.org/abs/2404.06654)."""

from __future__ import annotations

import numpy as np

from .haystack import Haystack, Prompt
from .measure import register
from .retrieval import Retrieval
from .word_list import word_list

COMMON = 10
MOST = 30
"""How often a common word occurs in long lists, and UNCOMMON every other word."""
UNCOMMON = 3
LEAST = 60
"""Words of a list in which common words occur three times and others once."""


@register
class CommonWords(Retrieval):
    """Ten words occur thirty times each and all others three times, in random order.

    In short lists common words take at most half of the places, and others occur once. Where the words of the texts do
    not suffice, all occur more often. The ten are asked for in the order in which they first occur.
    """

    name = "cwe"
    summary = "the ten words that occur most often in a list of words"
    sizes = frozenset({"generate", "chat"})

    def prompt(self, haystack: Haystack, depth: float, length: int, draw: np.random.Generator) -> Prompt:
        words, seed = haystack.words(2 * LEAST, draw), int(draw.integers(1 << 32))
        question = (
            "\nWhich ten words occur most often in the list above? Name them in the order of their first occurrence."
        )
        frame = Prompt(
            "A list of words follows, some of which occur more often than the others.\n",
            question,
            " The ten words that occur most often are",
            tuple(words[:COMMON]),
            end="\n",
        )
        return word_list(frame, haystack, length, LEAST, lambda size: _list(words, size, seed))


def _list(words: list[str], size: int, seed: int) -> list[str]:
    """A list of about `size` words, of which the first ten of `words` are the common ones."""
    others = words[COMMON:]
    common = min(size // (2 * COMMON), MOST)
    uncommon = max(common * UNCOMMON // MOST, -(-(size - COMMON * common) // len(others)))
    common = max(common, 3 * uncommon)
    count = (size - COMMON * common) // uncommon
    places = [*range(COMMON)] * common + [*range(COMMON, COMMON + count)] * uncommon
    found = np.random.default_rng(seed).permutation(places).tolist()
    first = dict.fromkeys(number for number in found if number < COMMON)
    names = dict(zip(first, words, strict=False))  # so that the answer is the same for every length
    return [names[number] if number < COMMON else words[number] for number in found]
