"""Ask vLLM what it computes for an EAGLE-3 head beside its target.

`scripts/laboratory/drafts.py` runs it. A question also has "target", the config of the target. The
answer also has "rows", the positions in the table of cos and sin of the head, and "served", the
tokens that vLLM serves with the pair.
"""

from __future__ import annotations

import json
import tempfile
from pathlib import Path
from typing import Any

import ask_vllm
import torch
from vllm.config import ParallelConfig, SpeculativeConfig, VllmConfig, set_current_vllm_config
from vllm.model_executor.model_loader.utils import initialize_model

VERSION = ask_vllm.VERSION


def ask(config: dict[str, Any], question: dict[str, Any]) -> dict[str, Any]:
    """Return what vLLM computes from the config of an EAGLE-3 head, which drafts for a model.

    Args:
        config: The config.json of the head.
        question: The config of its target model, the trained length and the context.

    Returns:
        The keys of an answer, and rows: the positions of its table; served: the longest prompt.
    """
    with tempfile.TemporaryDirectory() as folder:
        places = []
        for name, content in (("target", question["target"]), ("head", config)):
            place = Path(folder, name)
            place.mkdir()
            (place / "config.json").write_text(json.dumps(content), encoding="utf-8")
            places.append(str(place))
        whole = ask_vllm.model_config(places[0], question["context"], {"dtype": "float32"})
        pair = SpeculativeConfig(
            model=places[1],
            method="eagle3",
            num_speculative_tokens=2,
            target_model_config=whole,
            target_parallel_config=ParallelConfig(),
        )
        together = VllmConfig(model_config=whole, speculative_config=pair)
        with set_current_vllm_config(together):
            ask_vllm.start_world(experts=False)
            with torch.device("meta"):
                draft = initialize_model(vllm_config=together, model_config=pair.draft_model_config)
            layers = ask_vllm.layers_of(draft)
            attention = ask_vllm.attention_of(layers[0])
            # of a token and of the target, side by side
            attention.hidden_size = 2 * config["hidden_size"]
            answer = ask_vllm.read_model(layers, pair.draft_model_config, question)
            rows = len(attention.rotary_emb.cos_sin_cache)
            return {**answer, "rows": rows, "served": together.model_config.max_model_len}
