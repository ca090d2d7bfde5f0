"""Asks vLLM what it computes with `--hf-overrides`; `scripts/laboratory/overrides.py` runs it.

A question also has "overrides", the JSON; the answer also has "served", the tokens that vLLM
serves.

"""

from __future__ import annotations

from typing import Any

import protocol
import vllm_program

from vllm.config import ModelConfig, VllmConfig  # isort: skip


def ask(config: dict[str, Any], question: dict[str, Any]) -> protocol.Answer:
    """The answer of vLLM to a question about a config with overrides."""
    loaded: list[ModelConfig] = []

    def configured(folder: str, context: int) -> VllmConfig:
        loaded.append(
            ModelConfig(
                model=folder,
                tokenizer=folder,
                max_model_len=context,
                dtype="float32",
                skip_tokenizer_init=True,
                enforce_eager=True,
                hf_overrides=question["overrides"],
            )
        )
        return VllmConfig(model_config=loaded[0])

    vllm_program._config = configured
    answer = vllm_program.ask(config, question)
    return {**answer, "served": loaded[0].max_model_len}


if __name__ == "__main__":
    protocol.main(ask)
