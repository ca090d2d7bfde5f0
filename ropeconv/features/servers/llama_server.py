"""llama-server: log-probabilities of one generated token at a time, after a prefix in its cache.

https://github.com/ggml-org/llama.cpp/tree/master/tools/server (`n_probs`, `cache_prompt`).
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from ropeconv.engines.engine import LogProbs, Output, Progress
from ropeconv.formats.jsontext import JsonObject

from .protocol import TOP, Count, ModelEntry, ModelMeta, Name, Server, TokenList, for_prompt

BIAS_OF_CHOSEN_TOKEN = 1e6
"""The number that is added to the logit of a token, so that the server chooses it."""


class Slot(msgspec.Struct, frozen=True):
    """Settings of a slot."""

    n_ctx: Count = 0
    """The tokens that it accepts."""


class Props(msgspec.Struct, frozen=True):
    """The answer to /props."""

    default_generation_settings: Slot | None = None
    build_info: Name | None = None
    model_path: Name | None = None


class LlamaTokenRecord(msgspec.Struct, frozen=True):
    """A token with its log-probability."""

    id: Count
    logprob: float
    top_logprobs: tuple[LlamaTokenRecord, ...] = ()


class LlamaCompletion(msgspec.Struct, frozen=True):
    """The answer to /completion."""

    truncated: bool = False

    tokens_evaluated: Count | None = None
    """The number of tokens of the prompt; None if not reported."""

    completion_probabilities: list[LlamaTokenRecord] | None = None

    tokens: list[Count] | None = None
    """The generated tokens."""


class LlamaServer(Server):
    """A running `llama-server`.

    Its log-probabilities are of generated tokens only, so each position needs a request.
    """

    owner = "llamacpp"
    text_key = "content"
    computes_in = "float16"  # its cache of keys and values, unless started with -ctk f32 -ctv f32
    unchecked = (
        "which types its cache of keys and values has (16 bits by default)",
        "tokens other than the likeliest ones",
    )

    def describe(self, entry: ModelEntry) -> None:
        props = self.ask("/props", Props)
        meta = entry.meta or ModelMeta()
        slot = props.default_generation_settings or Slot()
        self.runtime = f"llama-server {props.build_info or ''}".strip()
        self.length = slot.n_ctx or meta.n_ctx
        self.path = props.model_path or ""
        self.vocabulary = meta.n_vocab

    def lacks(self, output: Output) -> str:
        if output == "tokens":
            return ""
        return (
            f"{self.runtime} does not return log-probabilities of prompts, so losses cannot be"
            " measured there; measure passkey with --generate, or evaluate its GGUF file"
        )

    def top_log_probs(
        self, ids: Sequence[int], kept: Sequence[int], progress: Progress | None = None
    ) -> list[LogProbs]:
        """Return log-probabilities of the likeliest next tokens, by a request for each position.

        Args:
            ids: All tokens of a text.
            kept: The positions to ask for, in rising order: the server gets the tokens up to each
                of them, and names likely next tokens. The last token is not among them.
            progress: Callbacks, which are called while tokens are read.

        Returns:
            For each position a dict {token id: log-probability}.
        """
        if progress is None:
            progress = Progress()
        # a token that does not end the text
        tokens_of_letter = self.encode("a")
        if not tokens_of_letter:
            raise self.missing_from_answer("token for a letter")
        letter = tokens_of_letter[-1]

        log_probs = []
        read_before = 0
        for index in kept:
            prefix = ids[: index + 1]
            next_token = ids[index + 1]
            # Make the server generate the next token of the text: its answer has the likeliest
            # tokens at this position too. For a token that ends the text the answer is empty. Then
            # make it generate a letter, since the likeliest tokens are the same.
            entries = self._log_probs_after(prefix, generated=next_token)
            if not entries:
                entries = self._log_probs_after(prefix, generated=letter)
            if not entries:
                raise self.missing_from_answer("completion_probabilities")
            log_probs.append({entry.id: entry.logprob for entry in entries})
            progress.advance(len(prefix) - read_before)
            read_before = len(prefix)
        return log_probs

    def generate(self, ids: Sequence[int], count: int) -> list[int]:
        """Return the likeliest `count` tokens after a prompt, chosen one by one."""
        self.refuse_longer(len(ids) + count)
        body = {
            "model": self.model,
            "prompt": list(ids),
            "n_predict": count,
            "temperature": 0,
            "cache_prompt": True,
            "return_tokens": True,
        }
        completion = self._complete(body, ids, count)
        if completion.tokens is None:
            raise self.missing_from_answer("tokens")
        return completion.tokens

    def encode(self, text: str, special: bool = False) -> list[int]:
        body = {"content": text, "add_special": special}
        return self.ask("/tokenize", TokenList, body, for_prompt(len(text))).tokens

    def _log_probs_after(
        self, prefix: Sequence[int], generated: int
    ) -> tuple[LlamaTokenRecord, ...]:
        """Return the log-probabilities of the likeliest tokens after `prefix`.

        llama-server gives them only where it generates a token. So it generates one: `generated`,
        which is chosen by a bias on its logit. The reported numbers are without the bias.

        Args:
            prefix: The tokens of the text.
            generated: The token to generate.

        Returns:
            The likeliest tokens, then `generated`; empty if the server generates nothing.
        """
        body = {
            "model": self.model,
            "prompt": list(prefix),
            "n_predict": 1,
            "n_probs": TOP,
            # below 0, the reported probabilities are a softmax of the logits before the sampler and
            # its bias (tools/server/README.md of llama.cpp, n_probs)
            "temperature": -1,
            "id_slot": 0,  # always the same slot, whose cache has the prefix of the last request
            "cache_prompt": True,
            "logit_bias": [[generated, BIAS_OF_CHOSEN_TOKEN]],
        }
        entries = self._complete(body, prefix, TOP + 1).completion_probabilities
        if not entries:
            return ()
        generated_entry = entries[0]
        return (*generated_entry.top_logprobs, generated_entry)

    def _complete(self, body: JsonObject, prompt: Sequence[int], entries: int) -> LlamaCompletion:
        """Return the completion of a prompt by llama-server, which must have read all of it.

        Args:
            body: The request.
            prompt: The tokens of the prompt in it.
            entries: How many log-probabilities are asked for, which limits the size of the answer.

        Raises:
            RopeconvError: The server has left out a part of the prompt.
        """
        completion = self.ask("/completion", LlamaCompletion, body, for_prompt(entries))
        if completion.truncated or completion.tokens_evaluated not in (None, len(prompt)):
            raise self.missing_from_answer(f"whole prompt of {len(prompt)} tokens")
        return completion
