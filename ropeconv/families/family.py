"""The schema of `data/*.toml`, one file per model family, and the functions that read them."""

from __future__ import annotations

import tomllib
from functools import cache
from importlib.resources import files
from typing import Any, Literal

import msgspec

from .layer_rules import Layers, QueryTemperature, Window

Norm = Literal[
    "", "rms", "rms-plus-one", "rms-all-heads", "layer-norm", "layer-norm-list", "l2-after-rope", "rms-after-rope"
]
InputNorm = Literal["", "rms", "rms-plus-one", "layer-norm", "layer-norm-plus-one"]
RopeType = Literal["default", "linear", "dynamic", "yarn", "longrope", "llama3", "proportional"]


class Keys(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The keys of config.json for each quantity; the first that is present counts.

    local_head_dim: width of a head in local layers, empty where it is that of the others. query_beta: in the RoPE
    dictionary, the slope of a query scale `1 + beta ln(1 + floor(p / original context))`.
    """

    theta: tuple[str, ...] = ("rope_theta",)
    local_theta: tuple[str, ...] = ()
    partial: tuple[str, ...] = ()
    rotary_dim: tuple[str, ...] = ()
    head_dim: tuple[str, ...] = ("head_dim",)
    local_head_dim: tuple[str, ...] = ()
    hidden: tuple[str, ...] = ("hidden_size",)
    heads: tuple[str, ...] = ("num_attention_heads",)
    kv_heads: tuple[str, ...] = ("num_key_value_heads",)
    layers: tuple[str, ...] = ("num_hidden_layers",)
    context: tuple[str, ...] = ("max_position_embeddings",)
    query_beta: str = ""


class Defaults(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The defaults of the stock class for keys that are absent from a config.

    local_partial: the share of a head that rotates in local layers, None where it is that of the others.
    unstated_partial: that of a RoPE dictionary which does not state it, None where it is the default all the same.
    hidden_times: what the hidden size is multiplied by before it is divided among the heads.
    """

    theta: float = 10000.0
    local_theta: float | None = None
    context: int | None = None
    head_dim: int | None = None
    layers: int | None = None
    heads: int | None = None
    kv_heads: int | None = None
    local_head_dim: int | None = None
    partial_rotary_factor: float = 1.0
    local_partial: float | None = None
    unstated_partial: float | None = None
    hidden_times: int = 1
    scaling: dict[str, Any] | None = None


class Trained(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A context that configs declare and that is not the trained one. Both in tokens.

    source: where the trained one is stated. doubt: whether it is uncertain, so that it is only mentioned. when: other
    keys of the config and the values that they must have too.
    """

    declared: int
    trained: int
    source: str
    doubt: bool = False
    when: dict[str, Any] = {}


class Writing(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How the RoPE of this family is written into a config.

    types: the rope types its stock class takes. nested: rope_parameters per layer type, under the names of
    `Layers.types`. rope_scaling: whether the class takes that key beside rope_parameters; if not, it is left out.
    legacy_keys: the only keys that its class accepts in `rope_scaling`, per type. keep: keys in the dictionary that
    belong to the architecture and not to a method. pinned_original: original_max_position_embeddings has another
    meaning as well and must not change. head_dim: whether the class takes an explicit head_dim.
    attention_factor_from_original: the class derives it from the top-level original_max_position_embeddings alone.
    """

    types: tuple[RopeType, ...] = ("default", "linear", "dynamic", "yarn", "longrope", "llama3", "proportional")
    nested: bool = False
    rope_scaling: bool = True
    legacy_keys: dict[str, tuple[str, ...]] = {}
    keep: tuple[str, ...] = ()
    pinned_original: bool = False
    head_dim: bool = True
    attention_factor_from_original: bool = False


class Weights(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Names of the tensors that make queries and keys, for folding factors into them and for measuring them.

    layer: prefixes of names, with {layer} for the number. q, k: projections, without .weight. fused: one projection for
    queries, keys and values. fused_order: the order of their rows in it. q_norm, k_norm: norms of queries and keys.
    norm: their kind, and whether they come after the rotation. rows: whether the first or the last rotary_dim rows of a
    head rotate. bias: whether projections may have one. input: the kind of the norm before the projections, empty where
    there is none. input_norm: its name, the first that is there; its weights are 1 where none is. more_norms: norms of
    further queries and keys that are rotated alike, those of an indexer, of the same kind. fixed: why no factor can be
    folded into these tensors. unmeasured: why they do not give the variances of queries and keys.
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
    input: InputNorm = "rms"
    input_norm: tuple[str, ...] = ("input_layernorm",)
    more_norms: tuple[tuple[str, str], ...] = ()
    fixed: str = ""
    unmeasured: str = ""


class Need(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A config key that must have a certain value, which a reader assumes.

    default: the class default where the key is absent. below_layers: checked only for models with fewer layers than
    this, 0 for all.
    """

    key: str
    value: Any
    default: Any = None
    below_layers: int = 0


class Gguf(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How this family's checkpoints become GGUF.

    arch: the value of general.architecture. u32, f32, flag: metadata keys, and the config keys that they come from;
    absent or null ones are left out. interleave: rows of q and k are reordered from pairs (i, i + d/2) to (2i, 2i + 1).
    norm_plus_one: norms are stored as weight - 1. tied: the architecture has no output weights. qkv: the fused
    projection has queries, keys and values of each head together. stacked: prefixes of numbered tensors that become
    one, and the name of that one. need: values that llama.cpp assumes. act: the activation that llama.cpp computes,
    empty where it is not checked. not_null: keys that must not be null. scale_layers: llama.cpp scales queries by
    1/sqrt(head_dim), and with this many layers by 1/sqrt(hidden_size / heads). window: whether attention.sliding_window
    is written, with the pattern of layers or alone. pre: names of pre-tokenizers that replace the usual ones.
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
    pre: dict[str, str] = {}


class Cache(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What the attention layers of this family keep in the key-value cache.

    one_head: config values with which a layer has one head of keys and values, whatever `Keys.kv_heads` says. repeated:
    config values with which `repeated_by`, a runtime, keeps keys and values for every query head; none for multi-head
    latent attention, where it always does. values: the config key of the width of a head of values, empty where it is
    that of keys. local_times: how many times the heads of keys and values local layers have. global_heads: the config
    key of their number in the other layers, and a switch of it. shared: the config key of the number of last layers
    that take keys and values from an earlier one, and its default.
    """

    one_head: tuple[Need, ...] = ()
    repeated: tuple[Need, ...] = ()
    repeated_by: str = ""
    values: str = ""
    local_times: int = 1
    global_heads: tuple[str, ...] = ()
    shared: tuple[str, int] = ("", 0)


class Code(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Names of the family's classes in transformers, for the modelling file of the encoding `buffers`.

    prefix: of class names, such as Llama in LlamaModel; the module is named after the first model type. window: the
    Python expression with which its attention reads its sliding window. window_switch: the config key that turns the
    sliding window on.
    """

    prefix: str
    window: str = ""
    window_switch: str = ""


class Ministral3(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How this family's checkpoints load as Ministral 3, the class that scales queries by position.

    defaults: defaults of the family's own class that differ from those of Ministral 3. null: keys whose absence means
    null. need: values that Ministral 3 assumes.
    """

    defaults: dict[str, Any]
    null: tuple[str, ...] = ()
    need: tuple[Need, ...] = ()


class Family(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A model family: the facts of one file in `data/`.

    model_types: values of `model_type` in configs. source: where its facts are stated. layout: pairs are (i, i + r/2)
    in "half", (2i, 2i + 1) in "interleaved". mla: multi-head latent attention. still_pairs: the slowest pairs of a head
    stand still by architecture, under rope_type proportional. refuse: why nothing can be baked for it, or empty.
    without_rope: config values with which no layer rotates. since: per runtime, the first version that loads it. gguf,
    code, ministral3: None where that kind of output is not known for it.
    """

    name: str
    display_name: str
    model_types: tuple[str, ...]
    source: str
    layout: Literal["half", "interleaved"] = "half"
    still_pairs: bool = False
    mla: bool = False
    refuse: str = ""
    without_rope: tuple[Need, ...] = ()
    since: dict[str, str] = {}
    keys: Keys = Keys()
    defaults: Defaults = Defaults()
    layers: Layers = Layers()
    window: Window = Window()
    query_temperature: QueryTemperature | None = None
    trained: tuple[Trained, ...] = ()
    writing: Writing = Writing()
    weights: Weights = Weights()
    cache: Cache = Cache()
    gguf: Gguf | None = None
    code: Code | None = None
    ministral3: Ministral3 | None = None


@cache
def families() -> tuple[Family, ...]:
    """All families of the package, sorted by name."""
    data = files("ropeconv.families") / "data"
    found = [
        msgspec.convert(tomllib.loads(entry.read_text("utf-8")), Family)
        for entry in data.iterdir()
        if entry.name.endswith(".toml")
    ]
    return tuple(sorted(found, key=lambda family: family.name))


@cache
def by_name() -> dict[str, Family]:
    """All families by their name."""
    return {family.name: family for family in families()}


@cache
def by_model_type() -> dict[str, Family]:
    """All families by the `model_type` of a config."""
    return {model_type: family for family in families() for model_type in family.model_types}
