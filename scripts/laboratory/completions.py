"""Keys of published configs that the small configs of the lab lack, for runtimes that need them.

transformers writes the small configs, and some model files read keys that it does not write. None
of the added keys concerns RoPE. `complete` is the function to read first.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any

VLLM: dict[str, dict[str, Any]] = {
    "minimax_m2": {"scoring_func": "sigmoid", "use_qk_norm": True, "qk_norm_type": "per_layer"},
    "gemma2": {"hidden_act": "gelu_pytorch_tanh"},
    "deepseek_v2": {"moe_layer_freq": 1, "scoring_func": "softmax"},
    "deepseek_v3": {"moe_layer_freq": 1, "scoring_func": "sigmoid"},
    "qwen3_vl_moe_text": {"norm_topk_prob": True},
    "gemma4": {"vision_config": {}},
    "gemma4_unified": {"vision_config": {}},
    "afmoe": {"route_norm": True, "route_scale": 1.0, "n_group": 1, "topk_group": 1},
    "gte": {"position_embedding_type": "rope", "layer_norm_type": "layer_norm", "pack_qkv": True},
    "nomic_bert": {
        "activation_function": "swiglu",
        "mlp_fc1_bias": False,
        "mlp_fc2_bias": False,
        "qkv_proj_bias": False,
        "rotary_emb_scale_base": None,
        "rotary_emb_interleaved": False,
        "layer_norm_epsilon": 1e-12,
        "n_inner": 96,
        "n_embd": 128,
        "n_layer": 2,
        "n_head": 2,
    },
}
"""Keys that model files of vLLM read, by model type."""
TIED = ("gemma", "gemma2", "gemma3_text", "cohere", "cohere2")
"""Model types whose files in vLLM assert that the embeddings are tied."""
MLX: dict[str, dict[str, Any]] = {
    "apertus": {"mlp_bias": False, "post_norm": False, "qk_norm": True},
    "exaone4": {"rope_scaling": None},
    "glm4v_moe": {"use_qk_norm": False},
    "glm4_moe": {"rope_scaling": None},
    "minimax_m2": {"shared_intermediate_size": 0},
    "qwen3_vl_moe": {"norm_topk_prob": True},
}
"""Keys that model files of mlx-lm require, by model type."""
PERIODS = {
    "gemma3_text": ("sliding_window_pattern", 6),
    "cohere2": ("sliding_window_pattern", 4),
    "qwen3_next": ("full_attention_interval", 4),
    "qwen3_5_text": ("full_attention_interval", 4),
}
"""Where mlx-lm knows kinds of layers by a period and not by layer_types: its key and default."""


def complete(config: dict[str, Any], runtime: str) -> tuple[dict[str, Any], list[int]]:
    """Return a config as a runtime needs it, and the layers of the answer that are meant.

    Args:
        config: A config of the lab, which is not changed.
        runtime: The name of the runtime.

    Returns:
        The config, and for each layer of `config` the number of the layer in the answer that is of
        its kind. The numbers are empty where each layer is meant.
    """
    config = copy.deepcopy(config)
    if runtime == "vllm":
        for part in (config, config.get("text_config", {})):
            complete_for_vllm(part)
    if runtime in ("mlx-lm", "mlx-vlm"):
        return config, complete_for_mlx(config)
    return config, []


def complete_for_vllm(part: dict[str, Any]) -> None:
    """Add the keys that model files of vLLM read to a config or its text part."""
    model_type = part.get("model_type", "")
    for key, value in VLLM.get(model_type, {}).items():
        if part.get(key) is None:
            part[key] = value
    if model_type in TIED:
        part["tie_word_embeddings"] = True


def complete_for_mlx(config: dict[str, Any]) -> list[int]:
    """Add the keys that model files of mlx-lm and mlx-vlm read.

    Returns:
        The numbers that `complete` returns. They are there where the model gets kinds of layers
        from a period, which then are those of layer_types in the first period only.
    """
    part = config.get("text_config") or config
    model_type = part.get("model_type", config["model_type"])
    kinds: Sequence[str] = part.get("layer_types") or ()
    for key, value in MLX.get(config["model_type"], {}).items():
        part.setdefault(key, value)

    if model_type == "exaone4" and kinds:
        letters = {"sliding_attention": "L", "full_attention": "G"}
        if not isinstance(part.get("sliding_window_pattern"), str):
            part["sliding_window_pattern"] = "".join(letters.get(kind, "G") for kind in kinds)
    if model_type == "granitemoehybrid" and kinds:
        names = {"linear_attention": "mamba"}
        part["layer_types"] = [names.get(kind, "attention") for kind in kinds]

    key, period = PERIODS.get(model_type, ("", 0))
    if not key or key in part or "full_attention" not in kinds:
        return []
    by_default = [(number + 1) % period == 0 for number in range(len(kinds))]
    if by_default == [kind == "full_attention" for kind in kinds]:
        return []
    part[key] = list(kinds).index("full_attention") + 1
    return [list(kinds).index(kind) for kind in kinds]
