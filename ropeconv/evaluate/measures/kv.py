"""kv: a value of a long JSON object (Liu et al. 2023, https://arxiv.org/abs/2307.03172).

RULER has it as its third multi-key task.
"""

from __future__ import annotations

import dataclasses

import numpy as np

from ...errors import BadSource
from .haystack import Haystack, Prompt
from .measure import register
from .retrieval import Retrieval

WORDS = 200
STEP = 22
"""Of the values, so that all are different and have six digits."""


@register
class KeyValue(Retrieval):
    """Pairs fill the whole sequence; the one that is asked for stands at the depth among them.

    Keys are pairs of words of the text, values have six digits.
    """

    name = "kv"
    summary = "the value of one key of a JSON object that fills the sequence, by depth of the key"

    def prompt(self, haystack: Haystack, depth: float, length: int, draw: np.random.Generator) -> Prompt:
        words = haystack.words(WORDS, draw)[:WORDS]
        pairs = draw.permutation(WORDS * WORDS)
        keys = (f"{words[number // WORDS]} {words[number % WORDS]}" for number in pairs)
        values = 100_000 + STEP * draw.permutation(len(pairs)) + draw.integers(STEP, size=len(pairs))
        lines = ((key, f'\n"{key}": {value},', str(value)) for key, value in zip(keys, values, strict=True))
        key, asked, value = next(lines)
        task = "Find the value of a key in the JSON object below.\n{"
        question = f'What is the value of "{key}" in the JSON object above?\n'
        frame = Prompt(task, question, f'"{key}":', (value,), end="\n}\n")
        room = haystack.room(frame, length) - len(haystack.tokens(asked))
        others: list[str] = []
        for _, line, _ in lines:
            room -= len(haystack.tokens(line))
            if room < 0:
                break
            others.append(line)
        else:
            raise BadSource(
                f"kv has {len(pairs):,} different keys, too few for {length:,} tokens; give shorter --lengths"
            )
        place = round(depth * len(others))
        facts = [*others[:place], asked, *others[place:]]
        # all behind the haystack, which is the rest that no pair fills
        return dataclasses.replace(frame, facts=tuple((1.0, line) for line in facts))
