"""Engines and texts without a model: losses that are known by hand, numbered tokens, and prose in
words.
"""

import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pydoc_data.topics import topics

import numpy as np

from ropeconv import RecipeError
from ropeconv.engines.engine import Engine, Progress, TokenLosses
from ropeconv.features.evaluation.runners.runner import Runner
from ropeconv.features.evaluation.texts import TextDocument, Texts, Tokenizer
from ropeconv.verbs.rows import Row

Loss = Callable[[Sequence[int], int], float]


class Letters:
    """One token per character, behind `prefix`."""

    def __init__(self, prefix: tuple[int, ...] = ()) -> None:
        self.prefix = prefix

    def encode(self, text: str) -> list[int]:
        return [ord(letter) for letter in text]

    def decode(self, ids: Sequence[int]) -> str:
        return "".join(map(chr, ids))


def numbered(*sizes: int, prefix: tuple[int, ...] = ()) -> Texts:
    """Texts whose tokens are 1000 times their number plus their place."""
    documents = [
        TextDocument(f"text {n}", 1000 * n + np.arange(size, dtype=np.int32))
        for n, size in enumerate(sizes)
    ]
    return Texts(tuple(documents), Letters(prefix))


class Computed(Engine):
    """An engine whose losses are a function of the tokens and a place."""

    runtime = "by hand"

    def __init__(self, loss: Loss) -> None:
        self.loss = loss
        self.asked = list[int]()

    def token_losses(
        self, ids: Sequence[int], targets: Sequence[int], progress: Progress | None = None
    ) -> TokenLosses:
        self.asked.append(len(ids))
        losses = np.array([self.loss(ids, target) for target in targets])
        return TokenLosses(losses, losses < 1)

    def generate(self, ids: Sequence[int], count: int) -> list[int]:
        raise NotImplementedError


class ByHand(Runner):
    """Rows by name with their losses or engines. refused: names of rows that cannot be had."""

    runtime, dtype, source, trained = "by hand", "float64", "source", 64

    def __init__(
        self, rows: dict[str, Loss | Engine], swaps: bool = True, refused: Sequence[str] = ()
    ) -> None:
        self.engines = {
            name: entry if isinstance(entry, Engine) else Computed(entry)
            for name, entry in rows.items()
        }
        self.swaps = swaps
        self.refused = refused
        self.tokenizer = Letters()
        self.opened = list[str]()

    def digest(self, row: Row) -> str:
        if row.name in self.refused:
            raise RecipeError(f"{row.name} does not fit this model")
        return row.name

    @contextmanager
    def engine(self, row: Row) -> Iterator[Engine]:
        self.opened.append(row.name)
        yield self.engines[row.name]


@dataclass
class WordTokenizer:
    """Words with the space before them, single digits, and all other characters; two tokens before
    every text.
    """

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
    names = sorted(topics, key=lambda name: len(topics[name]))[-6:]
    return Texts(
        tuple(
            TextDocument(name, np.array(tokenizer.encode(topics[name]), np.int32)) for name in names
        ),
        tokenizer,
    )
