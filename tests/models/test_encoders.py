"""Decoders whose config lets a token attend to those behind it: embedding models made of them."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoConfig, AutoModel

from ropeconv.inspection.inspection import ConfigInspection, inspect_source
from ropeconv.models.config import detect
from ropeconv.models.open import open_source
from ropeconv.models.purpose import checkpoint_purpose
from ropeconv.models.source import Source

SIZES: dict[str, Any] = {
    "hidden_size": 32,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "num_hidden_layers": 2,
    "head_dim": 16,
    "intermediate_size": 32,
    "vocab_size": 64,
    "max_position_embeddings": 256,
}
GEMMA3: dict[str, Any] = {
    **SIZES,
    "model_type": "gemma3_text",
    "layer_types": ["sliding_attention", "full_attention"],
    "sliding_window": 8,
}
LLAMA: dict[str, Any] = {**SIZES, "model_type": "llama"}
QWEN2: dict[str, Any] = {**SIZES, "model_type": "qwen2"}
BOTH: dict[str, Any] = {"use_bidirectional_attention": True}
CASES: dict[str, tuple[dict[str, Any], bool]] = {
    "EmbeddingGemma": ({**GEMMA3, **BOTH}, True),
    "Gemma 3": ({**GEMMA3, "use_bidirectional_attention": False}, False),
    "Gemma 1 that embeds": ({**SIZES, "model_type": "gemma", **BOTH}, True),
    "a Qwen 2 that embeds": ({**QWEN2, "is_causal": False}, True),
    "Qwen 2": ({**QWEN2, "is_causal": True}, False),
    "a Llama with a key that its class ignores": ({**LLAMA, **BOTH}, False),
    "Llama": (LLAMA, False),
}


def sees_later_tokens(config: dict[str, Any], folder: Path) -> bool:
    """Whether the first hidden state of the class of transformers depends on the last token."""
    (folder / "config.json").write_text(json.dumps(config))
    torch.manual_seed(0)
    model = AutoModel.from_config(AutoConfig.from_pretrained(folder)).eval()
    tokens = torch.arange(1, 7)[None]
    changed = tokens.clone()
    changed[0, -1] = 40
    with torch.no_grad():
        first = model(tokens).last_hidden_state[0, 0]
        second = model(changed).last_hidden_state[0, 0]
    return not torch.allclose(first, second, atol=1e-7)


@pytest.mark.parametrize("name", CASES)
def test_a_config_that_reads_in_both_directions_is_of_an_encoder(name: str, tmp_path: Path) -> None:
    config, is_encoder = CASES[name]
    assert sees_later_tokens(config, tmp_path) == is_encoder
    source = open_source(tmp_path / "config.json")
    assert isinstance(source, Source)
    inspection = inspect_source(source)
    assert isinstance(inspection, ConfigInspection)
    assert inspection.encoder == is_encoder
    assert (inspection.kv_cache is None) == is_encoder
    assert checkpoint_purpose(source) == ("embedding" if is_encoder else "text")


def test_a_text_model_that_writes_behind_images_stays_a_decoder() -> None:
    """PaliGemma reads its prompt in both directions, and writes from left to right."""
    text = {**SIZES, "model_type": "gemma", **BOTH}
    assert not detect({"model_type": "paligemma", "text_config": text}).encoder
    assert detect(text).encoder


def test_the_rope_of_an_encoder_is_that_of_its_family() -> None:
    plain = detect(GEMMA3)
    embedding = detect({**GEMMA3, **BOTH})
    assert (embedding.name, embedding.layers, embedding.weights) == (
        plain.name,
        plain.layers,
        plain.weights,
    )
