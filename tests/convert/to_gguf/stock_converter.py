"""What llama.cpp's own converter makes of tiny checkpoints: scripts/llamacpp/compare_converter.py
compares it with ours.
"""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import torch

from ropeconv.environment import without_secrets

from ...support.baking import stored_as
from ...support.llamacpp import checkpoint
from ...support.models import TINY

PROGRAM = Path(__file__).with_name("converter_program.py")

YARN = {
    "rope_type": "yarn",
    "rope_theta": 10000.0,
    "factor": 4.0,
    "beta_fast": 32.0,
    "beta_slow": 1.0,
    "mscale": 1.0,
    "mscale_all_dim": 1.0,
    "original_max_position_embeddings": 16,
    "llama_4_scaling_beta": 0.1,
}
MIMO_ROPE: dict[str, Any] = TINY["mimo_v2_flash"].config["rope_parameters"]
LAYERS = ["sliding_attention"] * 5 + ["full_attention", "sliding_attention"]
SIZES: dict[str, dict[str, Any]] = {
    "phi": {"intermediate_size": 512, "num_key_value_heads": 2},
    "gemma3_text": {"num_hidden_layers": 7, "layer_types": LAYERS},
    "cohere2": {
        "num_hidden_layers": 4,
        "layer_types": ["sliding_attention"] * 3 + ["full_attention"],
    },
    "stablelm": {"qk_layernorm": False},
    "ernie4_5_moe": {"intermediate_size": 64},
    "glm4_moe": {"num_nextn_predict_layers": 0},
    "ministral3": {"rope_parameters": YARN},
    "minicpm3": {"num_key_value_heads": 2, "v_head_dim": 64},
    "eurobert": {"classifier_pooling": "mean"},
}
"""What the converter takes for granted, as it is in published models."""
KEYS: dict[str, dict[str, Any]] = {
    "gpt_neox": {"rotary_pct": 0.5},
    "cohere2": {"rotary_pct": 1.0},
    "deepseek_v2": {"scoring_func": "softmax"},
    "deepseek_v3": {"scoring_func": "sigmoid"},
    "deepseek_v32": {"scoring_func": "sigmoid"},
    "dots1": {"scoring_func": "sigmoid"},
    "afmoe": {"route_norm": True},
    "exaone_moe": {"scoring_func": "sigmoid"},
    "glm4_moe_lite": {"scoring_func": "sigmoid"},
    "minimax_m2": {"scoring_func": "sigmoid"},
    "glm": {"layernorm_epsilon": 1.5625e-07},
    "hunyuan_v1_moe": {
        "num_shared_expert": [1, 1],
        "moe_topk": [2, 2],
        "moe_intermediate_size": [96, 96],
    },
    "glm_moe_dsa": {"scoring_func": "sigmoid"},
    "granitemoehybrid": {"layer_types": ["mamba", "attention"]},
    "mimo_v2_flash": {
        "hybrid_layer_pattern": [0, 1, 0],
        "scoring_func": "sigmoid",
        "swa_head_dim": 64,
        "swa_num_attention_heads": 4,
        "swa_num_key_value_heads": 2,
        "swa_v_head_dim": 32,
        "topk_method": "noaux_tc",
        # transformers 5 has the share for each layer type, and the converter only for all
        "rope_parameters": MIMO_ROPE | {"partial_rotary_factor": 0.5},
    },
    "mistral4": {"architectures": ["Mistral3ForConditionalGeneration"]},
    "modernbert": {"layer_norm_eps": 1e-05},
    "nomic_bert": {
        "activation_function": "swiglu",
        "causal": False,
        "max_trained_positions": 2048,
        "mlp_fc1_bias": False,
        "mlp_fc2_bias": False,
        "n_positions": 8192,
        "prenorm": False,
        "qkv_proj_bias": False,
        "rotary_emb_fraction": 1.0,
        "rotary_emb_interleaved": False,
        "rotary_emb_scale_base": None,
    },
}
"""Keys of published configs that the classes of transformers do not write."""


def in_bfloat16(model_type: str, folder: Path) -> tuple[Path, dict[str, torch.Tensor]]:
    """A checkpoint that the converter can read, stored in bfloat16 as published ones are, and its
    tensors.
    """
    checkpoint(model_type, folder, **SIZES.get(model_type, {}))
    config = json.loads((folder / "config.json").read_text()) | {"torch_dtype": "bfloat16"}
    (folder / "config.json").write_text(json.dumps(config))
    return folder, stored_as(folder, "bfloat16")


def by_converter(source: Path, outtypes: list[str], tree: str) -> dict[str, Path]:
    """The files that the converter makes of a checkpoint of bfloat16, by type. tree: llama.cpp's
    sources.
    """
    text = (source / "config.json").read_text()
    config = json.loads(text)
    (source / "config.json").write_text(json.dumps(config | KEYS.get(config["model_type"], {})))
    command = [sys.executable, str(PROGRAM), tree, str(source), *outtypes]
    done = subprocess.run(
        command, capture_output=True, text=True, env=without_secrets(), cwd=source.parent
    )
    assert done.returncode == 0, done.stderr
    (source / "config.json").write_text(text)
    return {outtype: source.with_name(f"{source.name}-{outtype}.gguf") for outtype in outtypes}
