"""Keys of published configs that small configs, written by transformers, lack."""

from __future__ import annotations

from typing import Any


def complete(config: dict[str, Any]) -> None:
    """Adds what published configs of a family have and configs that transformers wrote itself have
    not.

    Some runtimes do not load a model without these; they have nothing to do with positions.
    """
    kind = config.get("model_type")
    layers = config.get("layer_types") or []
    if kind == "gemma4" and config.get("vision_config") is None:
        config["vision_config"] = {}
    if kind == "gemma2":
        config.setdefault("hidden_act", config.get("hidden_activation", "gelu_pytorch_tanh"))
    if kind == "minimax_m2":
        config.setdefault("scoring_func", "sigmoid")
    if kind in ("deepseek_v2", "deepseek_v3"):
        newer = kind == "deepseek_v3"
        config.setdefault("moe_layer_freq", 1)
        config.setdefault("scoring_func", "sigmoid" if newer else "softmax")
        config.setdefault("topk_method", "noaux_tc" if newer else "greedy")
    if kind == "glm4_moe_lite":
        config.setdefault("topk_method", "noaux_tc")
    if kind == "qwen3_vl_moe_text":
        config.setdefault("norm_topk_prob", True)
    if kind == "qwen3_5_moe_text":
        config.setdefault("attn_output_gate", True)
    if kind in ("qwen3_next", "qwen3_5_text") and "full_attention" in layers:
        config.setdefault("full_attention_interval", layers.index("full_attention") + 1)
    if (
        kind == "exaone4"
        and isinstance(config.get("sliding_window_pattern"), int)
        and "full_attention" in layers
    ):
        config["sliding_window_pattern"] = "L" * layers.index("full_attention") + "G"
    if kind == "qwen2_vl":
        config["vision_config"].setdefault(
            "in_chans", config["vision_config"].get("in_channels", 3)
        )
