"""What a family file holds: one TOML per model family, read once, checked on reading."""

from __future__ import annotations

import tomllib
from functools import cache
from importlib.resources import files
from typing import Any, Literal

import msgspec

Norm = Literal[
    "", "rms", "rms-plus-one", "rms-all-heads", "layer-norm", "layer-norm-list", "l2-after-rope", "rms-after-rope"
]
Kind = Literal["global", "local", "none"]
RopeType = Literal["default", "linear", "dynamic", "yarn", "longrope", "llama3"]


class Keys(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Where the config says it; the first key present counts.

    query_beta: in the RoPE dictionary, the slope of a query scale `1 + beta ln(1 + floor(p / original context))`.
    """

    theta: tuple[str, ...] = ("rope_theta",)
    local_theta: tuple[str, ...] = ()
    partial: tuple[str, ...] = ()
    rotary_dim: tuple[str, ...] = ()
    head_dim: tuple[str, ...] = ("head_dim",)
    hidden: tuple[str, ...] = ("hidden_size",)
    heads: tuple[str, ...] = ("num_attention_heads",)
    layers: tuple[str, ...] = ("num_hidden_layers",)
    context: tuple[str, ...] = ("max_position_embeddings",)
    query_beta: str = ""


class Defaults(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What the stock class assumes when the config is silent."""

    theta: float = 10000.0
    local_theta: float | None = None
    context: int | None = None
    head_dim: int | None = None
    layers: int | None = None
    partial_rotary_factor: float = 1.0
    scaling: dict[str, Any] | None = None


class Layers(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Which layers rotate, and with which frequencies.

    types: what each name in the config's `layer_types` means here. Without that list every `interval`-th layer is
    `last` and the others are `rest`. flags: a list key whose 1 means "rotates" (SmolLM3's no_rope_layers).
    one_kind_without: when that key is null or absent, every layer is global.
    """

    types: dict[str, Kind] = {}
    interval: int = 0
    interval_key: str = ""
    last: str = "full_attention"
    rest: str = "sliding_attention"
    flags: str = ""
    one_kind_without: str = ""


class Trained(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A declared context that is not the trained one; with `doubt`, one that may not be.

    when: other keys of the config that must have these values too.
    """

    declared: int
    trained: int
    source: str
    doubt: bool = False
    when: dict[str, Any] = {}


class Writing(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How this family's configs have to be written.

    types: the rope types its stock class takes. nested: rope_parameters per layer type.
    legacy_keys: the only keys its class accepts in the legacy dict, per type. keep: keys in the dict that belong to
    the architecture and not to a method. pinned_original: original_max_position_embeddings has another duty and stays.
    head_dim: whether the class takes an explicit head_dim.
    attention_factor_from_original: it can only come from the top-level original_max_position_embeddings.
    """

    types: tuple[RopeType, ...] = ("default", "linear", "dynamic", "yarn", "longrope", "llama3")
    nested: bool = False
    legacy_keys: dict[str, tuple[str, ...]] = {}
    keep: tuple[str, ...] = ()
    pinned_original: bool = False
    head_dim: bool = True
    attention_factor_from_original: bool = False


class Weights(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Where queries and keys are made, for edits in the weights.

    layer: prefixes with {layer}. q, k: projection names without .weight; fused: one projection for q, k, v and
    fused_order how they lie in it. q_norm, k_norm: norms before the rotation, norm: what they are. rows: which
    rows of a projection rotate when not the first rotary_dim of each head. bias: whether projections may have one.
    """

    layer: tuple[str, ...] = ("model.layers.{layer}.",)
    q: str = ""
    k: str = ""
    fused: str = ""
    fused_order: Literal["", "blocks", "per-head", "per-group"] = ""
    q_norm: str = ""
    k_norm: str = ""
    norm: Norm = ""
    rows: Literal["first", "last"] = "first"
    bias: bool = False


class Need(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A key that must have a value, because a reader assumes it.

    default: what the class assumes when it is absent. below_layers: asked only of models with fewer layers.
    """

    key: str
    value: Any
    default: Any = None
    below_layers: int = 0


class Gguf(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How this family's checkpoints become GGUF.

    arch: its general.architecture. u32, f32, flag: metadata keys and the config keys they come from; absent or null
    ones are left out. interleave: rows of q and k go from halves to neighbours. norm_plus_one: norms are stored as
    weight - 1. tied: the architecture has no output weights of its own. qkv: rows of the fused projection lie per head.
    stacked: prefixes of numbered tensors that become one, with the name they then have. need: what llama.cpp assumes.
    act: the activation that llama.cpp computes, or empty where it is not checked. not_null: keys that must not be null.
    scale_layers: the query scale is 1/sqrt(head_dim), and with that many layers 1/sqrt(hidden_size / heads).
    window: writes attention.sliding_window, with the pattern or without; window_interval: of layers, where the config
    does not list them. pre: names of pre-tokenizers in place of the usual ones.
    """

    arch: str
    u32: dict[str, str] = {}
    f32: dict[str, str] = msgspec.field(default_factory=lambda: {"attention.layer_norm_rms_epsilon": "rms_norm_eps"})
    flag: dict[str, str] = {}
    interleave: bool = False
    norm_plus_one: bool = False
    tied: bool = False
    qkv: bool = False
    stacked: dict[str, str] = {}
    need: tuple[Need, ...] = ()
    act: str = "silu"
    not_null: tuple[str, ...] = ()
    scale_layers: int = 0
    window: Literal["", "pattern", "size"] = ""
    window_interval: int = 0
    pre: dict[str, str] = {}


class Code(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Its classes in transformers, for code that builds on them.

    prefix: LlamaModel's is Llama; the module is named after the first model type. window: the expression by which its
    attention finds its sliding window. window_switch: a key of the config without which there is none.
    """

    prefix: str
    window: str = ""
    window_switch: str = ""


class Ministral3(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How this family's checkpoints load as Ministral 3, the class that scales queries by position.

    defaults: what its own class assumes where a config is silent, as far as Ministral 3 assumes something else; null:
    keys whose silence means null. need: what Ministral 3 assumes.
    """

    defaults: dict[str, Any]
    null: tuple[str, ...] = ()
    need: tuple[Need, ...] = ()


class Family(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One model family.

    since: first release of a runtime that knows it. refuse: why nothing can be baked for it, or empty.
    """

    name: str
    display_name: str
    model_types: tuple[str, ...]
    source: str
    layout: Literal["half", "interleaved"] = "half"
    mla: bool = False
    refuse: str = ""
    since: dict[str, str] = {}
    keys: Keys = Keys()
    defaults: Defaults = Defaults()
    layers: Layers = Layers()
    trained: tuple[Trained, ...] = ()
    writing: Writing = Writing()
    weights: Weights = Weights()
    gguf: Gguf | None = None
    code: Code | None = None
    ministral3: Ministral3 | None = None


@cache
def families() -> tuple[Family, ...]:
    """Every family in the package, by name."""
    data = files("ropeconv.families") / "data"
    found = [
        msgspec.convert(tomllib.loads(entry.read_text("utf-8")), Family)
        for entry in data.iterdir()
        if entry.name.endswith(".toml")
    ]
    return tuple(sorted(found, key=lambda family: family.name))


@cache
def by_name() -> dict[str, Family]:
    """Family per name."""
    return {family.name: family for family in families()}


@cache
def by_model_type() -> dict[str, Family]:
    """Family per `model_type`."""
    return {model_type: family for family in families() for model_type in family.model_types}
