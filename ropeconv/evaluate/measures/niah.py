"""niah: needles in a haystack, one of which is asked for (multi-key retrieval of RULER, https://arxiv.org/abs/2404.06654)."""

from __future__ import annotations

import numpy as np

from .haystack import Haystack, Prompt, different_numbers
from .measure import register
from .retrieval import Retrieval

NEEDLES = 4


@register
class Niah(Retrieval):
    """Four needles, each a word and its number: one at the depth, the others at random places."""

    name = "niah"
    summary = "the number of one of four words hidden in the text, by depth of that word"

    def prompt(self, haystack: Haystack, depth: float, draw: np.random.Generator) -> Prompt:
        words, numbers = haystack.words(NEEDLES, draw), different_numbers(NEEDLES, 7, draw)
        places = [depth, *(float(place) for place in draw.random(NEEDLES - 1))]
        needles = [
            (place, f"\nThe special number of {word} is {number}.\n")
            for place, word, number in zip(places, words, numbers, strict=True)
        ]
        question = f"\nWhat is the special number of {words[0]}?"
        lead = f" The special number of {words[0]} is"
        task = "Some special numbers stand in the following text. Remember them.\n"
        return Prompt(task, question, lead, numbers[0], tuple(sorted(needles)))
