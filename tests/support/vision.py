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
BLOCK: dict[str, Any] = {
    "hidden_size": 32,
    "intermediate_size": 32,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
}
TOKENS = {  # behind the vocabulary, so that no random token stands for an image
    "image_token_id": VOCABULARY,
    "video_token_id": VOCABULARY + 1,
    "vision_start_token_id": VOCABULARY + 2,
    "vision_end_token_id": VOCABULARY + 3,
}
EXPERTS = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 32}


def letters(number: int) -> str:
    """A number as Chameleon writes it in names of tokens: A for 0, B for 1."""
    return "".join(chr(ord("A") + int(digit)) for digit in str(number))


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
        "vision": BLOCK | {"image_size": 28},
    },
    "hunyuan_vl": {
        "text": {"head_dim": 64, "rope_parameters": SECTIONS | {"mrope_section": [8, 8, 8, 8]}},
        "vision": BLOCK | {"out_hidden_size": 128, "text_hidden_size": 128, "max_image_size": 64},
        "whole": {
            "image_start_token_id": VOCABULARY + 1,
            "image_end_token_id": VOCABULARY + 2,
            "image_newline_token_id": VOCABULARY + 3,
        },
    },
    # its indexer has a head for each head of keys (minimax-m3.cpp), and finds all 16 blocks that
    # the compared lengths have: without flash attention, llama.cpp attends to every block
    "minimax_m3_vl": {
        "text": {
            "num_hidden_layers": 3,
            "num_key_value_heads": 2,
            "head_dim": 64,
            "rotary_dim": 32,
            "rope_parameters": {
                "rope_type": "default",
                "rope_theta": 10000.0,
                "partial_rotary_factor": 0.5,
            },
            "mlp_layer_types": ["dense", "sparse", "sparse"],
            "dense_intermediate_size": 96,
            "shared_intermediate_size": 32,
            "intermediate_size": 32,
            "num_local_experts": 8,
            "num_experts_per_tok": 2,
            "layer_types": ["full_attention", "minimax_m3_sparse", "minimax_m3_sparse"],
            "index_n_heads": 2,
            "index_head_dim": 64,
            "index_block_size": 16,
            "index_topk_blocks": 16,
        },
        "vision": BLOCK,
        "whole": {
            "projector_hidden_size": 32,
            "image_token_index": VOCABULARY,
            "video_token_index": VOCABULARY + 1,
        },
        "architecture": "MiniMaxM3SparseForConditionalGeneration",
        "published": {
            "n_shared_experts": 1,
            "scoring_func": "sigmoid",
            "moe_layer_freq": [0, 1, 1],
            "sparse_attention_config": {
                "sparse_num_index_heads": 2,
                "sparse_index_dim": 64,
                "sparse_topk_blocks": 16,
                "sparse_block_size": 16,
                "sparse_local_block": 1,
                "sparse_attention_freq": [0, 1, 1],
                "use_sparse_attention": True,
            },
        },
    },
    # its language model is that of DeepSeek-OCR, whose class the converter has
    "deepseek_ocr2": {
        "text": {
            "num_key_value_heads": 2,
            "n_routed_experts": 4,
            "n_shared_experts": 1,
            "num_experts_per_tok": 2,
            "moe_intermediate_size": 32,
            "mlp_layer_types": ["dense", "sparse"],
            "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0},
        },
        "vision": {
            "sam_config": {
                "hidden_size": 32,
                "output_channels": 16,
                "num_hidden_layers": 1,
                "num_attention_heads": 2,
                "image_size": 64,
                "patch_size": 16,
                "mlp_dim": 32,
                "global_attn_indexes": [0],
                "downsample_channels": [16, 32],
            },
            "encoder_config": BLOCK | {"num_key_value_heads": 1},
        },
        "architecture": "DeepseekOCRForCausalLM",
        "published": {"qk_rope_head_dim": 64, "first_k_dense_replace": 1, "norm_topk_prob": False},
    },
    # llama.cpp counts the tokens 4 to 8195 as parts of images
    "chameleon": {
        "text": {"vocab_size": 8300, "num_key_value_heads": 2},
        "whole": {
            "vocabulary_map": {f"IMGIMG{letters(token)}Z": token for token in range(4, 8196)}
            | {"<image>": 8200},
            "vq_config": {
                "embed_dim": 8,
                "num_embeddings": 8192,
                "latent_channels": 8,
                "resolution": 32,
                "base_channels": 32,
                "channel_multiplier": [1, 1],
                "num_res_blocks": 1,
            },
        },
    },
}
"""The settings of each model, by model type.

`text` and `vision` are those of its parts, beside TEXT; a model without `vision` has no parts.
`whole` has further ones, beside TOKENS. `architecture` and `published` are the class, and keys of
the language model, that a published config has and transformers does not write.
"""


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


def share_norms(folder: Path) -> None:
    """Gives all heads of a layer the norm of the first, as in Chameleon 7B, which has one of them."""
    import safetensors.torch

    tensors = safetensors.torch.load_file(folder / "model.safetensors")
    for name, tensor in tensors.items():
        if ".q_norm." in name or ".k_norm." in name:
            tensors[name] = tensor[:1].expand_as(tensor).contiguous()
    safetensors.torch.save_file(tensors, folder / "model.safetensors", {"format": "pt"})


def settings_of(model_type: str) -> dict[str, Any]:
    """The keys of a config but its model type."""
    parts = MODELS[model_type]
    text = TEXT | parts["text"]
    whole = parts.get("whole", {})
    if "vision" not in parts:
        return {**text, **whole}
    return {"text_config": text, "vision_config": parts["vision"], **TOKENS, **whole}


def add_published_keys(folder: Path, model_type: str) -> None:
    """Writes what a published config has beside the keys that transformers writes."""
    config = json.loads((folder / "config.json").read_text())
    parts = MODELS[model_type]
    if "architecture" in parts:
        config["architectures"] = [parts["architecture"]]
    if "published" in parts:
        config["text_config"] |= parts["published"]
    (folder / "config.json").write_text(json.dumps(config, indent=2) + "\n")


def vision_checkpoint(model_type: str, folder: Path) -> Path:
    """A checkpoint with random weights, a tokenizer and the settings of its image processor."""

    def write(place: Path) -> None:
        import torch
        from transformers import AutoConfig, AutoModelForImageTextToText

        torch.manual_seed(0)
        config = AutoConfig.for_model(model_type, **settings_of(model_type))
        model = AutoModelForImageTextToText.from_config(config).to(torch.float32)
        model.save_pretrained(place)
        lively(place)
        if model_type == "qwen3_vl_moe":
            transpose_experts(place)
        if model_type == "chameleon":
            share_norms(place)
        add_published_keys(place, model_type)

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
