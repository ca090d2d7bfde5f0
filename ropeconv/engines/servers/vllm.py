"""vLLM: log-probabilities of the prompt, by token id, in one request.

https://docs.vllm.ai/en/latest/api/vllm/entrypoints/openai/completion/protocol/ (`prompt_logprobs`).
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from ...formats.jsontext import JsonObject
from ..engine import LogProbs, Progress, TokenLosses
from .protocol import (
    TOP,
    Count,
    Limits,
    ModelEntry,
    Name,
    ServedModel,
    Server,
    TokenList,
    for_prompt,
    losses_of,
    misread,
)


class Version(msgspec.Struct, frozen=True):
    """The answer to /version."""

    version: Name = ""


class VllmTokenRecord(msgspec.Struct, frozen=True):
    """What is said of one token at a position."""

    logprob: float


class Choice(msgspec.Struct, frozen=True):
    """A completion. prompt_logprobs: per token of the prompt, by id; None for the first. token_ids: that follow it."""

    prompt_logprobs: list[dict[Count, VllmTokenRecord] | None] | None = None
    token_ids: list[Count] | None = None


class VllmCompletion(msgspec.Struct, frozen=True):
    """The answer to /v1/completions."""

    choices: list[Choice]


class VllmText(msgspec.Struct, frozen=True):
    """The answer to /detokenize."""

    prompt: str


class Vllm(Server):
    """A running `vllm serve`, asked for the log-probabilities of a prompt in one request."""

    owner = "vllm"
    unchecked = ("which precision and attention kernel it runs", "tokens past the likeliest that it names")

    def describe(self, entry: ModelEntry) -> ServedModel:
        version = self.get("/version", Version).version
        return ServedModel(entry.id, f"vLLM {version}", entry.max_model_len or 0, entry.root or "")

    def top_log_probs(
        self, ids: Sequence[int], kept: Sequence[int], progress: Progress | None = None
    ) -> list[LogProbs]:
        found = self._said(ids, kept, TOP)
        (progress or Progress()).advance(len(ids))
        return found

    def token_losses(self, ids: Sequence[int], targets: Sequence[int], progress: Progress | None = None) -> TokenLosses:
        """As in `Engine`, with the likeliest token and the own one of every position, the fewest that vLLM can give.

        ids, targets, progress: as there. It computes these for the whole prompt: its logits take tokens x vocabulary x
        4 bytes twice for as many tokens as it reads at a time (--max-num-batched-tokens).
        """
        read = ids[: targets[-1] + 1]
        self.refuse_longer(len(read) + 1)
        found = losses_of("vLLM", ids, targets, self._said(read, [target - 1 for target in targets], 1))
        (progress or Progress()).advance(len(ids))
        return found

    def generate(self, ids: Sequence[int], count: int) -> list[int]:
        self.refuse_longer(len(ids) + count)
        asked = {"max_tokens": count, "return_token_ids": True, "skip_special_tokens": False}
        found = self._complete(ids, asked, for_prompt(count)).token_ids
        if found is None:
            raise misread("vLLM", "token_ids, which it has from 0.10.2 on")
        return found

    def encode(self, text: str, special: bool = False) -> list[int]:
        body = {"model": self.served.model, "prompt": text, "add_special_tokens": special}
        return self.post("/tokenize", body, TokenList, for_prompt(len(text))).tokens

    def decode(self, ids: Sequence[int]) -> str:
        body = {"model": self.served.model, "tokens": list(ids)}
        return self.post("/detokenize", body, VllmText, for_prompt(len(ids))).prompt

    def _complete(self, ids: Sequence[int], asked: JsonObject, limits: Limits) -> Choice:
        """The completion of a prompt. asked: the other fields of the request. limits: for the answer."""
        body = {"model": self.served.model, "prompt": list(ids), "temperature": 0, **asked}
        choices = self.post("/v1/completions", body, VllmCompletion, limits).choices
        return choices[0] if choices else Choice()

    def _said(self, ids: Sequence[int], kept: Sequence[int], top: int) -> list[LogProbs]:
        """What is said behind each index in `kept`. ids: of the prompt. top: how many of the likeliest."""
        asked = {"max_tokens": 1, "prompt_logprobs": top}
        rows = self._complete(ids, asked, for_prompt(len(ids) * (top + 1))).prompt_logprobs
        if rows is None or len(rows) != len(ids):
            raise misread("vLLM", "prompt_logprobs for every token")
        found = []
        for k in kept:
            row = rows[k + 1]
            if not row:
                raise misread("vLLM", f"prompt_logprobs for token {k + 1}")
            found.append({token: said.logprob for token, said in row.items()})
        return found
