"""llama-server: log-probabilities of one generated token at a time, after a prefix that stays in its cache.

https://github.com/ggml-org/llama.cpp/tree/master/tools/server (`n_probs`, `cache_prompt`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ..engine import LogProbs, Progress
from .protocol import TOP, Served, Server, misread

BIAS = 1e6


class LlamaServer(Server):
    """A running `llama-server`, whose log-probabilities are of generated tokens only: one request per position."""

    owner = "llamacpp"
    computes_in = "float16"  # its cache of keys and values, unless started with -ctk f32 -ctv f32
    unchecked = (
        "which types its cache of keys and values has (16 bits by default)",
        "tokens past the likeliest that it names",
    )

    def describe(self, entry: dict[str, Any]) -> Served:
        known, meta = self.get("/props"), entry.get("meta") or {}
        slot = (known.get("default_generation_settings") or {}).get("n_ctx") or meta.get("n_ctx") or 0
        build = str(known.get("build_info") or "")
        path, count = str(known.get("model_path") or ""), int(meta.get("n_vocab") or 0)
        return Served(entry["id"], f"llama-server {build}".strip(), int(slot), path, count)

    def top_log_probs(
        self, ids: Sequence[int], kept: Sequence[int], progress: Progress | None = None
    ) -> list[LogProbs]:
        found, done = [], 0
        plain = self.post("/tokenize", {"content": "a", "add_special": False})["tokens"][-1]
        for k in kept:
            rows = self._after(ids[: k + 1], ids[k + 1]) or self._after(ids[: k + 1], plain)
            if not rows:
                raise misread("llama-server", "completion_probabilities")
            found.append({int(entry["id"]): float(entry["logprob"]) for entry in rows})
            (progress or Progress()).advance(k + 1 - done)
            done = k + 1
        return found

    def _after(self, prefix: Sequence[int], generated: int) -> list[dict[str, Any]]:
        """Entries with the log-probabilities after `prefix` of the likeliest tokens, and of the token `generated`.

        A bias makes the sampler take that token; the log-probabilities are from before the bias. Empty where the server
        reports none, since the token alone is not valid UTF-8.
        """
        body = {
            "model": self.served.model, "prompt": list(prefix), "n_predict": 1, "n_probs": TOP, "temperature": -1,
            "id_slot": 0, "cache_prompt": True, "logit_bias": [[generated, BIAS]],
        }  # fmt: skip
        said = self.post("/completion", body)
        if said.get("truncated") or int(said.get("tokens_evaluated", len(prefix))) != len(prefix):
            raise misread("llama-server", f"whole prompt of {len(prefix)} tokens")
        entries = said.get("completion_probabilities") or []
        return [*entries[0].get("top_logprobs", []), entries[0]] if entries else []
