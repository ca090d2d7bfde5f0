"""Checkpoints of real width with weights like those of trained models, as `scripts/bench gguf`
exports them.
"""

import json
from pathlib import Path

import numpy as np
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

from ropeconv.formats.safetensors import header_bytes

VOCABULARY = 32000
COMMON = {
    "max_position_embeddings": 4096,
    "rope_theta": 10000.0,
    "torch_dtype": "bfloat16",
    "bos_token_id": 0,
    "eos_token_id": 1,
    "vocab_size": VOCABULARY,
    "tie_word_embeddings": False,
}
CONFIGS = {
    "llama": {
        "architectures": ["LlamaForCausalLM"],
        "hidden_size": 4096,
        "intermediate_size": 11008,
        "num_attention_heads": 32,
        "num_key_value_heads": 32,
        "rms_norm_eps": 1e-05,
    },
    "qwen3_moe": {
        "architectures": ["Qwen3MoeForCausalLM"],
        "hidden_size": 2048,
        "intermediate_size": 6144,
        "head_dim": 128,
        "num_attention_heads": 32,
        "num_key_value_heads": 4,
        "moe_intermediate_size": 768,
        "num_experts": 64,
        "num_experts_per_tok": 8,
        "norm_topk_prob": True,
        "rms_norm_eps": 1e-06,
    },
    "gpt_oss": {
        "architectures": ["GptOssForCausalLM"],
        "hidden_size": 2880,
        "intermediate_size": 2880,
        "head_dim": 64,
        "num_attention_heads": 64,
        "num_key_value_heads": 8,
        "num_local_experts": 32,
        "num_experts_per_tok": 4,
        "sliding_window": 128,
        "rms_norm_eps": 1e-05,
        "quantization_config": {"quant_method": "mxfp4"},
        "rope_parameters": {"rope_type": "default", "rope_theta": 150000.0},
    },
}
"""Of the model types that can be measured: Llama 2, Qwen3-30B-A3B and gpt-oss-20b in width, experts
and types.
"""
SCALE = 122  # of MXFP4: 2^-5


def layer(model_type: str, config: dict[str, object]) -> dict[str, tuple[str, tuple[int, ...]]]:
    """The tensors of a layer with their dtypes and shapes."""
    sizes = {name: value for name, value in config.items() if isinstance(value, int)}
    hidden = sizes["hidden_size"]
    width = sizes.get("head_dim", sizes["hidden_size"] // sizes["num_attention_heads"])
    heads, kv, mlp = (
        sizes[name] for name in ("num_attention_heads", "num_key_value_heads", "intermediate_size")
    )
    rows = {"q_proj": heads, "k_proj": kv, "v_proj": kv}
    shapes: dict[str, tuple[int, ...]] = {
        f"self_attn.{name}.weight": (n * width, hidden) for name, n in rows.items()
    }
    shapes |= {"self_attn.o_proj.weight": (hidden, heads * width)}
    shapes |= {f"{name}_layernorm.weight": (hidden,) for name in ("input", "post_attention")}
    if model_type == "llama":
        shapes |= {f"mlp.{name}_proj.weight": (mlp, hidden) for name in ("gate", "up")}
        shapes |= {"mlp.down_proj.weight": (hidden, mlp)}
    if model_type == "qwen3_moe":
        shapes |= {f"self_attn.{name}_norm.weight": (width,) for name in "qk"}
        shapes |= {"mlp.gate.weight": (sizes["num_experts"], hidden)}
        mlp = sizes["moe_intermediate_size"]
        for expert in range(sizes["num_experts"]):
            shapes |= {
                f"mlp.experts.{expert}.{name}_proj.weight": (mlp, hidden) for name in ("gate", "up")
            }
            shapes |= {f"mlp.experts.{expert}.down_proj.weight": (hidden, mlp)}
    typed = {name: ("BF16", shape) for name, shape in shapes.items()}
    if model_type == "gpt_oss":
        experts = sizes["num_local_experts"]
        typed |= {f"self_attn.{name}.bias": ("BF16", (n * width,)) for name, n in rows.items()}
        typed |= {
            "self_attn.o_proj.bias": ("BF16", (hidden,)),
            "self_attn.sinks": ("BF16", (heads,)),
        }
        typed |= {
            "mlp.router.weight": ("BF16", (experts, hidden)),
            "mlp.router.bias": ("BF16", (experts,)),
        }
        for name, out, columns in (("gate_up", 2 * mlp, hidden), ("down", hidden, mlp)):
            typed[f"mlp.experts.{name}_proj_blocks"] = ("U8", (experts, out, columns // 32, 16))
            typed[f"mlp.experts.{name}_proj_scales"] = ("U8", (experts, out, columns // 32))
            typed[f"mlp.experts.{name}_proj_bias"] = ("BF16", (experts, out))
    return typed


def checkpoint(folder: Path, gigabytes: float, model_type: str) -> None:
    """A model of real width, as many layers as fit, one shard a layer."""
    folder.mkdir()
    config = {**COMMON, **CONFIGS[model_type], "model_type": model_type}
    hidden = int(str(config["hidden_size"]))
    typed = layer(model_type, config)
    size = sum(
        int(np.prod(shape)) * (2 if dtype == "BF16" else 1) for dtype, shape in typed.values()
    )
    count = max(1, round((gigabytes * 1e9 - 4 * VOCABULARY * hidden) / size))
    (folder / "config.json").write_text(
        json.dumps({**config, "num_hidden_layers": count}, indent=2)
    )
    tokenizer(folder)
    weights = np.random.default_rng(0).standard_normal(16 << 20, dtype=np.float32) * np.float32(
        0.02
    )
    data = {"BF16": (weights.view(np.uint32) >> 16).astype(np.uint16), "U8": weights.view(np.uint8)}
    ends = {"model.embed_tokens.weight": (VOCABULARY, hidden), "model.norm.weight": (hidden,)}
    ends["lm_head.weight"] = (VOCABULARY, hidden)
    shards = [{name: ("BF16", shape) for name, shape in ends.items()}]
    shards += [
        {f"model.layers.{index}.{name}": entry for name, entry in typed.items()}
        for index in range(count)
    ]
    weight_map = {}
    for number, tensors in enumerate(shards, 1):
        file = f"model-{number:05}-of-{len(shards):05}.safetensors"
        with (folder / file).open("wb") as out:
            out.write(
                header_bytes(
                    [(name, dtype, shape) for name, (dtype, shape) in tensors.items()],
                    {"format": "pt"},
                )
            )
            for name, (dtype, shape) in tensors.items():
                left = int(np.prod(shape))
                while left:
                    piece = data[dtype][:left]
                    out.write(
                        np.full_like(piece, SCALE).data if name.endswith("_scales") else piece.data
                    )
                    left -= len(piece)
                weight_map[name] = file
    (folder / "model.safetensors.index.json").write_text(
        json.dumps({"metadata": {}, "weight_map": weight_map})
    )


def tokenizer(folder: Path) -> None:
    """Byte-level BPE, which the converter is told to call gpt-2."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=1000,
        special_tokens=["<s>", "</s>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
    )
    tokenizer.train_from_iterator(
        (path.read_text() for path in Path("ropeconv").rglob("*.py")), trainer
    )
    tokenizer.save(str(folder / "tokenizer.json"))
    settings = {
        "bos_token": "<s>",
        "eos_token": "</s>",
        "tokenizer_class": "PreTrainedTokenizerFast",
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
