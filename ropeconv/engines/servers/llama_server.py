"""llama-server: log-probabilities of one generated token at a time, after a prefix that stays in its cache.

https://github.com/ggml-org/llama.cpp/tree/master/tools/server (`n_probs`, `cache_prompt`).
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from ..engine import LogProbs, Progress
from .protocol import TOP, Count, ModelEntry, Name, Served, Server, misread
from .transport import for_prompt

BIAS = 1e6


class Slot(msgspec.Struct, frozen=True):
    """Settings of a slot. n_ctx: tokens that it accepts."""

    n_ctx: Count = 0


class Props(msgspec.Struct, frozen=True):
    """The answer to /props."""

    default_generation_settings: Slot | None = None
    build_info: Name | None = None
    model_path: Name | None = None


class Tokenized(msgspec.Struct, frozen=True):
    """The answer to /tokenize."""

    tokens: list[Count]


class Said(msgspec.Struct, frozen=True):
    """What is said of a token."""

    id: Count
    logprob: float
    top_logprobs: tuple[Said, ...] = ()


class Completion(msgspec.Struct, frozen=True):
    """The answer to /completion. tokens_evaluated: of the prompt, None where it is not said."""

    truncated: bool = False
    tokens_evaluated: Count | None = None
    completion_probabilities: list[Said] | None = None


class LlamaServer(Server):
    """A running `llama-server`, whose log-probabilities are of generated tokens only: one request per position."""

    owner = "llamacpp"
    computes_in = "float16"  # its cache of keys and values, unless started with -ctk f32 -ctv f32
    unchecked = (
        "which types its cache of keys and values has (16 bits by default)",
        "tokens past the likeliest that it names",
    )

    def describe(self, entry: ModelEntry) -> Served:
        known, slot, meta = self.get("/props", Props), 0, entry.meta
        if known.default_generation_settings is not None:
            slot = known.default_generation_settings.n_ctx
        slot = slot or (meta.n_ctx if meta else 0)
        runtime = f"llama-server {known.build_info or ''}".strip()
        return Served(entry.id, runtime, slot, known.model_path or "", meta.n_vocab if meta else 0)

    def top_log_probs(
        self, ids: Sequence[int], kept: Sequence[int], progress: Progress | None = None
    ) -> list[LogProbs]:
        found, done = [], 0
        plain = self.post("/tokenize", {"content": "a", "add_special": False}, Tokenized).tokens
        if not plain:
            raise misread("llama-server", "token for a letter")
        for k in kept:
            rows = self._after(ids[: k + 1], ids[k + 1]) or self._after(ids[: k + 1], plain[-1])
            if not rows:
                raise misread("llama-server", "completion_probabilities")
            found.append({entry.id: entry.logprob for entry in rows})
            (progress or Progress()).advance(k + 1 - done)
            done = k + 1
        return found

    def _after(self, prefix: Sequence[int], generated: int) -> tuple[Said, ...]:
        """Entries with the log-probabilities after `prefix` of the likeliest tokens, and of the token `generated`.

        A bias makes the sampler take that token; the log-probabilities are from before the bias. Empty where the server
        reports none, since the token alone is not valid UTF-8.
        """
        body = {
            "model": self.served.model, "prompt": list(prefix), "n_predict": 1, "n_probs": TOP, "temperature": -1,
            "id_slot": 0, "cache_prompt": True, "logit_bias": [[generated, BIAS]],
        }  # fmt: skip
        said = self.post("/completion", body, Completion, for_prompt(TOP + 1))
        if said.truncated or said.tokens_evaluated not in (None, len(prefix)):
            raise misread("llama-server", f"whole prompt of {len(prefix)} tokens")
        entries = said.completion_probabilities
        return (*entries[0].top_logprobs, entries[0]) if entries else ()
