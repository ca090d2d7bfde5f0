"""A tiny Llama as transformers would save it, made with numpy, so that tests without torch have a
checkpoint.
"""

import json
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import save_file

# what transformers saves of a LlamaConfig whose keys are not given
CONFIG: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "attention_bias": False,
    "attention_dropout": 0.0,
    "dtype": "float32",
    "hidden_act": "silu",
    "mlp_bias": False,
    "model_type": "llama",
    "pretraining_tp": 1,
    "rms_norm_eps": 1e-06,
    "tie_word_embeddings": False,
    "transformers_version": "5.0.0",
    "use_cache": True,
    "rope_theta": 10000.0,
}


def write_llama(folder: Path, settings: dict[str, Any], seed: int = 0) -> None:
    """Write config.json, generation_config.json and model.safetensors, float32.

    Args:
        folder: Where the files go.
        settings: Keys of config.json.
        seed: Of the random weights.
    """
    config = {**CONFIG, **settings}
    if "rope_parameters" in settings:
        config.pop("rope_theta", None)
    generation = {
        name: config[name]
        for name in ("bos_token_id", "eos_token_id", "pad_token_id")
        if name in config
    }
    (folder / "config.json").write_text(json.dumps(config, indent=2) + "\n")
    (folder / "generation_config.json").write_text(
        json.dumps({**generation, "use_cache": True}, indent=2) + "\n"
    )
    save_file(
        weights(config, np.random.default_rng(seed)), folder / "model.safetensors", {"format": "pt"}
    )


def weights(config: dict[str, Any], generator: np.random.Generator) -> dict[str, np.ndarray]:
    """Gaussian matrices, norms of ones and biases of zeros, as the class begins with."""
    hidden, inner, vocabulary = (
        config[name] for name in ("hidden_size", "intermediate_size", "vocab_size")
    )
    head = config.get("head_dim", hidden // config["num_attention_heads"])
    queries, keys = (config[name] * head for name in ("num_attention_heads", "num_key_value_heads"))
    shapes = {
        "self_attn.q_proj": (queries, hidden),
        "self_attn.k_proj": (keys, hidden),
        "self_attn.v_proj": (keys, hidden),
        "self_attn.o_proj": (hidden, queries),
        "mlp.gate_proj": (inner, hidden),
        "mlp.up_proj": (inner, hidden),
        "mlp.down_proj": (hidden, inner),
    }

    def matrix(*shape: int) -> np.ndarray:
        return (config["initializer_range"] * generator.standard_normal(shape)).astype(np.float32)

    arrays = {
        "model.embed_tokens.weight": matrix(vocabulary, hidden),
        "model.norm.weight": np.ones(hidden, np.float32),
    }
    arrays["model.embed_tokens.weight"][config["pad_token_id"]] = 0
    for layer in range(config["num_hidden_layers"]):
        prefix = f"model.layers.{layer}."
        for name in ("input_layernorm", "post_attention_layernorm"):
            arrays[f"{prefix}{name}.weight"] = np.ones(hidden, np.float32)
        for name, shape in shapes.items():
            arrays[f"{prefix}{name}.weight"] = matrix(*shape)
            if config["attention_bias" if "attn" in name else "mlp_bias"]:
                arrays[f"{prefix}{name}.bias"] = np.zeros(shape[0], np.float32)
    if not config["tie_word_embeddings"]:
        arrays["lm_head.weight"] = matrix(vocabulary, hidden)
    return arrays
