"""Texts, a tokenizer and engines for tests of measures: models that look an answer up, all of it or only nearby."""

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from pydoc_data.topics import topics

import numpy as np

from ropeconv.evaluate.texts import TextDocument, Texts, Tokenizer


@dataclass
class WordTokenizer:
    """Words with the space before them, single digits, and all other characters; two tokens before every text."""

    prefix: tuple[int, ...] = (0, 1)
    known: list[str] = field(default_factory=lambda: ["<s>", "<t>"])
    numbers: dict[str, int] = field(default_factory=dict)

    def encode(self, text: str) -> list[int]:
        return [self._number(part) for part in re.findall(r" ?[^\W\d]+|\d|\s|[^\w\s]|_", text)]

    def _number(self, part: str) -> int:
        if part not in self.numbers:
            self.numbers[part] = len(self.known)
            self.known.append(part)
        return self.numbers[part]

    def decode(self, ids: Sequence[int]) -> str:
        return "".join(self.known[int(number)] for number in ids)


def prose(tokenizer: Tokenizer) -> Texts:
    """Pages of Python's own manual."""
    names = sorted(topics, key=lambda name: len(topics[name]))[-6:]
    return Texts(
        tuple(TextDocument(name, np.array(tokenizer.encode(topics[name]), np.int32)) for name in names), tokenizer
    )
