"""Sequences of an exact length: a task, facts within texts of the user, a question, and its answer."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from itertools import islice

import numpy as np

from ...errors import BadSource, UsageError
from ..texts.documents import Texts

WORDS_FROM = 20_000
"""Tokens of a text among which words are looked for."""


@dataclass(frozen=True)
class Prompt:
    """What is asked of a text.

    task: at the beginning. question: behind the text. lead: the beginning of the answer, which is given. answer: what
    is predicted. facts: (place, text) in the order of the places, from 0, before the haystack, to 1, behind it.
    """

    task: str
    question: str
    lead: str
    answer: str
    facts: tuple[tuple[float, str], ...]


class Haystack:
    """A place in the texts from which sequences of all lengths are made.

    texts: of the user. document, start: the place. chat: whether the question is put as a message of a chat. The text
    goes on into the next document where one ends, and from the last into the first.
    """

    def __init__(self, texts: Texts, document: int, start: int, chat: bool = False) -> None:
        self.texts, self.document, self.start = texts, document, start
        self.before, self.after = texts.tokenizer.chat() if chat else (list(texts.prefix), [])
        self._tokens: dict[str, list[int]] = {}

    def tokens(self, text: str) -> list[int]:
        """The tokens of a text by itself."""
        if text not in self._tokens:
            self._tokens[text] = self.texts.tokenizer.encode(text) if text else []
        return self._tokens[text]

    def hay(self, count: int) -> list[int]:
        """`count` tokens of the texts."""
        found: list[int] = []
        document, start = self.document, self.start
        while len(found) < count:
            found += self.texts.documents[document].ids[start : start + count - len(found)].tolist()
            document, start = (document + 1) % len(self.texts.documents), 0
        return found

    @cached_property
    def vocabulary(self) -> list[str]:
        """The words in lower case behind the place, sorted."""
        size = min(WORDS_FROM, sum(len(document.ids) for document in self.texts.documents))
        words = set(self.texts.tokenizer.decode(self.hay(size)).split())
        return sorted(word for word in words if word.isalpha() and word == word.lower() and 3 <= len(word) <= 12)

    def words(self, count: int, draw: np.random.Generator) -> list[str]:
        """Return `count` different words of the texts. Raises BadSource where there are fewer."""
        if len(self.vocabulary) < count:
            name = self.texts.documents[self.document].name
            raise BadSource(
                f"the texts have {len(self.vocabulary)} different words from {name} on, and questions need {count}; "
                "give a longer --text"
            )
        return [str(word) for word in draw.permutation(self.vocabulary)[:count]]

    def sequence(self, prompt: Prompt, length: int, name: str) -> tuple[list[int], list[int]]:
        """A sequence of exactly `length` tokens, and the indices of the answer's tokens.

        prompt: what is asked. length: in tokens. name: of the measure, for the message. Raises UsageError where the
        length is too short for the prompt.
        """
        tail, targets = self._tail(prompt)
        own = [prompt.task, *(text for _, text in prompt.facts)]
        room = length - len(self.before) - sum(len(self.tokens(text)) for text in own) - len(tail)
        if room < 0:
            raise UsageError(f"{name} takes {length - room:,} tokens without any text; give --lengths from there on")
        hay, ids, done = self.hay(room), [*self.before, *self.tokens(prompt.task)], 0
        for place, text in prompt.facts:
            until = round(place * room)
            ids += hay[done:until]
            ids += self.tokens(text)
            done = until
        ids += hay[done:]
        return ids + tail, [len(ids) + index for index in targets]

    def _tail(self, prompt: Prompt) -> tuple[list[int], list[int]]:
        """The tokens from the question to the end, and the indices of the answer's tokens in them.

        Question and answer are one text for the tokenizer, as they are for a model that generates.
        """
        front = [] if not self.after else self.tokens(prompt.question) + self.after
        text = prompt.lead.lstrip() if self.after else prompt.question + prompt.lead
        tail = self.tokens(f"{text} {prompt.answer}")
        targets = range(len(self.tokens(text)), len(tail))
        said = [index for index in targets if self.texts.tokenizer.decode([tail[index]]).strip()]
        return front + tail, [len(front) + index for index in said]


def haystacks(texts: Texts, count: int, seed: int, chat: bool = False) -> list[Haystack]:
    """Places for samples, in turn from all documents.

    texts: of the user. count: of samples. seed: of the places. chat: as in Haystack.
    """
    draw = np.random.default_rng(seed)
    order = draw.permutation(len(texts.documents))
    turns = (int(order[index % len(order)]) for index in range(count))
    return [
        Haystack(texts, document, int(draw.integers(len(texts.documents[document].ids))), chat) for document in turns
    ]


def different_numbers(count: int, digits: int, draw: np.random.Generator) -> list[str]:
    """`count` different numbers of so many digits, without a leading zero."""
    found: dict[str, None] = {}
    while len(found) < count:
        found[str(draw.integers(10 ** (digits - 1), 10**digits))] = None
    return list(islice(found, count))
