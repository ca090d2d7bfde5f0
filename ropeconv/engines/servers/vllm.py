"""vLLM: log-probabilities of the prompt, by token id, in one request.

https://docs.vllm.ai/en/latest/api/vllm/entrypoints/openai/completion/protocol/ (`prompt_logprobs`).
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from ..engine import LogProbs, Progress
from .protocol import TOP, Count, ModelEntry, Name, Served, Server, misread
from .transport import for_prompt


class Version(msgspec.Struct, frozen=True):
    """The answer to /version."""

    version: Name = ""


class Said(msgspec.Struct, frozen=True):
    """What is said of one token at a position."""

    logprob: float


class Choice(msgspec.Struct, frozen=True):
    """A completion. prompt_logprobs: per token of the prompt, by id; None for the first."""

    prompt_logprobs: list[dict[Count, Said] | None] | None = None


class Completion(msgspec.Struct, frozen=True):
    """The answer to /v1/completions."""

    choices: list[Choice]


class Vllm(Server):
    """A running `vllm serve`, asked for the log-probabilities of a prompt in one request."""

    owner = "vllm"
    unchecked = ("which precision and attention kernel it runs", "tokens past the likeliest that it names")

    def describe(self, entry: ModelEntry) -> Served:
        version = self.get("/version", Version).version
        return Served(entry.id, f"vLLM {version}", entry.max_model_len or 0, entry.root or "")

    def top_log_probs(
        self, ids: Sequence[int], kept: Sequence[int], progress: Progress | None = None
    ) -> list[LogProbs]:
        body = {
            "model": self.served.model,
            "prompt": list(ids),
            "max_tokens": 1,
            "temperature": 0,
            "prompt_logprobs": TOP,
        }
        choices = self.post("/v1/completions", body, Completion, for_prompt(len(ids) * (TOP + 1))).choices
        rows = choices[0].prompt_logprobs if choices else None
        if rows is None or len(rows) != len(ids):
            raise misread("vLLM", "prompt_logprobs for every token")
        (progress or Progress()).advance(len(ids))
        found = []
        for k in kept:
            row = rows[k + 1]
            if not row:
                raise misread("vLLM", f"prompt_logprobs for token {k + 1}")
            found.append({token: said.logprob for token, said in row.items()})
        return found
