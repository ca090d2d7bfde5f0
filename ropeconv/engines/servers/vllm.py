"""vLLM: log-probabilities of the prompt, by token id, in one request.

https://docs.vllm.ai/en/latest/api/vllm/entrypoints/openai/completion/protocol/ (`prompt_logprobs`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ..engine import LogProbs, Progress
from .protocol import TOP, Served, Server, misread


class Vllm(Server):
    """A running `vllm serve`, asked for the log-probabilities of a prompt in one request."""

    owner = "vllm"
    unchecked = ("which precision and attention kernel it runs", "tokens past the likeliest that it names")

    def describe(self, entry: dict[str, Any]) -> Served:
        version = self.get("/version").get("version", "")
        return Served(
            entry["id"], f"vLLM {version}", int(entry.get("max_model_len") or 0), str(entry.get("root") or "")
        )

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
        choice = self.post("/v1/completions", body)["choices"][0]
        rows = choice.get("prompt_logprobs")
        if not isinstance(rows, list) or len(rows) != len(ids):
            raise misread("vLLM", "prompt_logprobs for every token")
        (progress or Progress()).advance(len(ids))
        return [{int(token): float(said["logprob"]) for token, said in rows[k + 1].items()} for k in kept]
