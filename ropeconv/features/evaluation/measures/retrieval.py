"""Retrieval: measures that hide facts in the user's texts and ask for them.

passkey: a number hidden in a text (Mohtashami and Jaggi 2023, https://arxiv.org/abs/2305.16300).

The sentences are those of https://github.com/epfml/landmark-attention, which jquesnelle/yarn uses
too. The text around them is the user's, where these repeat five sentences.
"""

import re
from abc import abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from ropeconv.engines.engine import Engine, TokenLosses
from ropeconv.errors import BadSource, UsageError

from ..cases import Case, EvaluationSizes, Observation
from ..texts import Texts, Tokenizer
from .measure import Measure, register

WORDS_FROM = 20_000
"""Tokens of a text from which words are drawn."""


@dataclass(frozen=True)
class Prompt:
    """A question about a text."""

    task: str
    """The words before the text."""

    question: str
    """The question after the text."""

    lead: str
    """The given beginning of the answer."""

    answer: str
    """The answer to predict."""

    facts: tuple[tuple[float, str], ...]
    """Place and text of each fact by rising place, from 0 (before the haystack) to 1 (after it)."""


class Haystack:
    """A place in the texts from which sequences of all lengths are made.

    At the end of a document the next one follows, and the first after the last.
    """

    def __init__(self, texts: Texts, document: int, start: int) -> None:
        """Choose the place: the index `start` in a document."""
        self.texts = texts
        self.document = document
        self.start = start
        self._tokens: dict[str, list[int]] = {}

    def tokens(self, text: str) -> list[int]:
        """Return the tokens of a text."""
        if not text:
            return []
        if text not in self._tokens:
            self._tokens[text] = self.texts.tokenizer.encode(text)
        return self._tokens[text]

    def hay(self, count: int) -> list[int]:
        """Return `count` tokens of the texts."""
        documents = self.texts.documents
        document = self.document
        start = self.start
        tokens: list[int] = []
        while len(tokens) < count:
            missing = count - len(tokens)
            tokens += documents[document].ids[start : start + missing].tolist()
            document = (document + 1) % len(documents)
            start = 0
        return tokens

    @cached_property
    def vocabulary(self) -> list[str]:
        """The words in lower case after the place, sorted."""
        all_tokens = sum(len(document.ids) for document in self.texts.documents)
        count = min(WORDS_FROM, all_tokens)
        text = self.texts.tokenizer.decode(self.hay(count))
        words = set()
        for word in text.split():
            is_lower = word.isalpha() and word == word.lower()
            if is_lower and 3 <= len(word) <= 12:
                words.add(word)
        return sorted(words)

    def words(self, count: int, draw: np.random.Generator) -> list[str]:
        """Return `count` different words of the texts.

        Raises:
            BadSource: There are fewer.
        """
        if len(self.vocabulary) < count:
            name = self.texts.documents[self.document].name
            raise BadSource(
                f"the texts have {len(self.vocabulary)} different words after {name}, and questions"
                f" need {count}; give a longer --text"
            )
        return [str(word) for word in draw.permutation(self.vocabulary)[:count]]

    def sequence(self, prompt: Prompt, length: int, name: str) -> tuple[list[int], list[int]]:
        """Return a sequence of exactly `length` tokens, and the indices of the answer's tokens.

        Args:
            prompt: The question.
            length: The length in tokens.
            name: The name of the measure.

        Raises:
            UsageError: The length is too short for the prompt.
        """
        # Question and answer are encoded as one text, since a token can cover the end of one and
        # the beginning of the other. Tokens of white space are not asked for.
        question = prompt.question + prompt.lead
        tail = self.tokens(f"{question} {prompt.answer}")
        targets = []
        for index in range(len(self.tokens(question)), len(tail)):
            if self.texts.tokenizer.decode([tail[index]]).strip():
                targets.append(index)

        needed = len(self.texts.prefix) + len(self.tokens(prompt.task)) + len(tail)
        for _, fact in prompt.facts:
            needed += len(self.tokens(fact))
        if length < needed:
            raise UsageError(
                f"{name} needs sequences of at least {needed:,} tokens; give longer --lengths"
            )

        # prefix, task, text with each fact at its depth (0 to 1), question, answer
        hay = self.hay(length - needed)
        ids = [*self.texts.prefix, *self.tokens(prompt.task)]
        used = 0
        for depth, fact in prompt.facts:
            until = round(depth * len(hay))
            ids += hay[used:until]
            ids += self.tokens(fact)
            used = until
        ids += hay[used:]
        return ids + tail, [len(ids) + index for index in targets]


def different_numbers(count: int, digits: int, draw: np.random.Generator) -> list[str]:
    """Return `count` different numbers with as many digits, without a leading zero."""
    numbers: dict[str, None] = {}
    while len(numbers) < count:
        number = draw.integers(10 ** (digits - 1), 10**digits)
        numbers[str(number)] = None
    return list(numbers)


SPARE = 16
"""Tokens that a model may generate beyond those of the answer: it may begin with its own words."""


class Retrieval(Measure):
    """A question whose answer is in the sequence.

    The answer is part of the sequence, so that one forward pass says how likely each of its tokens
    is, and nothing is generated. `accuracy` is the share of them that were the likeliest, `exact`
    whether all of them were, and `log_prob` their mean log-probability. With
    `EvaluationSizes.generate`, greedy decoding follows the question, and `accuracy` is 1 where the
    answer occurs in it. Sequences of all lengths with the same sample and depth have the same
    question and answer.
    """

    metrics = ("accuracy", "exact", "log_prob")
    sizes = frozenset({"depths", "generate"})

    @abstractmethod
    def prompt(self, haystack: Haystack, depth: float, draw: np.random.Generator) -> Prompt:
        """Return the question.

        Args:
            haystack: The place in the texts.
            depth: The depth of the fact, from 0 to 1.
            draw: Random numbers; the first ones decide question and answer.
        """

    def cases(self, texts: Texts, sizes: EvaluationSizes) -> Iterator[Case]:
        """Yield a sequence with a hidden fact for each window of the texts, length and depth.

        A sequence is a text with the fact at the depth (0 its beginning, 1 its end), followed by a
        question and the answer. The targets are the tokens of the answer.
        """
        depths = [0.5]
        if sizes.depths > 1:
            depths = np.linspace(0, 1, sizes.depths).tolist()

        # windows are from all documents in turn, each from a random token on
        random_places = np.random.default_rng(sizes.seed)
        order = random_places.permutation(len(texts.documents))
        for window in range(sizes.windows):
            document = int(order[window % len(order)])
            start = int(random_places.integers(len(texts.documents[document].ids)))
            haystack = Haystack(texts, document, start)
            for length in sizes.lengths:
                for number, depth in enumerate(depths):
                    # the seed does not have the length, so that all lengths ask for the same fact
                    # and can be paired
                    draw = np.random.default_rng((sizes.seed, window, number))
                    prompt = self.prompt(haystack, depth, draw)
                    ids, targets = haystack.sequence(prompt, length, self.name)
                    # the answer ends the sequence; a model may begin it with words of its own
                    to_generate = 0
                    if sizes.generate:
                        answer_tokens = len(ids) - targets[0]
                        to_generate = answer_tokens + SPARE
                    yield Case(
                        measure=self.name,
                        column=length,
                        document=document,
                        window=window,
                        ids=np.array(ids, np.int32),
                        targets=np.array(targets, np.int32),
                        depth=depth,
                        answer=prompt.answer,
                        generate=to_generate,
                    )

    def observe(self, case: Case, losses: TokenLosses) -> list[Observation]:
        return [
            self._observation(case, "accuracy", float(losses.right.mean())),
            self._observation(case, "exact", float(losses.right.all()), 1),
            self._observation(case, "log_prob", -float(losses.loss.mean())),
        ]

    def run(self, row: str, case: Case, engine: Engine, tokenizer: Tokenizer) -> list[Observation]:
        if not case.generate:
            return super().run(row, case, engine, tokenizer)
        tokens = engine.generate(case.ids[: case.targets[0]].tolist(), case.generate)
        return self.observe_text(case, tokenizer.decode(tokens))

    def observe_text(self, case: Case, text: str) -> list[Observation]:
        """Return the observations from a generated text."""
        whole_word = rf"(?<![^\W_]){re.escape(case.answer)}(?![^\W_])"
        occurs = re.search(whole_word, text) is not None
        return [self._observation(case, "accuracy", float(occurs), 1)]

    def _observation(self, case: Case, metric: str, value: float, weight: int = 0) -> Observation:
        """Return an observation of a case.

        Args:
            case: The case.
            metric: The measured quantity.
            value: The number.
            weight: How many tokens it is a mean over; 0 for all of the answer.
        """
        if not weight:
            weight = len(case.targets)
        return Observation(
            measure=self.name,
            metric=metric,
            column=case.column,
            document=case.document,
            window=case.window,
            value=value,
            depth=case.depth,
            weight=weight,
        )


NEEDLES = 4


@register
class Niah(Retrieval):
    """Four needles, each a word and its number: one at the depth, the others at random places.

    The form is that of RULER's multi-key task; sentences, texts and scores are others, so its
    numbers are others too.
    """

    name = "niah"
    summary = "the number of one of four words hidden in the text, by depth of that word"

    def prompt(self, haystack: Haystack, depth: float, draw: np.random.Generator) -> Prompt:
        """Return four words with a number each, and the question for the number of the first word.

        Args:
            haystack: The place in the texts, from which the words are.
            depth: The place of the first word; the others are at random places.
            draw: Random numbers.
        """
        words = haystack.words(NEEDLES, draw)
        numbers = different_numbers(NEEDLES, 7, draw)
        places = [depth, *draw.random(NEEDLES - 1).tolist()]
        needles = []
        for place, word, number in zip(places, words, numbers, strict=True):
            needles.append((place, f"\nThe special number of {word} is {number}.\n"))
        needles.sort()
        return Prompt(
            task="Some special numbers stand in the following text. Remember them.\n",
            question=f"\nWhat is the special number of {words[0]}?",
            lead=f" The special number of {words[0]} is",
            answer=numbers[0],
            facts=tuple(needles),
        )


TASK = (
    "There is an important info hidden inside a lot of irrelevant text. Find it and memorize them."
    " I will quiz you about the important information there.\n"
)


@register
class Passkey(Retrieval):
    """A number of five digits."""

    name = "passkey"
    summary = "a number of five digits hidden in the text, by depth"

    def prompt(self, haystack: Haystack, depth: float, draw: np.random.Generator) -> Prompt:
        (key,) = different_numbers(1, 5, draw)
        fact = f"\nThe pass key is {key}. Remember it. {key} is the pass key.\n"
        return Prompt(
            task=TASK,
            question="\nWhat is the pass key?",
            lead=" The pass key is",
            answer=key,
            facts=((depth, fact),),
        )
