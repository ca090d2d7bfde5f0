"""SGLang: log-probabilities of the prompt through its own endpoint, which names tokens by id.

https://docs.sglang.io/basic_usage/sampling_params.html (`return_logprob`, `top_logprobs_num`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ...errors import RopeconvError
from ..engine import LogProbs, Progress
from .protocol import TOP, Served, Server, misread


class Sglang(Server):
    """A running `sglang.launch_server`, asked for the log-probabilities of a prompt in one request."""

    owner = "sglang"
    unchecked = ("which precision and attention kernel it runs", "tokens past the likeliest that it names")

    def describe(self, entry: dict[str, Any]) -> Served:
        try:
            known = self.get("/server_info")
        except RopeconvError:  # its name before SGLang 0.5
            known = self.get("/get_server_info")
        return Served(
            entry["id"],
            f"SGLang {known.get('version', '')}".strip(),
            int(entry.get("max_model_len") or 0),
            str(known.get("model_path") or ""),
        )

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
        said = self.post("/generate", body).get("meta_info", {})
        rows, own = said.get("input_top_logprobs"), said.get("input_token_logprobs")
        if not isinstance(rows, list) or not isinstance(own, list) or len(rows) != len(ids) - first:
            raise misread("SGLang", "input_top_logprobs for every token")
        (progress or Progress()).advance(len(ids))
        found = []
        for k in kept:
            row, seen = rows[k + 1 - first], own[k + 1 - first]
            found.append({int(entry[1]): float(entry[0]) for entry in [*row, seen]})
        return found
