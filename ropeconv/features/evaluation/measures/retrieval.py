"""Retrieval: measures that hide facts in the user's texts and ask for them.

passkey: a number hidden in a text (Mohtashami and Jaggi 2023, https://arxiv.org/abs/2305.16300).

The sentences are those of https://github.com/epfml/landmark-attention, which jquesnelle/yarn uses
too. The text around them is the user's, where these repeat five sentences.
"""

import re
from abc import abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from itertools import product

import numpy as np
from numpy.typing import NDArray

from ropeconv.engines.engine import Engine, TokenLosses
from ropeconv.errors import BadSource, UsageError

from ..cases import Case, EvaluationSizes, Observation
from ..texts import Texts, Tokenizer, count_for_test
from .measure import Measure, register

TOKENS_FOR_WORDS = 20_000
"""How many tokens of the texts are read to find words for questions."""
PAIR_OF_LETTERS = re.compile(r"[\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff]{2}")
"""Two letters of Chinese or Japanese: hiragana, katakana, and ideographs (Unicode blocks)."""


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
    """Place and text of each fact by rising place, from 0 (before the text) to 1 (after it)."""


@dataclass(frozen=True)
class AskedText:
    """A text with hidden facts, and questions about them."""

    tokens_before_questions: list[int]
    """The tokens before the questions: the task, and the text with the facts in it."""

    question_tokens: list[int]
    """The tokens of the questions with their answers."""

    targets: list[int]
    """Rising indices into `question_tokens` of the tokens of the answers."""

    text_length: int
    """How many tokens before the questions are of the texts, and not of the task or the facts."""

    @property
    def ids(self) -> list[int]:
        """All tokens."""
        return self.tokens_before_questions + self.question_tokens


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
        """Return the next `count` tokens of the texts, from this place on."""
        tokens: list[int] = []
        for document, start, end in self.parts(count):
            tokens += self.texts.documents[document].ids[start:end].tolist()
        return tokens

    def parts(self, count: int) -> Iterator[tuple[int, int, int]]:
        """Yield the parts of documents that the next `count` tokens are.

        Each is the number of the document, the index of its first token, and the index after its
        last one.
        """
        documents = self.texts.documents
        document = self.document
        start = self.start
        missing = count
        while missing > 0:
            end = min(start + missing, len(documents[document].ids))
            yield document, start, end
            missing -= end - start
            document = (document + 1) % len(documents)
            start = 0

    @cached_property
    def text_for_words(self) -> str:
        """The text after the place in which words for questions are found."""
        all_tokens = sum(len(document.ids) for document in self.texts.documents)
        count = min(TOKENS_FOR_WORDS, all_tokens)
        return self.texts.tokenizer.decode(self.hay(count))

    @cached_property
    def vocabulary(self) -> list[str]:
        """The words in lower case after the place, sorted."""
        words = set()
        for word in self.text_for_words.split():
            is_lower = word.isalpha() and word == word.lower()
            if is_lower and 3 <= len(word) <= 12:
                words.add(word)
        return sorted(words)

    @cached_property
    def vocabulary_with_pairs(self) -> list[str]:
        """The words, and pairs of Chinese and Japanese letters in place of words, sorted.

        Texts in these languages have no spaces between words.
        """
        pairs = {pair for pair in PAIR_OF_LETTERS.findall(self.text_for_words) if pair.isalpha()}
        return sorted(pairs.union(self.vocabulary))

    def words(self, count: int, draw: np.random.Generator) -> list[str]:
        """Return `count` different words of the texts.

        Raises:
            BadSource: There are fewer.
        """
        vocabulary = self.vocabulary
        if len(vocabulary) < count:
            vocabulary = self.vocabulary_with_pairs
        if len(vocabulary) < count:
            raise self._too_few_words(len(vocabulary), count)
        return [str(word) for word in draw.permutation(vocabulary)[:count]]

    def _too_few_words(self, found: int, needed: int) -> BadSource:
        """Return the error for texts with fewer words than questions need."""
        name = self.texts.documents[self.document].name
        problem = (
            f"the texts have {found} different words after {name}, and questions need {needed}"
        )
        all_tokens = sum(len(document.ids) for document in self.texts.documents)
        if all_tokens < TOKENS_FOR_WORDS:
            return BadSource(f"{problem}; give a longer --text")
        return BadSource(
            f"{problem}: words of 3 to 12 small letters between spaces, or Chinese or Japanese"
            " letters; give a --text with more of them, or --measure passkey, which needs no words"
        )

    def sequence(self, prompt: Prompt, length: int, name: str) -> tuple[list[int], list[int]]:
        """Return a sequence of exactly `length` tokens, and the indices of the answer's tokens.

        It is a text with hidden facts, then a question and the answer. With an answer of three
        tokens at its end, 4,096 tokens have the indices [4093, 4094, 4095].

        Args:
            prompt: The question.
            length: The length in tokens.
            name: The name of the measure.

        Raises:
            UsageError: The length is too short for the prompt.
        """
        question_and_answer, answer_indices = self._question_with_answer(prompt)

        # the prefix of the tokenizer (such as <s>), the task, the facts, the question and the
        # answer; the rest of the sequence is text
        needed = len(self.texts.prefix) + len(self.tokens(prompt.task)) + len(question_and_answer)
        for _, fact in prompt.facts:
            needed += len(self.tokens(fact))
        if length < needed:
            raise UsageError(
                f"{name} needs sequences of at least {needed:,} tokens; give longer --lengths"
            )
        before_question = self.with_facts(prompt.task, prompt.facts, length - needed)
        start = len(before_question)
        return before_question + question_and_answer, [start + index for index in answer_indices]

    def _question_with_answer(self, prompt: Prompt) -> tuple[list[int], list[int]]:
        """Return the tokens of a question and its answer, and the indices of the answer's tokens.

        Both are encoded as one text, since a token can cover the end of the question and the
        beginning of the answer. Such a token is among the indices, so that every digit counts. A
        token of the white space between them is not: a model that predicts it shows nothing about
        the answer.
        """
        tokens = self.tokens(f"{prompt.question}{prompt.lead} {prompt.answer}")
        start = self._start_of_answer(tokens, prompt.answer)
        return tokens, list(range(start, len(tokens)))

    def _start_of_answer(self, tokens: Sequence[int], answer: str) -> int:
        """Return the index of the token with the first character of an answer.

        The number of tokens of the question does not tell: with the answer behind it, a tokenizer
        that merges across spaces makes other tokens of it.

        Args:
            tokens: The tokens of a text that ends with the answer.
            answer: A number.

        Raises:
            UsageError: The tokens do not have the answer.
        """
        for start in reversed(range(len(tokens))):
            ending = self.texts.tokenizer.decode(tokens[start:])
            # some tokenizers write a space between all tokens
            if "".join(ending.split()).endswith(answer):
                return start
        raise UsageError(
            f"the tokenizer of the model loses the number {answer}, so no measure can ask for it;"
            " give a --measure that needs no numbers, such as growth"
        )

    def text_with_questions(self, prompts: Sequence[Prompt], length: int, name: str) -> AskedText:
        """Return a text of `length` tokens that ends with several questions and their answers.

        The facts that answer them are hidden in the text, each at the depth of its prompt.

        Args:
            prompts: The questions in the order in which they are asked.
            length: The length in tokens.
            name: The name of the measure.

        Raises:
            UsageError: The length is too short for the questions.
        """
        # the tokens of all questions with their answers, the indices of the answers among them, and
        # the facts
        question_tokens: list[int] = []
        targets = []
        facts: list[tuple[float, str]] = []
        for prompt in prompts:
            question_and_answer, answer_indices = self._question_with_answer(prompt)
            targets += [len(question_tokens) + index for index in answer_indices]
            question_tokens += question_and_answer
            facts += prompt.facts
        facts.sort()  # by depth

        # the rest of the sequence is text; all prompts have the same task
        task = prompts[0].task
        needed = len(self.texts.prefix) + len(self.tokens(task)) + len(question_tokens)
        for _, fact in facts:
            needed += len(self.tokens(fact))
        if length < needed:
            raise UsageError(
                f"{name} needs sequences of at least {needed:,} tokens; give longer --lengths"
            )
        text_length = length - needed
        return AskedText(
            tokens_before_questions=self.with_facts(task, facts, text_length),
            question_tokens=question_tokens,
            targets=targets,
            text_length=text_length,
        )

    def with_facts(self, task: str, facts: Sequence[tuple[float, str]], count: int) -> list[int]:
        """Return the beginning of a sequence: `count` tokens of text in which facts are hidden.

        The prefix of the tokenizer (such as <s>) and the task come before the text.

        Args:
            task: The words before the text.
            facts: Depth (0 to 1) and text of each, by rising depth.
            count: The tokens of the texts.
        """
        text_tokens = self.hay(count)
        ids = [*self.texts.prefix, *self.tokens(task)]
        used = 0
        for depth, fact in facts:
            place = round(depth * count)
            ids += text_tokens[used:place]
            ids += self.tokens(fact)
            used = place
        return ids + text_tokens[used:]


def different_numbers(count: int, digits: int, draw: np.random.Generator) -> list[str]:
    """Return `count` different numbers with as many digits, without a leading zero."""
    numbers: dict[str, None] = {}
    while len(numbers) < count:
        number = draw.integers(10 ** (digits - 1), 10**digits)
        numbers[str(number)] = None
    return list(numbers)


SPARE_TOKENS = 16
"""Tokens that a model may generate beyond those of the answer: it may begin with its own words."""


def choose_haystacks(texts: Texts, sizes: EvaluationSizes) -> list[tuple[int, Haystack]]:
    """Return a place for each window: all documents in turn, each from a random token on.

    Each has the number of the document that its sequences count for. Where a window begins in one
    document and reads on in others, it is not independent of the windows in these: all of them
    count for the document of the first one.
    """
    random_places = np.random.default_rng(sizes.seed)
    order = random_places.permutation(len(texts.documents))
    haystacks = []
    for window in range(sizes.windows):
        document = int(order[window % len(order)])
        start = int(random_places.integers(len(texts.documents[document].ids)))
        haystacks.append(Haystack(texts, document, start))

    groups = _group_documents(haystacks, sizes.longest)
    document_of_group: dict[frozenset[int], int] = {}
    chosen = []
    for haystack in haystacks:
        (group,) = [group for group in groups if haystack.document in group]
        document = document_of_group.setdefault(group, haystack.document)
        chosen.append((document, haystack))
    return chosen[: count_for_test([document for document, _ in chosen])]


def _group_documents(haystacks: Sequence[Haystack], length: int) -> list[frozenset[int]]:
    """Return groups of documents: two that the same window reads are in one group.

    Args:
        haystacks: The places where the windows begin.
        length: The tokens of the longest window.
    """
    groups: list[frozenset[int]] = []
    for haystack in haystacks:
        joined = frozenset(document for document, _, _ in haystack.parts(length))
        apart = []
        for group in groups:
            if group.isdisjoint(joined):
                apart.append(group)
            else:
                joined |= group
        groups = [*apart, joined]
    return groups


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
    sizes = frozenset({"depths", "generate", "seed"})

    @abstractmethod
    def prompt(self, haystack: Haystack, depth: float, draw: np.random.Generator) -> Prompt:
        """Return the question.

        Args:
            haystack: The place in the texts.
            depth: The depth of the fact, from 0 to 1.
            draw: Random numbers; the first ones decide question and answer.
        """

    def cases(self, texts: Texts, sizes: EvaluationSizes) -> Iterator[Case]:
        """Yield test sequences: a text with a hidden fact, a question about it, and the answer.

        The model predicts the answer. There is a sequence for each window (a place in the texts),
        each length, and each depth: where in the text the fact is, from 0 (beginning) to 1 (end).
        """
        depths = [0.5]
        if sizes.depths > 1:
            depths = np.linspace(0, 1, sizes.depths).tolist()

        # a haystack is a text from a random token on, in which the fact is hidden
        for window, (document, haystack) in enumerate(choose_haystacks(texts, sizes)):
            for length, (depth_index, depth) in product(sizes.lengths, enumerate(depths)):
                # The seed leaves out the length, so sequences of all lengths ask for the same fact
                # and can be compared in pairs.
                random = np.random.default_rng((sizes.seed, window, depth_index))
                prompt = self.prompt(haystack, depth, random)
                ids, answer_indices = haystack.sequence(prompt, length, self.name)

                # With --generate, the model writes the answer, which is at the end of `ids`. Spare
                # tokens leave space for words before it, such as "The passkey is".
                to_generate = 0
                if sizes.generate:
                    answer_length = len(ids) - answer_indices[0]
                    to_generate = answer_length + SPARE_TOKENS
                yield Case(
                    measure=self.name,
                    column=length,
                    document=document,
                    window=window,
                    ids=np.array(ids, np.int32),
                    targets=np.array(answer_indices, np.int32),
                    depth=depth,
                    answer=prompt.answer,
                    generate=to_generate,
                )

    def observe(self, case: Case, losses: TokenLosses) -> list[Observation]:
        """Return three numbers for the answer of a sequence: accuracy, exact and log_prob."""
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
        """Return a number that was measured on a sequence, with the place where it was measured.

        Args:
            case: The sequence, with its place in the texts.
            metric: The measured quantity, such as "accuracy".
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


NEEDLES_PER_TEXT = 4


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
        words = haystack.words(NEEDLES_PER_TEXT, draw)
        numbers = different_numbers(NEEDLES_PER_TEXT, 7, draw)
        places = [depth, *draw.random(NEEDLES_PER_TEXT - 1).tolist()]
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


KEYS_PER_DEPTH = 5


@register
class Keys(Measure):
    """Lines with a word and its number, hidden all over the text, and asked for one after another.

    One pass answers all questions, so that a long text has many of them. The text ends with the
    words and numbers in another order. An answer is right where each token of the number was the
    likeliest, given the text and the lines before it. Small models answer these lines where
    sentences such as those of `niah` are too hard for them.
    """

    name = "keys"
    summary = "the numbers of 25 words hidden in the text, all asked for in one pass, by depth"
    metrics = ("exact", "log_prob")
    sizes = frozenset({"depths", "seed"})

    def cases(self, texts: Texts, sizes: EvaluationSizes) -> Iterator[Case]:
        """Yield test sequences: a text with hidden lines such as "Garden: 48213", then questions.

        Each question is a word of a line, and the model predicts the number. There is a sequence
        for each window (a place in the texts) and each length.
        """
        question_count = KEYS_PER_DEPTH * sizes.depths
        # a haystack is a text from a random token on, in which the lines are hidden
        for window, (document, haystack) in enumerate(choose_haystacks(texts, sizes)):
            random = np.random.default_rng((sizes.seed, window))
            prompts = self.prompts(haystack, question_count, random)
            for length in sizes.lengths:
                asked = haystack.text_with_questions(prompts, length, self.name)
                # `asked.targets` counts the tokens of the answers from the first question on
                start_of_questions = len(asked.tokens_before_questions)
                targets = [start_of_questions + index for index in asked.targets]
                yield Case(
                    measure=self.name,
                    column=length,
                    document=document,
                    window=window,
                    ids=np.array(asked.ids, np.int32),
                    targets=np.array(targets, np.int32),
                )

    def prompts(self, haystack: Haystack, count: int, draw: np.random.Generator) -> list[Prompt]:
        """Return `count` questions in the order in which they are asked.

        Each has a line that is hidden in the text, with a word and a number. Line 3 of 25 lines is
        "Garden: 48213", say, at the depth 3.5 / 25 of the text. Its question is "Garden:".

        Args:
            haystack: The place in the texts, whose words are used.
            count: How many words, each with a number.
            draw: Random numbers.
        """
        words = [word.capitalize() for word in haystack.words(count, draw)]
        numbers = different_numbers(count, 5, draw)
        prompts = []
        for index in order_of_questions(count):
            word = words[index]
            number = numbers[index]
            depth = (index + 0.5) / count
            prompts.append(
                Prompt(
                    task="Some lines of the following text have a word and its number.\n",
                    question=f"\n{word}",
                    lead=":",
                    answer=number,
                    facts=((depth, f"\n{word}: {number}\n"),),
                )
            )
        return prompts

    def observe(self, case: Case, losses: TokenLosses) -> list[Observation]:
        """Return two numbers for each question of a sequence: "exact" and "log_prob".

        The sequence is a text with lines such as "Garden: 48213", and then a question for each
        line. "exact" is 1 if every token of the answer was the likeliest token, otherwise 0.
        "log_prob" is the mean log-probability of the tokens of the answer.

        Args:
            case: The sequence, whose targets are the tokens of all answers.
            losses: The loss of each target, and whether the target was the likeliest token.
        """
        # the answers in the order of the questions, and the number of the line that each asks for
        answers = _split_answers(case.targets)
        question_count = len(answers)
        lines = order_of_questions(question_count)

        observations = []
        depth_count = question_count // KEYS_PER_DEPTH
        for line, tokens in zip(lines, answers, strict=True):
            # Rows are compared line by line, so each line has a number that is unique among all
            # sequences. With 25 lines in each, these are 0 to 24, then 25 to 49, ...
            window_of_line = case.window * question_count + line
            # KEYS_PER_DEPTH lines that follow each other in the text share a depth, from 0 to 1
            depth = (line // KEYS_PER_DEPTH + 0.5) / depth_count
            observation_of_line = partial(
                Observation,
                measure=self.name,
                column=case.column,
                document=case.document,
                window=window_of_line,
                depth=depth,
                sequence=case.window,
            )
            is_right = float(losses.right[tokens].all())
            log_prob = -float(losses.loss[tokens].mean())
            exact = observation_of_line(metric="exact", value=is_right, weight=1)
            mean_log_prob = observation_of_line(
                metric="log_prob", value=log_prob, weight=len(tokens)
            )
            observations += [exact, mean_log_prob]
        return observations

    def with_place(self, case: Case, observation: Observation) -> Observation:
        """Return an observation of an earlier run with the document and window of this run."""
        count = len(_split_answers(case.targets))
        line = observation.window % count
        window_of_line = case.window * count + line  # as in `observe`
        return replace(
            observation,
            measure=self.name,
            document=case.document,
            window=window_of_line,
            sequence=case.window,
        )


def _split_answers(targets: NDArray[np.int32]) -> list[NDArray[np.intp]]:
    """Return the tokens of each answer of a sequence, as indices into its targets.

    Questions are between the answers, so a gap in the targets begins another answer: the targets
    70, 71, 80, 81, 82 are the answers [0, 1] and [2, 3, 4].
    """
    begins_answer = np.diff(targets) > 1
    first_tokens = np.flatnonzero(begins_answer) + 1
    return np.split(np.arange(len(targets)), first_tokens)


def order_of_questions(count: int) -> list[int]:
    """Return the numbers from 0 to `count` - 1 in an order that mixes them, always the same."""
    order = np.random.default_rng(count).permutation(count)
    return [int(number) for number in order]


LINES_PER_WORD = 3


@register
class Latest(Keys):
    """Several lines with a word and a number for each word: the last number is the answer.

    Otherwise it is the measure `keys`. The depth is the place of the last line of a word; its other
    lines are anywhere before that.
    """

    name = "latest"
    summary = "the last number of words that have several, asked for in one pass, by depth"

    def prompts(self, haystack: Haystack, count: int, draw: np.random.Generator) -> list[Prompt]:
        """Return `count` questions, each for the last of several numbers of a word in the text.

        A line such as "Garden: 48213" is replaced by a later one, "Garden: 70553", say.

        Args:
            haystack: The place in the texts, from which the words are.
            count: How many words.
            draw: Random numbers.
        """
        words = [word.capitalize() for word in haystack.words(count, draw)]
        numbers = different_numbers(LINES_PER_WORD * count, 5, draw)
        prompts = []
        for index in order_of_questions(count):
            word = words[index]
            first = LINES_PER_WORD * index  # the first of this word's numbers
            values = numbers[first : first + LINES_PER_WORD]

            # the earlier lines are at random depths before the last one
            last_depth = (index + 0.5) / count
            earlier_depths = sorted((last_depth * draw.random(LINES_PER_WORD - 1)).tolist())
            facts = []
            for depth, value in zip([*earlier_depths, last_depth], values, strict=True):
                facts.append((depth, f"\n{word}: {value}\n"))
            prompts.append(
                Prompt(
                    task="Some lines of the following text have a word and its number. A later"
                    " line replaces an earlier one.\n",
                    question=f"\n{word}",
                    lead=":",
                    answer=values[-1],
                    facts=tuple(facts),
                )
            )
        return prompts


PASSKEY_TASK = (
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
            task=PASSKEY_TASK,
            question="\nWhat is the pass key?",
            lead=" The pass key is",
            answer=key,
            facts=((depth, fact),),
        )
