"""Tiny checkpoints of vision models, made by transformers, as llama.cpp's own converter reads them."""

import json
from pathlib import Path
from typing import Any

from .llamacpp import lively, tokenizer_json
from .models import TRAINED, VOCABULARY
from .stored import stored

TEXT: dict[str, Any] = {
    "vocab_size": VOCABULARY,
    "hidden_size": 128,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "max_position_embeddings": TRAINED,
    "initializer_range": 0.35,
    "tie_word_embeddings": False,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
SECTIONS = {"rope_type": "default", "rope_theta": 10000.0, "mrope_section": [11, 11, 10]}
INTERLEAVED = SECTIONS | {"mrope_interleaved": True}
# with fewer blocks, the converter cannot map mlp.2 of the merger
EYES: dict[str, Any] = {
    "depth": 3,
    "hidden_size": 32,
    "intermediate_size": 32,
    "num_heads": 2,
    "patch_size": 14,
}
TOKENS = {  # behind the vocabulary, so that no random token stands for an image
    "image_token_id": VOCABULARY,
    "video_token_id": VOCABULARY + 1,
    "vision_start_token_id": VOCABULARY + 2,
    "vision_end_token_id": VOCABULARY + 3,
}
EXPERTS = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 32}
MODELS: dict[str, dict[str, Any]] = {
    "qwen2_vl": {
        "text": {"rope_parameters": SECTIONS},
        "vision": {"depth": 3, "embed_dim": 32, "hidden_size": 128, "num_heads": 2},
    },
    "qwen2_5_vl": {
        "text": {"rope_parameters": SECTIONS},
        "vision": EYES | {"out_hidden_size": 128, "fullatt_block_indexes": [1]},
    },
    # llama.cpp adds deepstack features behind every layer but the last, of which it keeps few rows
    "qwen3_vl": {
        "text": {"num_hidden_layers": 3, "head_dim": 64, "rope_parameters": INTERLEAVED},
        "vision": EYES | {"out_hidden_size": 128, "deepstack_visual_indexes": [0, 1]},
    },
    "qwen3_vl_moe": {
        "text": {
            "num_hidden_layers": 3,
            "head_dim": 64,
            "rope_parameters": INTERLEAVED,
            **EXPERTS,
        },
        "vision": EYES | {"out_hidden_size": 128, "deepstack_visual_indexes": [0, 1]},
    },
    "paddleocr_vl": {
        "text": {"head_dim": 64, "rope_parameters": SECTIONS | {"rope_theta": 500000.0}},
        "vision": {
            "hidden_size": 32,
            "intermediate_size": 32,
            "num_hidden_layers": 1,
            "num_attention_heads": 2,
            "image_size": 28,
        },
    },
}
"""The settings of each model beside TEXT and TOKENS, by model type."""


def transpose_experts(folder: Path) -> None:
    """Stores the experts of Qwen 3 VL MoE as published, [experts, columns, rows].

    transformers reads both orders, and saves the other one.
    """
    import safetensors.torch

    tensors = safetensors.torch.load_file(folder / "model.safetensors")
    for name in tensors:
        if ".experts." in name:
            tensors[name] = tensors[name].transpose(1, 2).contiguous()
    safetensors.torch.save_file(tensors, folder / "model.safetensors", {"format": "pt"})


def vision_checkpoint(model_type: str, folder: Path) -> Path:
    """A checkpoint with random weights, a tokenizer and the settings of its image processor."""

    def write(place: Path) -> None:
        import torch
        from transformers import AutoConfig, AutoModelForImageTextToText

        torch.manual_seed(0)
        parts = MODELS[model_type]
        config = AutoConfig.for_model(
            model_type, text_config=TEXT | parts["text"], vision_config=parts["vision"], **TOKENS
        )
        model = AutoModelForImageTextToText.from_config(config).to(torch.float32)
        model.save_pretrained(place)
        lively(place)
        if model_type == "qwen3_vl_moe":
            transpose_experts(place)

        (place / "tokenizer.json").write_text(tokenizer_json())
        special = {
            "bos_token": "<s>",
            "eos_token": "</s>",
            "tokenizer_class": "PreTrainedTokenizerFast",
        }
        (place / "tokenizer_config.json").write_text(json.dumps(special))
        images = {"image_mean": [0.5, 0.5, 0.5], "image_std": [0.5, 0.5, 0.5]}
        images |= {"min_pixels": 3136, "max_pixels": 12845056}
        (place / "preprocessor_config.json").write_text(json.dumps(images))

    return stored(write, folder, (__file__,), "vision", model_type)
