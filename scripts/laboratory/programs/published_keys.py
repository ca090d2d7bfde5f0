"""Keys of published configs that small configs, written by transformers, lack."""

from __future__ import annotations

from typing import Any


def complete(config: dict[str, Any]) -> None:
    """Add to a config what published ones have, and configs that transformers wrote have not.

    Some runtimes do not load a model without these keys; they have nothing to do with positions.

    Args:
        config: The config of a model or of its text model, which is changed.
    """
    model_type = config.get("model_type")
    layers = config.get("layer_types") or []
    if model_type == "gemma4" and config.get("vision_config") is None:
        config["vision_config"] = {}
    if model_type == "gemma2":
        config.setdefault("hidden_act", config.get("hidden_activation", "gelu_pytorch_tanh"))
    if model_type == "minimax_m2":
        config.setdefault("scoring_func", "sigmoid")
    if model_type == "deepseek_v2":
        config.setdefault("moe_layer_freq", 1)
        config.setdefault("scoring_func", "softmax")
        config.setdefault("topk_method", "greedy")
    if model_type == "deepseek_v3":
        config.setdefault("moe_layer_freq", 1)
        config.setdefault("scoring_func", "sigmoid")
        config.setdefault("topk_method", "noaux_tc")
    if model_type == "glm4_moe_lite":
        config.setdefault("topk_method", "noaux_tc")
    if model_type == "qwen3_vl_moe_text":
        config.setdefault("norm_topk_prob", True)
    if model_type == "qwen3_5_moe_text":
        config.setdefault("attn_output_gate", True)
    if model_type == "qwen2_vl":
        vision = config["vision_config"]
        vision.setdefault("in_chans", vision.get("in_channels", 3))

    # the pattern of layers, from the place of the first one without a window
    if "full_attention" not in layers:
        return
    windows = layers.index("full_attention")
    if model_type in ("qwen3_next", "qwen3_5_text"):
        config.setdefault("full_attention_interval", windows + 1)
    if model_type == "exaone4" and isinstance(config.get("sliding_window_pattern"), int):
        config["sliding_window_pattern"] = "L" * windows + "G"
