"""What the model files of vLLM read that configs made by transformers lack, and those that do not
run here.
"""

from __future__ import annotations

from typing import Any

EXPECTED: dict[str, dict[str, Any]] = {
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
"""Keys that the model files of vLLM read, that every published config has, and that our tiny ones
lack.
"""
TIED = {"gemma", "gemma2", "gemma3_text", "cohere", "cohere2"}
"""Families whose model files assert that the embeddings are tied, as every published config has it
and no tiny one.
"""
UNSEEN = {
    "BeamForCausalLM": (
        "untested: it rotates in its own kernel, together with the norms of queries and keys"
    ),
    "DeepseekV32ForCausalLM": "untested: its attention chooses tokens in a kernel",
    "DeepseekV4ForCausalLM": "untested: its attention needs a GPU",
    "FlintForCausalLM": "untested: its model file imports flashinfer",
    "GlmMoeDsaForCausalLM": "untested: its attention chooses tokens in a kernel",
    "HYV3ForCausalLM": "untested: its model file requires keys that the test config does not have",
    "MiMoV2FlashForCausalLM": (
        "untested: its model file requires other sizes than the test config has"
    ),
    "Mistral4ForCausalLM": (
        "untested: the lab does not see how the class of transformers scales queries"
    ),
    "Zamba2ForCausalLM": "untested: its attention is shared between layers",
    "HYV4ForCausalLM": "untested: its attention needs a kernel",
}
"""Architectures whose model files cannot be built or run without a GPU."""
BFLOAT16 = {"Qwen4ExpForCausalLM", "Qwen4ExpForConditionalGeneration"}
"""Architectures whose attention refuses every other precision (vllm/models/qwen4_exp/nvidia/qsa.py,
0.33.0).
"""
