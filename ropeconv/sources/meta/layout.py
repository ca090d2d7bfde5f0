"""The HF layout of Meta's checkpoints: the origin of each tensor, how model-parallel parts join, and the shards."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from ...families.config import Config
from ...formats import shards
from ...formats.safetensors import header_bytes, tensor_bytes
from ...formats.shards import SHARD_BYTES, grouped, shard_names

DTYPES = {"float32": "F32", "float16": "F16", "bfloat16": "BF16"}


@dataclass(frozen=True)
class Target:
    """One tensor of the output.

    name: in the HF layout. origin: its name in Meta's files. join: axis along which the parts are concatenated, None
    where every part has the whole tensor. heads: number of heads of q and k, whose rows are reordered from pairs
    (2i, 2i + 1) to (i, i + d/2); 0 for other tensors.
    """

    name: str
    origin: str
    shape: tuple[int, ...]
    join: int | None
    heads: int = 0


@dataclass(frozen=True)
class Shard:
    """One safetensors file of the output. targets: its tensors in order. dtype: of all, as safetensors names it."""

    name: str
    targets: tuple[Target, ...]
    dtype: str

    def header(self) -> bytes:
        """The bytes of the header, which follow from shapes alone."""
        return header_bytes(((t.name, self.dtype, t.shape) for t in self.targets), {"format": "pt"})

    @property
    def size(self) -> int:
        """Size of the file in bytes."""
        return len(self.header()) + sum(tensor_bytes(self.dtype, target.shape) for target in self.targets)


def targets(config: Config) -> Iterator[Target]:
    """Every tensor of a Llama in the HF layout, in the order in which transformers writes them."""
    dim, inner, vocab = config["hidden_size"], config["intermediate_size"], config["vocab_size"]
    heads, kv_heads, width = config["num_attention_heads"], config["num_key_value_heads"], config["head_dim"]
    yield Target("model.embed_tokens.weight", "tok_embeddings.weight", (vocab, dim), 1)
    for index in range(config["num_hidden_layers"]):
        new, old = f"model.layers.{index}.", f"layers.{index}."
        yield Target(new + "self_attn.q_proj.weight", old + "attention.wq.weight", (heads * width, dim), 0, heads)
        yield Target(new + "self_attn.k_proj.weight", old + "attention.wk.weight", (kv_heads * width, dim), 0, kv_heads)
        yield Target(new + "self_attn.v_proj.weight", old + "attention.wv.weight", (kv_heads * width, dim), 0)
        yield Target(new + "self_attn.o_proj.weight", old + "attention.wo.weight", (dim, heads * width), 1)
        yield Target(new + "mlp.gate_proj.weight", old + "feed_forward.w1.weight", (inner, dim), 0)
        yield Target(new + "mlp.up_proj.weight", old + "feed_forward.w3.weight", (inner, dim), 0)
        yield Target(new + "mlp.down_proj.weight", old + "feed_forward.w2.weight", (dim, inner), 1)
        yield Target(new + "input_layernorm.weight", old + "attention_norm.weight", (dim,), None)
        yield Target(new + "post_attention_layernorm.weight", old + "ffn_norm.weight", (dim,), None)
    yield Target("model.norm.weight", "norm.weight", (dim,), None)
    yield Target("lm_head.weight", "output.weight", (vocab, dim), 0)


def shard_layout(config: Config, limit: int = SHARD_BYTES) -> tuple[Shard, ...]:
    """The shards of a Llama: its tensors in order, in files of at most `limit` bytes of data each (or one tensor)."""
    dtype = DTYPES[config["torch_dtype"]]
    groups = grouped(targets(config), lambda target: tensor_bytes(dtype, target.shape), limit)
    return tuple(Shard(name, group, dtype) for name, group in zip(shard_names(len(groups)), groups, strict=True))


def index_text(made: tuple[Shard, ...]) -> str:
    """The text of model.safetensors.index.json for some shards."""
    total = sum(tensor_bytes(shard.dtype, target.shape) for shard in made for target in shard.targets)
    weight_map = {target.name: shard.name for shard in made for target in shard.targets}
    return shards.index_text(total, weight_map)
