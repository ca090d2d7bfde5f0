"""vLLM: log-probabilities of the prompt, by token id, in one request.

https://docs.vllm.ai/en/latest/api/vllm/entrypoints/openai/completion/protocol/ (`prompt_logprobs`).
"""

from collections.abc import Sequence

import msgspec

from ropeconv.engines.engine import LogProbs
from ropeconv.formats.jsontext import JsonObject

from .protocol import Count, Limits, ModelEntry, Name, Server, for_prompt


class Version(msgspec.Struct, frozen=True):
    """The answer to /version."""

    version: Name = ""


class VllmTokenRecord(msgspec.Struct, frozen=True):
    """A token at a position."""

    logprob: float


class Choice(msgspec.Struct, frozen=True):
    """A completion."""

    prompt_logprobs: list[dict[Count, VllmTokenRecord] | None] | None = None
    """Records by id for each token of the prompt; None for the first."""

    token_ids: list[Count] | None = None
    """The generated tokens."""


class VllmCompletion(msgspec.Struct, frozen=True):
    """The answer to /v1/completions."""

    choices: list[Choice]


class Vllm(Server):
    """A running `vllm serve`, which gives the log-probabilities of a whole prompt in one request.

    Its logits take twice tokens x vocabulary x 4 bytes, for the tokens of a batch
    (--max-num-batched-tokens).
    """

    owner = "vllm"
    text_key = "prompt"

    def describe(self, entry: ModelEntry) -> None:
        answer = self.ask("/version", Version)
        self.runtime = f"vLLM {answer.version}"

    def generate(self, ids: Sequence[int], count: int) -> list[int]:
        self.refuse_longer(len(ids) + count)
        fields = {"max_tokens": count, "return_token_ids": True, "skip_special_tokens": False}
        tokens = self._complete(ids, fields, for_prompt(count)).token_ids
        if tokens is None:
            raise self.missing_from_answer("token_ids, which vLLM 0.10.2 or newer has")
        return tokens

    def _complete(self, ids: Sequence[int], fields: JsonObject, limits: Limits) -> Choice:
        """Return the completion of a prompt; `fields` are others of the request."""
        body = {"model": self.model, "prompt": list(ids), "temperature": 0, **fields}
        choices = self.ask("/v1/completions", VllmCompletion, body, limits).choices
        return choices[0] if choices else Choice()

    def log_probs(self, ids: Sequence[int], kept: Sequence[int], top: int) -> list[LogProbs]:
        """Return the log-probabilities of next tokens, as `Server.log_probs`, by one request.

        vLLM answers with an entry for each token of a text, which has what was predicted before it:
        {464: the record of this token, 317: the record of a likelier one, ...}.
        """
        fields = {"max_tokens": 1, "prompt_logprobs": top}
        limits = for_prompt(len(ids) * (top + 1))
        entries = self._complete(ids, fields, limits).prompt_logprobs
        if entries is None or len(entries) != len(ids):
            raise self.missing_from_answer("prompt_logprobs for every token")

        log_probs = []
        for index in kept:
            # what was predicted after token `index` is in the entry of the next token
            next_index = index + 1
            predicted = entries[next_index]
            if not predicted:
                raise self.missing_from_answer(f"prompt_logprobs for token {next_index}")
            log_probs.append({token: record.logprob for token, record in predicted.items()})
        return log_probs
