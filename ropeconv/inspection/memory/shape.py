"""The numbers of a model from which the memory of each runtime follows.

`config_shape` reads them from a config.json, and `gguf_shape` from the header of a GGUF file.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any, Literal

from ...formats.gguf.header import TensorInfo
from ...models.config import CachedLayers, geometry, text_part
from ...models.family import Family
from ...models.schema import Config, positive_int
from ...models.source import Source
from ...rope.errors import RopeconvError
from ...runtimes.llamacpp.archs import Arch, HeaderKeys
from ...runtimes.llamacpp.scaling import ArchKeys
from ..kv_cache import KvCache, dtype_of

Mlp = Literal["gated", "fused", "plain"]
"""The projections of an MLP: gate and up, both in one matrix, or only up."""

# transformers 5.23: classes whose MLP has `gate_up_proj = nn.Linear(...)`
FUSED = frozenset("phi3 phi4_multimodal glm glm4 glm4v glm_ocr zamba2 dots3_note".split())
# transformers 5.23: classes whose MLP has no gate
PLAIN = frozenset(
    (
        "apertus arcee codegen falcon gpt_neox gpt_neox_japanese gptj jais2 nanochat nemotron"
        " persimmon phi starcoder2"
    ).split()
)
# transformers 5.23: classes with `_supports_sdpa = False`, which keep all scores of a layer
EAGER = frozenset(
    (
        "deepseek_v4 flint gemma2 gpt_oss granite_swa granitemoe_swa hy_v4 mimo_v2_flash"
        " openai_privacy_filter t5gemma vaultgemma"
    ).split()
)
# of those, attention with a learned sink: one more column of scores, and no float32 copy of them
SINKS = frozenset(("gpt_oss", "mimo_v2_flash", "granite_swa", "granitemoe_swa"))

# llama.cpp: architectures whose feed-forward network has no gate (src/models/*.cpp)
PLAIN_ARCHS = frozenset(
    (
        "apertus arcee codeshell falcon gpt2 gptj gptneox jais2 mpt nemotron orion phi2 plamo"
        " starcoder starcoder2"
    ).split()
)

WIDTHS = ("intermediate_size", "ffn_hidden_size", "ffn_dim", "n_inner", "mlp_hidden_size")
EXPERT_WIDTHS = ("moe_intermediate_size", "expert_ffn_hidden_size", "expert_intermediate_size")
USED_EXPERTS = (
    "num_experts_per_tok",
    "experts_per_token",
    "num_experts_per_token",
    "moe_topk",
    "moe_top_k",
    "top_k_experts",
)
ALL_EXPERTS = ("num_experts", "num_local_experts", "n_routed_experts")
DENSE_TOO = (
    "first_k_dense_replace",
    "mlp_only_layers",
    "num_dense_layers",
    "moe_layer_start_index",
)
"""Config keys of models with experts in which some layers have one MLP instead."""


VOCABULARY = 262_208
"""That of Gemma 3, whose published configs leave it to the class (Gemma3TextConfig)."""


@dataclass(frozen=True)
class Latent:
    """The widths of multi-head latent attention (MLA)."""

    rank: int
    """Numbers of the latent vector of a token."""

    rope: int
    """Dimensions of a head that rotate."""

    nope: int
    """Dimensions of a head that do not rotate."""

    value: int
    """Dimensions of a head of values."""


@dataclass(frozen=True)
class ModelShape:
    """The numbers of a model that decide its memory. Widths are numbers per token."""

    family: str
    """The name of the model family or GGUF architecture."""

    layers: tuple[CachedLayers, ...]
    """The layers with a key-value cache, in groups with the same size."""

    states: int
    """Layers with a state of fixed size instead, which is not counted."""

    dtype: str
    """The type of the weights, such as "bfloat16"; for GGUF that of the activations."""

    vocabulary: int
    hidden: int
    heads: int
    head_dim: int

    queries: int
    """The width of all queries of a layer."""

    mlp: int
    """The width of the MLP; 0 where every layer has experts."""

    mlp_kind: Mlp = "gated"

    experts: int = 0
    """Experts that a token passes through in a layer; 0 for a dense model."""

    expert_width: int = 0
    """The width of one of them."""

    all_experts: int = 0
    """All experts of a layer; 0 where the source does not say how many there are."""

    latent: Latent | None = None
    """None for attention that keeps keys and values."""

    eager: bool = False
    """Whether transformers keeps the attention scores of a layer."""

    sinks: bool = False
    """Whether these scores have a column for a sink."""

    query_norm: bool = False
    """Whether the queries of each head are normalised."""

    weights: int | None = None
    """Bytes of the weights as stored; None where the source has none."""

    @property
    def keys(self) -> int:
        """The width of the keys of the widest layer."""
        return max((group.keys for group in self.layers), default=0)

    @property
    def values(self) -> int:
        """The width of the values of the widest layer."""
        return max((group.values for group in self.layers), default=0)

    @property
    def window(self) -> int | None:
        """The smallest attention window; None for a model without one."""
        return min((group.window for group in self.layers if group.window), default=None)

    @property
    def sees_everything(self) -> bool:
        """Whether some layer attends to the whole context."""
        return any(group.window is None for group in self.layers)

    def with_weights(self, size: int | None) -> ModelShape:
        """Return the shape with the bytes of its weights."""
        return replace(self, weights=size)


def config_shape(config: Config, family: Family, cache: KvCache | None) -> ModelShape | None:
    """Return the sizes of a checkpoint on which its memory depends, such as its hidden size.

    Args:
        config: The content of config.json.
        family: Its family.
        cache: Its key-value cache; None where it has none.

    Returns:
        The sizes, without the bytes of the weights; None where the config leaves some of them out.
    """
    if cache is None or not cache.layers:
        return None
    part = text_part(config, family)
    try:
        sizes = geometry(config, family)
        heads = positive_int(part, family.keys.heads, family.defaults.heads)
        hidden = positive_int(part, family.keys.hidden, family.defaults.hidden)
        vocabulary = positive_int(part, ("vocab_size", "padded_vocab_size"))
    except RopeconvError:
        return None
    if heads is None or hidden is None:
        return None

    # the width of all queries; latent attention has further sizes, those of DeepSeek V3 by default
    queries = heads * sizes.head_dim
    latent = None
    if family.mla:
        latent = Latent(
            rank=_largest(part, ("kv_lora_rank",)) or 512,
            rope=sizes.head_dim,
            nope=_largest(part, ("qk_nope_head_dim",)) or 128,
            value=_largest(part, ("v_head_dim",)) or 128,
        )
        queries = heads * (latent.nope + latent.rope)

    # the MLP of a layer, four times as wide as the hidden states unless the config says otherwise;
    # a model with experts may have such an MLP in some of its layers
    experts = _largest(part, USED_EXPERTS)
    mlp_width = _largest(part, WIDTHS) or 4 * hidden
    expert_width = 0
    if experts:
        expert_width = _largest(part, EXPERT_WIDTHS) or mlp_width
        has_dense_layers = any(part.get(key) for key in DENSE_TOO)
        if not has_dense_layers:
            mlp_width = 0

    return ModelShape(
        family=family.name,
        layers=cache.layers,
        states=cache.states,
        dtype=dtype_of(config, family),
        vocabulary=vocabulary or VOCABULARY,
        hidden=hidden,
        heads=heads,
        head_dim=sizes.head_dim,
        queries=queries,
        mlp=mlp_width,
        mlp_kind=_mlp_kind(family),
        experts=experts,
        expert_width=expert_width,
        all_experts=_largest(part, ALL_EXPERTS),
        latent=latent,
        eager=family.name in EAGER,  # classes that keep all scores of a layer
        sinks=family.name in SINKS,  # of these, the ones with a learned sink, such as gpt-oss
        query_norm=bool(family.weights.q_norm),
    )


def _mlp_kind(family: Family) -> Mlp:
    """Return whether the MLP of a class has a gate, and whether one projection makes both parts."""
    if family.name in FUSED:
        return "fused"
    if family.name in PLAIN:
        return "plain"
    return "gated"


def gguf_shape(keys: HeaderKeys, arch: Arch, cache: KvCache | None) -> ModelShape | None:
    """Return the sizes of a GGUF model on which its memory depends, without its weights.

    Args:
        keys: The keys of the header.
        arch: The architecture of the model.
        cache: The key-value cache of the model; None for a model without a cache.

    Returns:
        The sizes; None if the header lacks a size, or the model has no cache.
    """
    if cache is None or not cache.layers:
        return None
    # `_whole` gives 0 for a missing key
    file = ArchKeys(keys, arch)
    vocabulary = _gguf_vocabulary(keys, file)
    hidden = _whole(file.get("embedding_length"))
    heads = _whole(file.get("attention.head_count"))
    if 0 in (vocabulary, hidden, heads):
        return None

    # the numbers in the queries of all heads; with multi-head latent attention (MLA), the queries
    # of a head have dimensions that rotate (rope) and dimensions that do not (nope)
    head_dim = _whole(file.get("attention.key_length")) or hidden // heads
    queries = heads * head_dim
    latent = _gguf_latent(file, head_dim)
    if latent is not None:
        queries = heads * (latent.nope + latent.rope)

    # The widths of the MLPs. In a model with experts, only dense layers have an ordinary MLP, and
    # only some models have dense layers. Mixtral has the width of its experts in
    # feed_forward_length, most others in expert_feed_forward_length.
    experts = _whole(file.get("expert_used_count"))
    expert_width = _whole(file.get("expert_feed_forward_length"))
    mlp_width = _whole(file.get("feed_forward_length"))
    if experts:
        expert_width = expert_width or mlp_width
        has_dense_layers = _whole(file.get("leading_dense_block_count")) > 0
        if not has_dense_layers:
            mlp_width = 0
    return ModelShape(
        family=arch.name,
        layers=cache.layers,
        states=cache.states,  # layers with a state of fixed size, such as Mamba
        dtype="float32",
        vocabulary=vocabulary,
        hidden=hidden,
        heads=heads,
        head_dim=head_dim,
        queries=queries,
        mlp=mlp_width,
        mlp_kind="plain" if arch.name in PLAIN_ARCHS else "gated",
        experts=experts,
        expert_width=expert_width,
        latent=latent,
    )


def _gguf_vocabulary(keys: HeaderKeys, file: ArchKeys) -> int:
    """Return the number of tokens of a GGUF model; 0 where the header does not tell it."""
    tokens = keys.get("tokenizer.ggml.tokens")
    if isinstance(tokens, list):
        return len(tokens)
    return _whole(file.get("vocab_size"))


def _gguf_latent(file: ArchKeys, cached_width: int) -> Latent | None:
    """Return the sizes of multi-head latent attention (MLA); None for a model without it.

    Args:
        file: The keys of a GGUF file.
        cached_width: Its `attention.key_length`. With MLA these are the numbers that are cached:
            the latent vector and the part that rotates, 512 + 64 in DeepSeek V3.
    """
    # `_whole` is 0 for a key that is missing; the numbers behind are those of DeepSeek V3
    latent_width = _whole(file.get("attention.kv_lora_rank"))  # 512
    value_width = _whole(file.get("attention.value_length_mla"))  # 128
    if not latent_width or not value_width:
        return None
    head_width = _whole(file.get("attention.key_length_mla"))  # 192
    rotating = cached_width - latent_width  # 64
    not_rotating = head_width - rotating  # 128
    return Latent(rank=latent_width, rope=rotating, nope=not_rotating, value=value_width)


def checkpoint_bytes(source: Source) -> int | None:
    """Return the bytes of the weights of a checkpoint; None where it has none, or no size is known.

    These are the sizes of the files, without reading their headers.
    """
    try:
        names = set(source.weights())
    except RopeconvError:
        return None  # a shard is missing, which other messages say
    if not names:  # no safetensors; older checkpoints have pytorch_model.bin
        names = {file.name for file in source.files() if file.name.endswith(".bin")}
    sizes = [file.size for file in source.files() if file.name in names]
    if not sizes or 0 in sizes:  # 0 for a size that the Hub does not give
        return None
    return sum(sizes)


def gguf_bytes(tensors: Iterable[TensorInfo]) -> int:
    """Return the bytes of the weights of a GGUF model."""
    return sum(info.size for info in tensors)


def _largest(part: Config, keys: Iterable[str]) -> int:
    """Return the first of some keys that a config has, or 0. A list is its largest number."""
    for key in keys:
        size = _whole(part.get(key))
        if size:
            return size
    return 0


def _whole(value: Any) -> int:
    """Return a whole number, or the largest of a list with one for each layer; 0 for others."""
    if isinstance(value, list):
        return max((_whole(item) for item in value), default=0)
    if isinstance(value, bool) or not isinstance(value, int):
        return 0
    return max(value, 0)
