"""The layers that have a window are those to which transformers gives one."""

from __future__ import annotations

from typing import Any

import pytest

from ropeconv.families.config import detect, geometry

SWITCH = {"use_sliding_window": True, "sliding_window": 8}


@pytest.mark.parametrize(
    ("model_type", "more"),
    [
        ("qwen2", {**SWITCH, "max_window_layers": 3}), ("qwen2_moe", SWITCH), ("gemma2", {"sliding_window": 8}),
        ("gemma3_text", {"sliding_window": 8}), ("cohere2", {"sliding_window": 8}), ("olmo3", {"sliding_window": 8}),
    ],
)  # fmt: skip
def test_windows_of_a_config_without_layer_types(model_type: str, more: dict[str, Any]) -> None:
    from transformers import AutoConfig

    config = {"model_type": model_type, "num_hidden_layers": 8, "max_position_embeddings": 64, **more}
    names = AutoConfig.for_model(**config).layer_types
    sizes = geometry({**config, "hidden_size": 128, "num_attention_heads": 2}, detect(config))
    assert sizes.windows == tuple(8 if name == "sliding_attention" else None for name in names)
    assert set(sizes.windows) == {8, None}
