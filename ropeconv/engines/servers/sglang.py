"""SGLang: log-probabilities of the prompt through its own endpoint, which names tokens by id.

https://docs.sglang.io/basic_usage/sampling_params.html (`return_logprob`, `top_logprobs_num`).
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence

import msgspec

from ...rope.errors import RopeconvError
from ..engine import LogProbs, Progress, TokenLosses
from .protocol import TOP, Count, ModelEntry, Name, ServedModel, Server, TokenList, for_prompt, losses_of, misread

PIECE = 2048
"""Positions whose losses are asked for at a time."""
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
    unchecked = ("which precision and attention kernel it runs", "tokens past the likeliest that it names")

    def describe(self, entry: ModelEntry) -> ServedModel:
        try:
            known = self.get("/server_info", Info)
        except RopeconvError:  # its name before SGLang 0.5
            known = self.get("/get_server_info", Info)
        runtime = f"SGLang {known.version}".strip()
        return ServedModel(entry.id, runtime, entry.max_model_len or 0, known.model_path or "")

    def top_log_probs(
        self, ids: Sequence[int], kept: Sequence[int], progress: Progress | None = None
    ) -> list[LogProbs]:
        found = self._said(ids, kept, TOP)
        (progress or Progress()).advance(len(ids))
        return found

    def token_losses(self, ids: Sequence[int], targets: Sequence[int], progress: Progress | None = None) -> TokenLosses:
        """As in `Engine`, in requests for `PIECE` positions, since SGLang keeps the logits of all that are asked for.

        ids, targets, progress: as there. What comes before is in its cache of prefixes by then.
        """
        self.refuse_longer(targets[-1] + 2)
        said, start = list[LogProbs](), 0
        while start < len(targets):
            stop = bisect_left(targets, targets[start] + PIECE)
            part = targets[start:stop]
            said += self._said(ids[: part[-1] + 1], [target - 1 for target in part], 1)
            start = stop
        (progress or Progress()).advance(len(ids))
        return losses_of("SGLang", ids, targets, said)

    def generate(self, ids: Sequence[int], count: int) -> list[int]:
        self.refuse_longer(len(ids) + count)
        asked = {"sampling_params": {"max_new_tokens": count, "temperature": 0}}
        found = self.post(
            "/generate", {"input_ids": list(ids), **asked}, SglangGeneration, for_prompt(count)
        ).output_ids
        if found is None:
            raise misread("SGLang", "output_ids")
        return found

    def encode(self, text: str, special: bool = False) -> list[int]:
        body = {"model": self.served.model, "prompt": text, "add_special_tokens": special}
        return self.post("/tokenize", body, TokenList, for_prompt(len(text))).tokens

    def decode(self, ids: Sequence[int]) -> str:
        body = {"model": self.served.model, "tokens": list(ids), "skip_special_tokens": False}
        return self.post("/detokenize", body, SglangText, for_prompt(len(ids))).text

    def _said(self, ids: Sequence[int], kept: Sequence[int], top: int) -> list[LogProbs]:
        """What is said behind each index in `kept`. ids: of the prompt. top: how many of the likeliest."""
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
            raise misread("SGLang", "input_top_logprobs for every token")
        found = []
        for k in kept:
            entries = [*(rows[k + 1 - first] or ()), own[k + 1 - first]]
            known = {token: value for value, token, _ in entries if value is not None}
            if len(known) != len({token for _, token, _ in entries}):
                raise misread("SGLang", f"log-probability for token {k + 1}")
            found.append(known)
        return found
