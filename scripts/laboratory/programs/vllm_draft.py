"""Asks vLLM what it computes for an EAGLE-3 head beside its target; `scripts/laboratory/drafts.py`
runs it.

A question also has "target", the config of the target. The answer also has "rows", the positions in
the table of cos and sin of the head, and "served", the tokens that vLLM serves with the pair.
"""

from __future__ import annotations

from typing import Any

import protocol
import vllm_program
import vllm_stubs

import torch  # isort: skip
from vllm.config import (
    ModelConfig,
    ParallelConfig,
    SpeculativeConfig,
    VllmConfig,
    set_current_vllm_config,
)  # isort: skip

from vllm.model_executor.model_loader.utils import initialize_model  # isort: skip


def ask(config: dict[str, Any], question: dict[str, Any]) -> protocol.Answer:
    """The answer of vLLM to a question about a head."""
    target = question["target"]
    context = question["context"]
    with vllm_stubs.folder_of(target) as model, vllm_stubs.folder_of(config) as head:
        whole = ModelConfig(
            model=model,
            tokenizer=model,
            max_model_len=context,
            dtype="float32",
            skip_tokenizer_init=True,
            enforce_eager=True,
        )
        pair = SpeculativeConfig(
            model=head,
            method="eagle3",
            num_speculative_tokens=2,
            target_model_config=whole,
            target_parallel_config=ParallelConfig(),
        )
        together = VllmConfig(model_config=whole, speculative_config=pair)
        with set_current_vllm_config(together):
            vllm_stubs.one_process(False)
            with torch.device("meta"):
                draft = initialize_model(vllm_config=together, model_config=pair.draft_model_config)
            attention = vllm_program._attention(vllm_program._layers(draft)[0])
            attention.hidden_size = (
                2 * config["hidden_size"]
            )  # of a token and of the target, side by side
            answer = vllm_program._read(draft, pair.draft_model_config, question)
            rows = len(attention.rotary_emb.cos_sin_cache)
            return {**answer, "rows": rows, "served": together.model_config.max_model_len}


if __name__ == "__main__":
    protocol.main(ask)
