"""SGLang: log-probabilities of the prompt through its own endpoint, which names tokens by id.

https://docs.sglang.io/basic_usage/sampling_params.html (`return_logprob`, `top_logprobs_num`).
"""

from collections.abc import Sequence
from typing import ClassVar

import msgspec

from ropeconv.engines.engine import LogProbs
from ropeconv.formats.jsontext import JsonObject
from ropeconv.rope.errors import RopeconvError

from .protocol import Count, ModelEntry, Name, Server, for_prompt

TokenRecord = tuple[float | None, Count, str | None]
"""Log-probability, token id and text. The first token of a prompt has no log-probability."""


class Info(msgspec.Struct, frozen=True):
    """The answer to /server_info."""

    version: Name = ""
    model_path: Name | None = None


class MetaInfo(msgspec.Struct, frozen=True):
    """The log-probabilities of a prompt from `logprob_start_len` on."""

    input_token_logprobs: list[TokenRecord] | None = None
    """The record of each token."""

    input_top_logprobs: list[list[TokenRecord] | None] | None = None
    """The records of the likeliest tokens at its place."""


class SglangGeneration(msgspec.Struct, frozen=True):
    """The answer to /generate."""

    meta_info: MetaInfo

    output_ids: list[Count] | None = None
    """The generated tokens."""


class Sglang(Server):
    """A running `sglang serve`, which gives log-probabilities of a prompt from a position on."""

    owner = "sglang"
    text_key = "text"
    detokenize: ClassVar[JsonObject] = {"skip_special_tokens": False}
    piece = 2048  # SGLang keeps the logits of all requested positions

    def describe(self, entry: ModelEntry) -> None:
        try:
            info = self.ask("/server_info", Info)
        except RopeconvError:  # its name before SGLang 0.5
            info = self.ask("/get_server_info", Info)
        self.runtime = f"SGLang {info.version}".strip()
        self.path = info.model_path or ""

    def generate(self, ids: Sequence[int], count: int) -> list[int]:
        self.refuse_longer(len(ids) + count)
        body = {
            "input_ids": list(ids),
            "sampling_params": {"max_new_tokens": count, "temperature": 0},
        }
        tokens = self.ask("/generate", SglangGeneration, body, for_prompt(count)).output_ids
        if tokens is None:
            raise self.missing_from_answer("output_ids")
        return tokens

    def log_probs(self, ids: Sequence[int], kept: Sequence[int], top: int) -> list[LogProbs]:
        """Return the log-probabilities of next tokens, as `Server.log_probs`, by one request.

        SGLang records with each token of a text what was predicted before it: the likeliest tokens,
        and the token itself.
        """
        # records from this token on are requested
        first_recorded = min(kept)
        count = len(ids) - first_recorded
        body = {
            "input_ids": list(ids),
            "sampling_params": {"max_new_tokens": 1, "temperature": 0},
            "return_logprob": True,
            "logprob_start_len": first_recorded,
            "top_logprobs_num": top,
        }
        limits = for_prompt(count * (top + 1))
        meta = self.ask("/generate", SglangGeneration, body, limits).meta_info
        likeliest = meta.input_top_logprobs or []
        actual = meta.input_token_logprobs or []
        if len(likeliest) != count or len(actual) != count:
            raise self.missing_from_answer("input_top_logprobs for every token")

        log_probs = []
        for index in kept:
            # what was predicted after token `index` is recorded with the next token
            next_index = index + 1
            place = next_index - first_recorded
            records = [*(likeliest[place] or ()), actual[place]]

            # a record is (log-probability, token, text), such as (-0.7, 464, "The"); a token may be
            # there twice, once without a number
            by_token = {}
            for log_prob, token, _ in records:
                if log_prob is not None:
                    by_token[token] = log_prob
            is_complete = all(token in by_token for _, token, _ in records)
            if not is_complete:
                raise self.missing_from_answer(f"log-probability for token {next_index}")
            log_probs.append(by_token)
        return log_probs
