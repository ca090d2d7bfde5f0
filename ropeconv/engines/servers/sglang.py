"""SGLang: log-probabilities of the prompt through its own endpoint, which names tokens by id.

https://docs.sglang.io/basic_usage/sampling_params.html (`return_logprob`, `top_logprobs_num`).
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from ...rope.errors import RopeconvError
from ..engine import LogProbs
from .protocol import Count, ModelEntry, Name, ServedModel, Server, for_prompt

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


class SglangGeneration(msgspec.Struct, frozen=True):
    """The answer to /generate. output_ids: of the tokens that follow the prompt."""

    meta_info: MetaInfo
    output_ids: list[Count] | None = None


class SglangText(msgspec.Struct, frozen=True):
    """The answer to /detokenize."""

    text: str


class Sglang(Server):
    """A running `sglang serve`, asked for the log-probabilities of a prompt, from a position on."""

    owner = "sglang"
    title = "SGLang"
    piece = 2048  # SGLang keeps the logits of all positions that are asked for
    unchecked = ("which precision and attention kernel it runs", "tokens past the likeliest that it names")

    def describe(self, entry: ModelEntry) -> ServedModel:
        try:
            known = self.get("/server_info", Info)
        except RopeconvError:  # its name before SGLang 0.5
            known = self.get("/get_server_info", Info)
        runtime = f"SGLang {known.version}".strip()
        return ServedModel(entry.id, runtime, entry.max_model_len or 0, known.model_path or "")

    def generate(self, ids: Sequence[int], count: int) -> list[int]:
        self.refuse_longer(len(ids) + count)
        asked = {"sampling_params": {"max_new_tokens": count, "temperature": 0}}
        found = self.post(
            "/generate", {"input_ids": list(ids), **asked}, SglangGeneration, for_prompt(count)
        ).output_ids
        if found is None:
            raise self.misread("output_ids")
        return found

    def decode(self, ids: Sequence[int]) -> str:
        body = {"model": self.served.model, "tokens": list(ids), "skip_special_tokens": False}
        return self.post("/detokenize", body, SglangText, for_prompt(len(ids))).text

    def log_probs(self, ids: Sequence[int], kept: Sequence[int], top: int) -> list[LogProbs]:
        first = min(kept)
        body = {
            "input_ids": list(ids),
            "sampling_params": {"max_new_tokens": 1, "temperature": 0},
            "return_logprob": True,
            "logprob_start_len": first,
            "top_logprobs_num": top,
        }
        limits = for_prompt((len(ids) - first) * (top + 1))
        said = self.post("/generate", body, SglangGeneration, limits).meta_info
        rows, own = said.input_top_logprobs, said.input_token_logprobs
        if rows is None or own is None or not len(rows) == len(own) == len(ids) - first:
            raise self.misread("input_top_logprobs for every token")
        found = []
        for k in kept:
            entries = [*(rows[k + 1 - first] or ()), own[k + 1 - first]]
            known = {token: value for value, token, _ in entries if value is not None}
            if len(known) != len({token for _, token, _ in entries}):
                raise self.misread(f"log-probability for token {k + 1}")
            found.append(known)
        return found
