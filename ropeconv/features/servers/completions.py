"""Servers with OpenAI's completions: log-probabilities of the next token after a text.

mlx_lm.server and llama-cpp-python's server were run. They read text and not tokens, so the text is
made with the tokenizer of the checkpoint, and only places are asked about where the server makes
the same tokens from the text. They answer in one of two forms, which `Completions` finds out by
asking.

https://platform.openai.com/docs/api-reference/completions (`logprobs`), and `logprobs` of chat
completions.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from functools import cached_property
from typing import TYPE_CHECKING

import msgspec

from ropeconv.engines.engine import LogProbs, Output, Progress
from ropeconv.formats.jsontext import JsonObject
from ropeconv.rope.errors import RopeconvError

from .protocol import Count, ModelEntry, Server, for_prompt

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

TOKENS_PER_POSITION = 10
"""Likeliest tokens that are requested at a position, the most that mlx_lm.server gives."""
REQUEST_FIELDS: tuple[JsonObject, ...] = (
    {"logprobs": TOKENS_PER_POSITION},  # of completions: a number
    {
        "logprobs": True,
        "top_logprobs": TOKENS_PER_POSITION,
    },  # of chat completions, and mlx_lm.server
)
"""The fields of a request that ask for log-probabilities; the first that gives some is used."""
LETTERS = "abcdefghijklmnopqrstuvwxyz"


class NextToken(msgspec.Struct, frozen=True):
    """A token in the form of chat completions."""

    logprob: float = 0.0
    token: str = ""

    id: Count | None = None
    """Its number, which mlx_lm.server gives."""

    top_logprobs: tuple[NextToken, ...] = ()
    """The likeliest tokens in its place."""


class TextLogprobs(msgspec.Struct, frozen=True):
    """The log-probabilities of generated tokens, in one of two forms."""

    content: tuple[NextToken, ...] = ()
    """A record for each, in the form of chat completions."""

    top_logprobs: tuple[dict[str, float] | None, ...] = ()
    """The likeliest tokens for each by their texts, in the form of completions."""


class TextChoice(msgspec.Struct, frozen=True):
    """A completion."""

    logprobs: TextLogprobs | None = None


class Usage(msgspec.Struct, frozen=True):
    """How many tokens were read."""

    prompt_tokens: Count | None = None


class TextCompletion(msgspec.Struct, frozen=True):
    """The answer to /v1/completions."""

    choices: tuple[TextChoice, ...] = ()
    usage: Usage | None = None


class Completions(Server):
    """A running server that has OpenAI's completions and no protocol of its own here.

    Its log-probabilities are of generated tokens only, so each position needs a request.
    """

    owner = ""
    text_key = ""
    reads_text = True
    unchecked = (
        "which precision and attention kernel it runs",
        "tokens other than the likeliest ones",
    )

    tokenizer: PreTrainedTokenizerBase
    """The tokenizer of the checkpoint, which `validate` sets before it asks."""

    def describe(self, entry: ModelEntry) -> None:
        self.runtime = f"a server with OpenAI's API ({entry.owned_by or 'unnamed'})"
        self.form = self._find_form()

    def _find_form(self) -> JsonObject:
        """Return the fields of a request with which the server gives log-probabilities.

        Servers differ: OpenAI's completions have {"logprobs": 5}, say, and chat completions
        {"logprobs": true, "top_logprobs": 5}. Each form is tried with a short text.

        Raises:
            RopeconvError: With none of them.
        """
        reasons = []
        for form in REQUEST_FIELDS:
            try:
                answer = self._complete("a", form)
            except RopeconvError as problem:
                reasons.append(str(problem))
                continue
            if len(_records(answer)) > 1:
                return form
        why = f" ({reasons[0]})" if reasons else ""
        raise RopeconvError(
            f"the server at {self.client.base_url} gives no log-probabilities of likely tokens in"
            f" /v1/completions{why}; run vLLM, SGLang, llama-server or mlx_lm.server"
        )

    def lacks(self, output: Output) -> str:
        return (
            f"{self.runtime} reads text and gives log-probabilities of single tokens, which is"
            " enough for `validate` only; run vLLM, SGLang or llama-server"
        )

    def generate(self, ids: Sequence[int], count: int) -> list[int]:
        raise RopeconvError(self.lacks("tokens"))

    def make_text(self, count: int, seed: int) -> str:
        """Return random words, about half of them in spans that repeat, of at least `count` tokens.

        The repeats make attention to the past matter, and with it RoPE.

        Args:
            count: How many tokens.
            seed: The seed of the random numbers.
        """
        span = 12  # words that are repeated at a time
        chooser = random.Random(seed)
        words: list[str] = []
        while len(words) < count:  # each word is at least a token
            if len(words) > 2 * span and chooser.random() < 0.5:
                start = chooser.randrange(len(words) - span)
                words += words[start : start + span]
            else:
                words.append("".join(chooser.choices(LETTERS, k=chooser.randint(1, 6))))
        return " ".join(words)

    def text_of(self, ids: Sequence[int]) -> str:
        """Return the text from which the tokenizer makes these tokens; empty where none does."""
        special = len(self.prefix)
        text = str(self.tokenizer.decode(ids[special:]))
        is_same = list(self.tokenizer(text).input_ids) == list(ids)
        return text if is_same else ""

    @cached_property
    def prefix(self) -> tuple[int, ...]:
        """The tokens that the tokenizer puts before every text."""
        with_special = list(self.tokenizer("a").input_ids)
        plain = list(self.tokenizer("a", add_special_tokens=False).input_ids)
        return tuple(with_special[: len(with_special) - len(plain)])

    def top_log_probs(
        self, ids: Sequence[int], kept: Sequence[int], progress: Progress | None = None
    ) -> list[LogProbs]:
        """Return log-probabilities of the likeliest next tokens, by a request for each position.

        Args:
            ids: All tokens of a text.
            kept: The positions to ask for, in rising order: the server gets the text up to each of
                them, and names likely next tokens. `text_of` must have a text for each.
            progress: Callbacks, which are called while tokens are read.

        Returns:
            For each position a dict {token id: log-probability}.

        Raises:
            RopeconvError: The server makes other tokens from a text.
        """
        if progress is None:
            progress = Progress()
        log_probs = []
        read_before = 0
        for index in kept:
            prompt = ids[: index + 1]
            # self.form: the field of the request that asks for log-probabilities, {"logprobs": 10}
            answer = self._complete(self.text_of(prompt), self.form)

            # some servers report how many tokens they have made from the text
            reported = None
            if answer.usage is not None:
                reported = answer.usage.prompt_tokens
            if reported is not None and reported != len(prompt):
                raise RopeconvError(
                    f"{self.runtime} makes {reported} tokens from a text in which the tokenizer of"
                    f" the checkpoint has {len(prompt)}; start it with the tokenizer of the"
                    " checkpoint"
                )

            # Some servers give the id of a token, others its text. The id is then found by the
            # text; a text that several tokens have is left out.
            by_token = {}
            for record in _records(answer):
                token_id = record.id
                if token_id is None:
                    token_id = self._token(record.token)
                if token_id is not None:
                    by_token[token_id] = record.logprob
            if not by_token:
                raise self.missing_from_answer(f"log-probabilities after token {index}")
            log_probs.append(by_token)
            progress.advance(len(prompt) - read_before)
            read_before = len(prompt)
        return log_probs

    def _token(self, text: str) -> int | None:
        """Return the token with a name or a text; None where several or none have it."""
        return self._tokens_by_text.get(text)

    @cached_property
    def _tokens_by_text(self) -> dict[str, int]:
        """The id of each token by its text, and by its name in the vocabulary.

        In byte-level BPE, the token with the text " the" has the name "Ġthe" in the vocabulary.
        Texts and names that several tokens have are left out.
        """
        found: dict[str, int] = {}
        ambiguous = set()
        for name, token in self.tokenizer.get_vocab().items():
            text = str(self.tokenizer.decode([token]))
            for key in {name, text}:
                first = found.setdefault(key, token)
                if first != token:
                    ambiguous.add(key)
        return {key: token for key, token in found.items() if key not in ambiguous}

    def _complete(self, text: str, form: JsonObject) -> TextCompletion:
        """Return the completion of a text by one token."""
        body = {"model": self.model, "prompt": text, "max_tokens": 1, "temperature": 0, **form}
        return self.ask("/v1/completions", TextCompletion, body, for_prompt(TOKENS_PER_POSITION))


def _records(answer: TextCompletion) -> tuple[NextToken, ...]:
    """Return the likeliest tokens after the prompt, whichever form the answer has.

    One token was generated, so only the first entry of each list is read.
    """
    if not answer.choices or answer.choices[0].logprobs is None:
        return ()
    logprobs = answer.choices[0].logprobs

    # that of chat completions: a record for each token
    if logprobs.content:
        return logprobs.content[0].top_logprobs

    # that of completions: {" the": -0.3, " a": -1.7}
    if logprobs.top_logprobs and logprobs.top_logprobs[0]:
        by_text = logprobs.top_logprobs[0]
        return tuple(NextToken(logprob, text) for text, logprob in by_text.items())
    return ()
