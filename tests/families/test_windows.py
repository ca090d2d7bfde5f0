"""The layers that have a window are those to which transformers gives one."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from ropeconv.errors import BadSource
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


def test_a_saved_exaone_without_a_window_has_an_interval_of_zero(tmp_path: Path) -> None:
    from transformers import AutoConfig

    names = ["full_attention"] * 5
    config = AutoConfig.for_model("exaone4", sliding_window=None, num_hidden_layers=5, layer_types=names)
    config.save_pretrained(tmp_path)
    saved = json.loads((tmp_path / "config.json").read_text())
    assert saved["sliding_window_pattern"] == 0
    assert list(geometry(saved, detect(saved)).layers) == ["global"] * 5
    with pytest.raises(BadSource, match="sliding_window_pattern = 0"):
        geometry({**saved, "sliding_window": 64, "layer_types": None}, detect(saved))
