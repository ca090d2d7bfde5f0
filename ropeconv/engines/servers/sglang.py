"""SGLang: log-probabilities of the prompt through its own endpoint, which names tokens by id.

https://docs.sglang.io/basic_usage/sampling_params.html (`return_logprob`, `top_logprobs_num`).
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from ...errors import RopeconvError
from ..engine import LogProbs, Progress
from .protocol import TOP, Count, ModelEntry, Name, Served, Server, misread
from .transport import for_prompt

Said = tuple[float | None, Count, str | None]
"""Log-probability, token id and text. The first token of a prompt has no log-probability."""


class Info(msgspec.Struct, frozen=True):
    """The answer to /server_info."""

    version: Name = ""
    model_path: Name | None = None


class MetaInfo(msgspec.Struct, frozen=True):
    """Per token of the prompt, from `logprob_start_len` on, what is said of itself and of the likeliest."""

    input_token_logprobs: list[Said] | None = None
    input_top_logprobs: list[list[Said] | None] | None = None


class Generated(msgspec.Struct, frozen=True):
    """The answer to /generate."""

    meta_info: MetaInfo


class Sglang(Server):
    """A running `sglang.launch_server`, asked for the log-probabilities of a prompt in one request."""

    owner = "sglang"
    unchecked = ("which precision and attention kernel it runs", "tokens past the likeliest that it names")

    def describe(self, entry: ModelEntry) -> Served:
        try:
            known = self.get("/server_info", Info)
        except RopeconvError:  # its name before SGLang 0.5
            known = self.get("/get_server_info", Info)
        runtime = f"SGLang {known.version}".strip()
        return Served(entry.id, runtime, entry.max_model_len or 0, known.model_path or "")

    def top_log_probs(
        self, ids: Sequence[int], kept: Sequence[int], progress: Progress | None = None
    ) -> list[LogProbs]:
        first = min(kept)
        body = {
            "input_ids": list(ids),
            "sampling_params": {"max_new_tokens": 1, "temperature": 0},
            "return_logprob": True,
            "logprob_start_len": first,
            "top_logprobs_num": TOP,
        }
        limits = for_prompt(len(ids) * (TOP + 1))
        said = self.post("/generate", body, Generated, limits).meta_info
        rows, own = said.input_top_logprobs, said.input_token_logprobs
        if rows is None or own is None or not len(rows) == len(own) == len(ids) - first:
            raise misread("SGLang", "input_top_logprobs for every token")
        (progress or Progress()).advance(len(ids))
        found = []
        for k in kept:
            entries = [*(rows[k + 1 - first] or ()), own[k + 1 - first]]
            known = {token: value for value, token, _ in entries if value is not None}
            if len(known) != len({token for _, token, _ in entries}):
                raise misread("SGLang", f"log-probability for token {k + 1}")
            found.append(known)
        return found
