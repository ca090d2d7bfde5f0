"""passkey: a number hidden in a text (Mohtashami and Jaggi 2023, https://arxiv.org/abs/2305.16300).

The sentences are those of https://github.com/epfml/landmark-attention, which jquesnelle/yarn measures with too. The
text around them is the user's, and not the same five sentences again and again.
"""

from __future__ import annotations

import numpy as np

from .haystack import Haystack, Prompt, different_numbers
from .measure import register
from .retrieval import Retrieval

TASK = (
    "There is an important info hidden inside a lot of irrelevant text. Find it and memorize them. I will quiz you "
    "about the important information there.\n"
)


@register
class Passkey(Retrieval):
    """A number of five digits."""

    name = "passkey"
    summary = "a number of five digits hidden in the text, by depth"

    def prompt(self, haystack: Haystack, depth: float, draw: np.random.Generator) -> Prompt:
        (key,) = different_numbers(1, 5, draw)
        fact = f"\nThe pass key is {key}. Remember it. {key} is the pass key.\n"
        return Prompt(TASK, "\nWhat is the pass key?", " The pass key is", key, ((depth, fact),))
