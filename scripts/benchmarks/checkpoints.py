"""Checkpoints of real width with weights like those of trained models, as `scripts/bench gguf`
exports them.
"""

import json
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
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
Tensors = dict[str, tuple[str, tuple[int, ...]]]
"""Dtypes and shapes by name, such as {"model.norm.weight": ("BF16", (4096,))}."""


def layer(model_type: str, config: dict[str, object]) -> Tensors:
    """Return the dtypes and shapes of the tensors of a layer.

    Such as {"self_attn.q_proj.weight": ("BF16", (4096, 4096)), ...}.

    Args:
        model_type: A key of CONFIGS.
        config: The config of the model.
    """
    sizes = {name: value for name, value in config.items() if isinstance(value, int)}
    hidden = sizes["hidden_size"]
    heads = sizes["num_attention_heads"]
    head_dim = sizes.get("head_dim", hidden // heads)
    key_heads = sizes["num_key_value_heads"]
    mlp = sizes["intermediate_size"]

    # what all have: attention and two norms
    rows = {
        "q_proj": heads * head_dim,
        "k_proj": key_heads * head_dim,
        "v_proj": key_heads * head_dim,
    }
    shapes: dict[str, tuple[int, ...]] = {}
    for name, count in rows.items():
        shapes[f"self_attn.{name}.weight"] = (count, hidden)
    shapes["self_attn.o_proj.weight"] = (hidden, heads * head_dim)
    for name in ("input", "post_attention"):
        shapes[f"{name}_layernorm.weight"] = (hidden,)

    # the MLP, or the experts
    if model_type == "llama":
        shapes |= _gated_mlp("mlp", mlp, hidden)
    if model_type == "qwen3_moe":
        for name in "qk":
            shapes[f"self_attn.{name}_norm.weight"] = (head_dim,)
        shapes["mlp.gate.weight"] = (sizes["num_experts"], hidden)
        for expert in range(sizes["num_experts"]):
            shapes |= _gated_mlp(f"mlp.experts.{expert}", sizes["moe_intermediate_size"], hidden)
    typed = {name: ("BF16", shape) for name, shape in shapes.items()}
    if model_type == "gpt_oss":
        experts = sizes["num_local_experts"]
        for name, count in rows.items():
            typed[f"self_attn.{name}.bias"] = ("BF16", (count,))
        typed["self_attn.o_proj.bias"] = ("BF16", (hidden,))
        typed["self_attn.sinks"] = ("BF16", (heads,))
        typed["mlp.router.weight"] = ("BF16", (experts, hidden))
        typed["mlp.router.bias"] = ("BF16", (experts,))
        # MXFP4: blocks of 32 numbers in 16 bytes, with a scale each
        for name, out, columns in (("gate_up", 2 * mlp, hidden), ("down", hidden, mlp)):
            blocks = columns // 32
            typed[f"mlp.experts.{name}_proj_blocks"] = ("U8", (experts, out, blocks, 16))
            typed[f"mlp.experts.{name}_proj_scales"] = ("U8", (experts, out, blocks))
            typed[f"mlp.experts.{name}_proj_bias"] = ("BF16", (experts, out))
    return typed


def _gated_mlp(prefix: str, width: int, hidden: int) -> dict[str, tuple[int, ...]]:
    """Return the shapes of the three matrices of an MLP whose names begin with a prefix."""
    return {
        f"{prefix}.gate_proj.weight": (width, hidden),
        f"{prefix}.up_proj.weight": (width, hidden),
        f"{prefix}.down_proj.weight": (hidden, width),
    }


def checkpoint(folder: Path, gigabytes: float, model_type: str) -> None:
    """Write a model of real width, with as many layers as fit into a size.

    The first shard has the embeddings and the head, and each other one a layer.

    Args:
        folder: Where it is written.
        gigabytes: The size of all shards.
        model_type: A key of CONFIGS.
    """
    folder.mkdir()
    config = {**COMMON, **CONFIGS[model_type], "model_type": model_type}
    hidden = int(str(config["hidden_size"]))
    layer_tensors = layer(model_type, config)

    # how many layers fit beside the embeddings and the head, which have 2 bytes for a number
    layer_size = 0
    for dtype, shape in layer_tensors.values():
        layer_size += int(np.prod(shape)) * (2 if dtype == "BF16" else 1)
    ends_size = 4 * VOCABULARY * hidden
    layer_count = max(1, round((gigabytes * 1e9 - ends_size) / layer_size))
    text = json.dumps({**config, "num_hidden_layers": layer_count}, indent=2)
    (folder / "config.json").write_text(text)
    tokenizer(folder)

    # the tensors of each shard
    ends: Tensors = {
        "model.embed_tokens.weight": ("BF16", (VOCABULARY, hidden)),
        "model.norm.weight": ("BF16", (hidden,)),
        "lm_head.weight": ("BF16", (VOCABULARY, hidden)),
    }
    shards = [ends]
    for index in range(layer_count):
        in_layer: Tensors = {}
        for name, entry in layer_tensors.items():
            in_layer[f"model.layers.{index}.{name}"] = entry
        shards.append(in_layer)

    # normal numbers as bfloat16, which is the upper half of float32, and as bytes
    weights = np.random.default_rng(0).standard_normal(16 << 20, dtype=np.float32)
    weights *= np.float32(0.02)
    data = {"BF16": (weights.view(np.uint32) >> 16).astype(np.uint16), "U8": weights.view(np.uint8)}
    weight_map = {}
    for number, tensors in enumerate(shards, 1):
        file = f"model-{number:05}-of-{len(shards):05}.safetensors"
        _write_shard(folder / file, tensors, data)
        weight_map |= dict.fromkeys(tensors, file)
    index_text = json.dumps({"metadata": {}, "weight_map": weight_map})
    (folder / "model.safetensors.index.json").write_text(index_text)


def _write_shard(path: Path, tensors: Tensors, data: dict[str, NDArray[Any]]) -> None:
    """Write a safetensors file whose tensors repeat the same numbers.

    Args:
        path: The file.
        tensors: The dtypes and shapes by name.
        data: Numbers by dtype. A tensor with more of them has them several times.
    """
    entries = [(name, dtype, shape) for name, (dtype, shape) in tensors.items()]
    with path.open("wb") as out:
        out.write(header_bytes(entries, {"format": "pt"}))
        for name, dtype, shape in entries:
            left = int(np.prod(shape))
            while left:
                piece = data[dtype][:left]
                if name.endswith("_scales"):
                    piece = np.full_like(piece, SCALE)
                out.write(piece.data)
                left -= len(piece)


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
