"""Texts, a tokenizer and engines for tests of measures: models that look an answer up, all of it or only nearby."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pydoc_data.topics import topics

import numpy as np

from ropeconv.engines import Engine, Progress, TokenLosses
from ropeconv.evaluate.texts.documents import Document, Texts, Tokenizer


@dataclass
class WordTokenizer(Tokenizer):
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

    def chat(self) -> tuple[list[int], list[int]]:
        return self.encode("<user>"), self.encode("<model>")


def prose(tokenizer: Tokenizer, count: int = 6) -> Texts:
    """Pages of Python's own manual."""
    names = sorted(topics, key=lambda name: len(topics[name]))[-count:]
    return Texts(tuple(Document(name, np.array(tokenizer.encode(topics[name]), np.int32)) for name in names), tokenizer)


Answer = Callable[[str], str]


class Reader(Engine):
    """Answers by a rule from the text that it sees. answer: the rule. window: how many tokens back it sees."""

    gives = frozenset({"token_losses", "tokens"})
    runtime = "a reader"

    def __init__(self, tokenizer: Tokenizer, answer: Answer, window: int = 1 << 30) -> None:
        self.tokenizer, self.answer, self.window = tokenizer, answer, window

    def generate(self, ids: Sequence[int], count: int) -> list[int]:
        text = self.tokenizer.decode(ids[max(0, len(ids) - self.window) :])
        space = "" if text.endswith(" ") else " "
        return self.tokenizer.encode(space + self.answer(text))[:count]

    def token_losses(self, ids: Sequence[int], targets: Sequence[int], progress: Progress | None = None) -> TokenLosses:
        first = targets[0]
        said = [*self.generate(ids[:first], len(ids)), *[-1] * len(ids)]
        right = np.array([said[target - first] == ids[target] for target in targets])
        return TokenLosses(np.where(right, 0.25, 4.0), right)


def looked_up(name: str, fact: str) -> Answer:
    """The last fact on what is asked for. name: finds what that is. fact: finds the answer, with NAME for that."""

    def answer(text: str) -> str:
        asked = re.findall(name, text)[-1]
        return str(["", *re.findall(fact.replace("NAME", asked), text)][-1])

    return answer


ANSWERS: dict[str, Answer] = {
    "passkey": looked_up("", r"The pass key is (\d+)\."),
    "niah": looked_up(r"(\S+)\s+\S+\s*$", r"The special number of NAME is (\d+)\."),
}
"""By the name of a measure, how a reader finds the answer."""
