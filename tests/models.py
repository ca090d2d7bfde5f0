"""Tiny checkpoints of every family, made by transformers itself: 2 layers or as many as show every kind of layer."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

TRAINED = 64
VOCABULARY = 320
COMMON: dict[str, Any] = {
    "vocab_size": VOCABULARY,
    "hidden_size": 128,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "head_dim": 64,
    "max_position_embeddings": TRAINED,
    "initializer_range": 0.35,
    "tie_word_embeddings": False,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": 0,
}
EXPERTS: dict[str, Any] = {
    "num_experts": 4,
    "num_local_experts": 4,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 32,
}
PLAIN: dict[str, Any] = {"rope_type": "default", "rope_theta": 10000.0}
MLA: dict[str, Any] = {
    "qk_rope_head_dim": 64, "qk_nope_head_dim": 16, "v_head_dim": 32, "kv_lora_rank": 32, "q_lora_rank": 48,
    "n_routed_experts": 4, "num_experts_per_tok": 2, "n_group": 1, "topk_group": 1, "first_k_dense_replace": 1,
    "moe_intermediate_size": 32, "num_key_value_heads": 2,
}  # fmt: skip

CANCELS = {"hunyuan_v1_dense"}  # normalise behind the rotation, so an attention factor has no effect

# model_type -> what differs from COMMON; None removes a key
FAMILIES: dict[str, dict[str, Any]] = {
    "llama": {},
    "mistral": {"sliding_window": None},
    "mixtral": {**EXPERTS, "num_experts": None},
    "ministral3": {
        "rope_parameters": {
            **PLAIN, "original_max_position_embeddings": TRAINED, "llama_4_scaling_beta": 0.1,
        },
    },
    "qwen2": {},
    "qwen2_moe": {**EXPERTS, "shared_expert_intermediate_size": 32},
    "qwen3": {},
    "qwen3_moe": EXPERTS,
    "gemma": {},
    "gemma2": {"query_pre_attn_scalar": 64, "sliding_window": 32},
    "gemma3_text": {
        "query_pre_attn_scalar": 64, "sliding_window": 32, "num_hidden_layers": 3,
        "layer_types": ["sliding_attention", "full_attention", "full_attention"],
    },
    "phi": {"partial_rotary_factor": 0.5},
    "phi3": {},
    "stablelm": {"partial_rotary_factor": 0.5, "qk_layernorm": True},
    "gpt_neox": {"rotary_pct": 0.5},
    "falcon": {"new_decoder_architecture": True, "alibi": False, "head_dim": None},
    "olmo2": {},
    "olmo3": {
        "num_hidden_layers": 3, "sliding_window": 32,
        "layer_types": ["sliding_attention", "full_attention", "full_attention"],
    },
    "cohere": {"use_qk_norm": True},
    "cohere2": {
        "sliding_window": 4096, "num_hidden_layers": 3,
        "layer_types": ["sliding_attention", "sliding_attention", "full_attention"],
    },
    "deepseek_v2": {**MLA, "head_dim": None},
    "deepseek_v3": {**MLA, "head_dim": None},
    "gpt_oss": {**EXPERTS, "sliding_window": 4096, "rope_parameters": PLAIN},
    "smollm3": {"num_hidden_layers": 4},
    "glm4": {"partial_rotary_factor": 0.5},
    "granite": {},
    "starcoder2": {},
    "exaone4": {
        "sliding_window": 4096, "num_hidden_layers": 3,
        "layer_types": ["sliding_attention", "sliding_attention", "full_attention"],
    },
    "apertus": {"rope_parameters": PLAIN},
    "qwen3_5_text": {
        "num_hidden_layers": 2, "layer_types": ["linear_attention", "full_attention"], "partial_rotary_factor": 0.5,
        "linear_num_key_heads": 2, "linear_num_value_heads": 2, "linear_key_head_dim": 32, "linear_value_head_dim": 32,
    },
    "minimax_m2": {**EXPERTS, "rotary_dim": 32},
    "glm": {"partial_rotary_factor": 0.5},
    "glm4_moe": {**EXPERTS, "partial_rotary_factor": 0.5, "n_routed_experts": 4, "first_k_dense_replace": 1},
    "olmo": {},
    "olmoe": EXPERTS,
    "nemotron": {"partial_rotary_factor": 0.5},
    "persimmon": {"partial_rotary_factor": 0.5},
    "ernie4_5": {},
    "arcee": {},
    "seed_oss": {},
    "granitemoe": EXPERTS,
    "hunyuan_v1_dense": {},
    "ernie4_5_moe": {**EXPERTS, "moe_num_experts": 4, "moe_k": 2},
    "qwen3_next": {
        **EXPERTS, "num_hidden_layers": 2, "layer_types": ["linear_attention", "full_attention"],
        "partial_rotary_factor": 0.5, "linear_num_key_heads": 2, "linear_num_value_heads": 2,
        "linear_key_head_dim": 32, "linear_value_head_dim": 32, "shared_expert_intermediate_size": 32,
    },
    "llama4_text": {
        "num_hidden_layers": 4, "num_local_experts": 2, "intermediate_size_mlp": 64, "use_qk_norm": False,
        "attention_chunk_size": 4096, "num_experts_per_tok": 1,
    },
}  # fmt: skip


def make(model_type: str, folder: Path, seed: int = 0, **changes: Any) -> Path:
    """A checkpoint of that family in `folder`, float32, with a config in the schema of its time."""
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    settings = {**COMMON, **FAMILIES[model_type], **changes}
    settings = {key: value for key, value in settings.items() if value is not None or key == "sliding_window"}
    torch.manual_seed(seed)
    config = AutoConfig.for_model(model_type, **settings)
    model = AutoModelForCausalLM.from_config(config).to(torch.float32)
    model.save_pretrained(folder)
    published(folder, model_type, settings)
    return folder


def published(folder: Path, model_type: str, settings: dict[str, Any]) -> None:
    """Rewrites the saved config as publishers write it: rope_theta at the top, and only the keys that were given."""
    saved = json.loads((folder / "config.json").read_text())
    rope = saved.pop("rope_parameters", None) or {}
    saved.update({key: value for key, value in settings.items() if value is not None})
    saved["model_type"] = model_type
    if "rope_parameters" not in settings:
        saved["rope_theta"] = rope.get("rope_theta", rope.get("full_attention", {}).get("rope_theta", 10000.0))
    (folder / "config.json").write_text(json.dumps(saved, indent=2) + "\n")
