"""From Meta's params.json to config.json. The version of Llama and its context follow from other settings in it."""

from __future__ import annotations

from typing import Any

from ...errors import BadSource
from ...families.config import Config


def hf_config(params: dict[str, Any], vocab_size: int, dtype: str) -> Config:
    """A `LlamaForCausalLM` config for Meta's parameters.

    params: params.json. vocab_size: number of tokens of the tokenizer, since params.json of Llama 2 has -1. dtype: of
    the weights, as torch names it. Raises BadSource for missing or odd values.
    """
    try:
        dim, layers, heads = (int(params[key]) for key in ("dim", "n_layers", "n_heads"))
    except (KeyError, TypeError, ValueError):
        raise BadSource(
            "params.json lacks dim, n_layers or n_heads as numbers; download the checkpoint again"
        ) from None
    if dim < 1 or layers < 1 or heads < 1 or dim % heads:
        raise BadSource(f"params.json has dim {dim} and n_heads {heads}, which do not divide; download it again")
    theta = float(params.get("rope_theta", 10000.0))
    version = llama_version(params)
    config: Config = {
        "architectures": ["LlamaForCausalLM"],
        "attention_bias": False,
        "bos_token_id": 128000 if version >= 3 else 1,
        "eos_token_id": 128001 if version >= 3 else 2,
        "head_dim": dim // heads,
        "hidden_act": "silu",
        "hidden_size": dim,
        "initializer_range": 0.02,
        "intermediate_size": intermediate_size(params),
        "max_position_embeddings": trained_context(params),
        "model_type": "llama",
        "num_attention_heads": heads,
        "num_hidden_layers": layers,
        "num_key_value_heads": int(params.get("n_kv_heads") or heads),
        "rms_norm_eps": float(params.get("norm_eps", 1e-5)),
        "rope_scaling": None,
        "rope_theta": theta,
        "tie_word_embeddings": False,
        "torch_dtype": dtype,
        "use_cache": True,
        "vocab_size": vocab_size,
    }
    if params.get("use_scaled_rope"):
        config["max_position_embeddings"] = 131072
        config["rope_scaling"] = {
            "factor": float(params.get("rope_scaling_factor", 8.0)),
            "high_freq_factor": 4.0,
            "low_freq_factor": 1.0,
            "original_max_position_embeddings": 8192,
            "rope_type": "llama3",
        }
    return config


def llama_version(params: dict[str, Any]) -> float:
    """The version of Llama: 1, 2, 2.5 for Code Llama, 3 or 3.1, by the settings of params.json that differ."""
    if params.get("use_scaled_rope"):
        return 3.1
    theta = float(params.get("rope_theta", 10000.0))
    if theta == 500000.0:
        return 3
    if theta == 1000000.0:
        return 2.5
    return 1 if float(params.get("norm_eps", 1e-5)) == 1e-6 else 2


def trained_context(params: dict[str, Any]) -> int:
    """Tokens that the release was trained for, before RoPE scaling."""
    return {1: 2048, 2: 4096, 2.5: 16384, 3: 8192, 3.1: 8192}[llama_version(params)]


def intermediate_size(params: dict[str, Any]) -> int:
    """Width of the feed-forward layers: 8/3 dim, times ffn_dim_multiplier, rounded up to a multiple of multiple_of."""
    hidden = int(8 * int(params["dim"]) / 3)
    hidden = int(float(params.get("ffn_dim_multiplier") or 1) * hidden)
    multiple = int(params.get("multiple_of", 256))
    return multiple * -(-hidden // multiple)
