"""The HF layout of Meta's checkpoints: the origin of each tensor, how model-parallel parts join, and the shards."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from ...families.config import Config
from ...formats.safetensors import tensor_bytes
from ...formats.shards import SHARD_BYTES, grouped, shard_names
from ..converted import Shard

DTYPES = {"float32": "F32", "float16": "F16", "bfloat16": "BF16"}


@dataclass(frozen=True)
class Target:
    """One tensor of the output.

    name: in the HF layout. dtype: as safetensors names it. origin: its name in Meta's files. join: axis along which the
    parts are concatenated, None where every part has the whole tensor. head: rows of a head of q and k, which are
    reordered from pairs (2i, 2i + 1) to (i, i + d/2); 0 for other tensors.
    """

    name: str
    dtype: str
    origin: str
    shape: tuple[int, ...]
    join: int | None
    head: int = 0


def targets(config: Config) -> Iterator[Target]:
    """Every tensor of a Llama in the HF layout, in the order in which transformers writes them."""
    dim, inner, vocab = config["hidden_size"], config["intermediate_size"], config["vocab_size"]
    heads, kv_heads, width = config["num_attention_heads"], config["num_key_value_heads"], config["head_dim"]
    dtype = DTYPES[config["torch_dtype"]]
    yield Target("model.embed_tokens.weight", dtype, "tok_embeddings.weight", (vocab, dim), 1)
    for index in range(config["num_hidden_layers"]):
        new, old = f"model.layers.{index}.", f"layers.{index}."
        for made, origin, shape, join, head in (
            ("self_attn.q_proj", "attention.wq", (heads * width, dim), 0, width),
            ("self_attn.k_proj", "attention.wk", (kv_heads * width, dim), 0, width),
            ("self_attn.v_proj", "attention.wv", (kv_heads * width, dim), 0, 0),
            ("self_attn.o_proj", "attention.wo", (dim, heads * width), 1, 0),
            ("mlp.gate_proj", "feed_forward.w1", (inner, dim), 0, 0),
            ("mlp.up_proj", "feed_forward.w3", (inner, dim), 0, 0),
            ("mlp.down_proj", "feed_forward.w2", (dim, inner), 1, 0),
            ("input_layernorm", "attention_norm", (dim,), None, 0),
            ("post_attention_layernorm", "ffn_norm", (dim,), None, 0),
        ):
            yield Target(f"{new}{made}.weight", dtype, f"{old}{origin}.weight", shape, join, head)
    yield Target("model.norm.weight", dtype, "norm.weight", (dim,), None)
    yield Target("lm_head.weight", dtype, "output.weight", (vocab, dim), 0)


def shard_layout(config: Config) -> tuple[Shard[Target], ...]:
    """The shards of a Llama: its tensors in order, in files of at most SHARD_BYTES of data each (or one tensor)."""
    groups = grouped(targets(config), lambda target: tensor_bytes(target.dtype, target.shape), SHARD_BYTES)
    return tuple(Shard(name, group) for name, group in zip(shard_names(len(groups)), groups, strict=True))
