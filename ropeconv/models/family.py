"""The schema of `data/*.toml`, one file per model family, and FamilyHooks, behaviour that no field
describes.

The class `Hooks` in `data/NAME.py` belongs to the family NAME. Other families have the behaviour of
FamilyHooks.
"""

from collections.abc import Collection, Mapping
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any, ClassVar, Literal

import msgspec

from ..formats.jsontext import JsonObject
from ..rope.schedule import QueryScaling

Kind = Literal["global", "local", "none"]


class Layers(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Which layers rotate, and with which frequencies.

    types: the kind of layer for each name in the list of layer types. Without that list every
    `interval`-th layer is `last` and the others are `rest`; with `leading` the first layer of each
    interval is `last`, not its final one. interval_key: the config key that sets `interval`.
    indices: the key of a list with the numbers of the layers that are `last`. pattern: names that
    repeat, where that is not there. first, final: the first and the last layer, where they differ.
    flags: the key of a list whose entry is not 0 where the layer rotates (SmolLM3's
    no_rope_layers). one_kind_without_window: a model without a window has only global layers.
    backward: intervals and patterns count from the last layer. blocks: attention blocks in each
    numbered layer, which count as that many layers. null_is_none: layers of a type whose settings
    are null do not rotate.
    """

    types: dict[str, Kind] = {}
    interval: int = 0
    interval_key: str = ""
    last: str = "full_attention"
    rest: str = "sliding_attention"
    leading: bool = False
    indices: str = ""
    pattern: tuple[str, ...] = ()
    first: str = ""
    final: str = ""
    flags: str = ""
    one_kind_without_window: bool = False
    backward: bool = False
    blocks: int = 1
    null_is_none: bool = False


class WindowRule(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The sliding window or chunk in which some layers see.

    key: the config key of its size in tokens, where null means none; empty for families without
    windows. default: that of the stock class. switch: a config key that must be true. layers: which
    of them have it: all, those that rotate, those that do not, or those that `layer_types` names
    so. first_key, first: without that list, a config key with the number of the first such layer,
    and its default. divided_by: what the size is divided by (ModernBERT counts both sides).
    """

    key: str = ""
    default: int | None = None
    switch: str = ""
    layers: Literal["all", "named", "rotating", "not-rotating"] = "named"
    first_key: str = ""
    first: int = 0
    divided_by: int = 1

    @property
    def chunked(self) -> bool:
        """Whether the context is cut into chunks (Llama 4)."""
        return self.key == "attention_chunk_size"


class Need(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A config key that must have a certain value, which a reader assumes.

    default: the class default where the key is absent. below_layers: checked only for models with
    fewer layers than this, 0 for all. when: checked only where this config key is true, empty for
    always.
    """

    key: str
    value: Any
    default: Any = None
    below_layers: int = 0
    when: str = ""


class Convert(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How tensors of a checkpoint are changed. Rules are applied in their order, each to what those
    before it left.

    match: a regular expression that is searched in the names. how: name of a conversion in
    `to_gguf/conversions.py`. names: what replaces the matched part, for each tensor that comes out.
    times: config keys of factors that it is multiplied by; KEY.N for the N-th of a list.
    """

    match: str
    how: str = "rename"
    names: tuple[str, ...] = ()
    times: tuple[str, ...] = ()


class Gguf(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How this family's checkpoints become GGUF.

    arch: the value of general.architecture. u32, f32, flag: metadata keys, and the expressions of
    config keys that they come from (`to_gguf/hparams.py`); absent or null ones are left out. fixed:
    metadata keys with fixed values. layer_flags: metadata keys that say of every layer whether it
    is of a type. computed: metadata keys, and the functions in `to_gguf/hparams.py` that give them.
    scalars: metadata keys that are lists, and the tensors of each layer that have their single
    numbers, each with its shape. defaults: of the class, for config keys that are absent. convert:
    what happens to tensors. tied: the architecture has no output weights. copy_output: it needs
    them, so that those of tied models are written twice. stacked: prefixes of numbered tensors that
    become one, and the name of that one. skip: a regular expression of tensors that llama.cpp
    computes without. need: values that llama.cpp assumes. act: the activations that llama.cpp
    computes, empty where it is not checked, and act_key: the config key that says which.
    scale_layers: llama.cpp scales queries by 1/sqrt(head_dim), and with this many layers by
    1/sqrt(hidden_size / heads). window: whether attention.sliding_window is written, with the
    pattern of layers or without. pre: names of pre-tokenizers that replace the usual ones. names:
    names of tensors that are not those of Llama or Gemma, with {layer} for the number. present:
    config switches, and the part of a tensor's name with which they are on. prediction: layers that
    predict further tokens are kept behind the others; they are left out else. config: settings that
    no GGUF key has, for the conversion back to a checkpoint, which needs them. absent: config
    values where a file lacks the key that they come from, "none" for null, and values of `fixed`
    that it may lack; it must have all other keys of u32 and fixed. idle: metadata keys that change
    nothing with this value, which exports leave out.
    """

    arch: str
    u32: dict[str, str] = {}
    f32: dict[str, str] = msgspec.field(
        default_factory=lambda: {"attention.layer_norm_rms_epsilon": "rms_norm_eps"}
    )
    flag: dict[str, str] = {}
    fixed: dict[str, int | float | bool | str | list[int]] = {}
    layer_flags: dict[str, str] = {}
    computed: dict[str, str] = {}
    scalars: dict[str, tuple[str, tuple[int, ...]]] = {}
    defaults: JsonObject = {}
    convert: tuple[Convert, ...] = ()
    tied: bool = False
    copy_output: bool = False
    stacked: dict[str, str] = {}
    skip: str = ""
    need: tuple[Need, ...] = ()
    act: str = "silu"
    act_key: str = "hidden_act"
    scale_layers: int = 0
    window: Literal["", "pattern", "size"] = ""
    pre: dict[str, str] = {}
    names: tuple[str, ...] = ()
    present: dict[str, str] = {}
    prediction: bool = False
    config: JsonObject = {}
    absent: JsonObject = {}
    idle: dict[str, int] = {}


Norm = Literal[
    "",
    "rms",
    "rms-plus-one",
    "rms-all-heads",
    "layer-norm",
    "layer-norm-list",
    "l2-after-rope",
    "rms-after-rope",
]
InputNorm = Literal["", "rms", "rms-plus-one", "layer-norm", "layer-norm-plus-one"]
RopeType = Literal["default", "linear", "dynamic", "yarn", "longrope", "llama3", "proportional"]


class ConfigKeys(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The keys of config.json for each quantity; the first that is present counts.

    layer_theta: a list with the base of each layer, which counts in place of `theta`; 0 for a layer
    that does not rotate. local_head_dim: width of a head in local layers, empty where it is that of
    the others. query_beta: in the RoPE dictionary, the slope of a query scale
    `1 + beta ln(1 + floor(p / original context))`.
    """

    theta: tuple[str, ...] = ("rope_theta",)
    layer_theta: str = ""
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

    local_partial: the share of a head that rotates in local layers, None where it is that of the
    others. unstated_partial: that of a RoPE dictionary which does not state it, None where it is
    the default all the same.
    """

    theta: float = 10000.0
    local_theta: float | None = None
    context: int | None = None
    head_dim: int | None = None
    hidden: int | None = None
    layers: int | None = None
    heads: int | None = None
    kv_heads: int | None = None
    local_head_dim: int | None = None
    partial_rotary_factor: float = 1.0
    local_partial: float | None = None
    unstated_partial: float | None = None
    scaling: JsonObject | None = None


class TrainedContext(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A context that configs declare and that is not the trained one. Both in tokens.

    source: where the trained one is stated. doubt: not None where that is uncertain, so that it is
    only mentioned; other keys of the config, and the values that they must have too.
    """

    declared: int
    trained: int
    source: str
    doubt: JsonObject | None = None


class ConfigWriting(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How the RoPE of this family is written into a config.

    types: the rope types its stock class takes. nested: rope_parameters per layer type, under the
    names of `Layers.types`. rope_scaling: whether the class takes that key beside rope_parameters;
    if not, it is left out. legacy_keys: the only keys that its class accepts in `rope_scaling`, per
    type. keep: keys in the dictionary that belong to the architecture and not to a method.
    pinned_original: original_max_position_embeddings has another meaning as well and must not
    change. head_dim: whether the class takes an explicit head_dim. share_of: config keys; the first
    over the sum of all is written as partial_rotary_factor. longrope: where the class has the
    attention factor of longrope from: the keys of its dictionary, only the top-level
    original_max_position_embeddings, or only short_mscale and long_mscale, without which it fails.
    """

    types: tuple[RopeType, ...] = (
        "default",
        "linear",
        "dynamic",
        "yarn",
        "longrope",
        "llama3",
        "proportional",
    )
    nested: bool = False
    rope_scaling: bool = True
    legacy_keys: dict[str, tuple[str, ...]] = {}
    keep: tuple[str, ...] = ()
    pinned_original: bool = False
    head_dim: bool = True
    share_of: tuple[str, ...] = ()
    longrope: Literal["keys", "original", "mscale"] = "keys"


class FurtherNorm(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A norm of further queries or keys that are rotated as those of attention are.

    name: without .weight. kind: as in `Weights.norm`. side: which of both it makes, or "product"
    where the other side has none, so that it takes the factor of both. rows: whether the first or
    the last rotary_dim of them rotate.
    """

    name: str
    kind: Norm
    side: Literal["q", "k", "product"]
    rows: Literal["first", "last"] = "first"


class WeightNames(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Names of the tensors that make queries and keys, for folding factors into them and for
    measuring them.

    layer: prefixes of names, with {layer} for the number and {block} for that of the attention
    block in it. q, k: projections, without .weight. q_gate: the config key of the number of rows of
    an output gate, which follow the queries of each head in `q`. fused: one projection for queries,
    keys and values. fused_order: the order of their rows in it, behind a gate or not. q_norm,
    k_norm: norms of queries and keys. norm: their kind, and whether they come after the rotation.
    rows: whether the first or the last rotary_dim rows of a head rotate. bias: whether projections
    may have one. input: the kind of the norm before the projections, empty where there is none.
    keys_and_values: the second half of the rows of `k` makes values. input_norm: the name of the
    norm before the projections, the first that is there; its weights are 1 where none is.
    further_norms: those of further queries and keys, which an indexer rotates alike. fixed: why no
    factor can be folded into these tensors. unmeasured: why they do not give the variances of
    queries and keys.
    """

    layer: tuple[str, ...] = ("model.layers.{layer}.",)
    q: str = ""
    k: str = ""
    q_gate: str = ""
    fused: str = ""
    fused_order: Literal["", "blocks", "gate-and-blocks", "per-head", "per-group"] = ""
    q_norm: str = ""
    k_norm: str = ""
    norm: Norm = ""
    rows: Literal["first", "last"] = "first"
    bias: bool = False
    keys_and_values: bool = False
    input: InputNorm = "rms"
    input_norm: tuple[str, ...] = ("input_layernorm",)
    further_norms: tuple[FurtherNorm, ...] = ()
    fixed: str = ""
    unmeasured: str = ""


class Cache(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The contents of the key-value cache of this family's attention layers.

    global_heads: the config key of the number of heads of keys and values in global layers, and a
    switch of it. shared: the config key of the number of last layers that take keys and values from
    an earlier one, and its default. index_key: the config key of the width of the keys that an
    indexer keeps beside them; index_interval: without `indexer_types`, the first layer and every
    such one from the second on have an indexer. per_token: whether what they keep is a number per
    token.
    """

    global_heads: tuple[str, ...] = ()
    shared: tuple[str, int] = ("", 0)
    index_key: str = ""
    index_interval: int = 1
    per_token: bool = True


class Code(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Names of the family's classes in transformers, for the modelling file of the encoding
    `buffers`.

    prefix: of class names, such as Llama in LlamaModel; the module is named after the first model
    type. window: the Python expression with which its attention reads its sliding window.
    window_switch: the config key that turns the sliding window on.
    """

    prefix: str
    window: str = ""
    window_switch: str = ""


class Ministral3(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How this family's checkpoints load as Ministral 3, the class that scales queries by position.

    defaults: defaults of the family's own class that differ from those of Ministral 3. null: keys
    whose absence means null.
    """

    defaults: JsonObject
    null: tuple[str, ...] = ()


class FamilyHooks:
    """The usual behaviour, of which a subclass overrides what its family does differently.

    `part` is the text part of a config throughout.

    Attributes:
        keys: Config keys that the hooks read, with their types from `models.schema`.
        types_key: Config key of the list of layer types.
        blocks: Names of the attention blocks of a layer, in place of their numbers.
        no_attention_factor: Why only the attention factor 1 is possible; empty for families without
            that limit.
    """

    keys: ClassVar[Mapping[str, object]] = {}
    types_key: ClassVar[str] = "layer_types"
    blocks: ClassVar[tuple[str, ...]] = ()
    no_attention_factor: ClassVar[str] = ""

    def head_dim(self, hidden: int, heads: int) -> int:
        """Return the width of a head for a config that does not state it."""
        return hidden // heads

    def layer_names(self, part: JsonObject, layers: Layers, count: int) -> list[str] | None:
        """Return the layer types of a config that does not list them; None to derive them from
        `layers`.
        """
        return None

    def layer_kinds(self, part: JsonObject, kinds: tuple[Kind, ...]) -> tuple[Kind, ...]:
        """Return the kinds of the layers. kinds: by their types."""
        return kinds

    def window_size(self, part: JsonObject, size: int | None) -> int | None:
        """Return the tokens that a layer with a window sees. size: by the fields of the family."""
        return size

    def kv_heads(self, part: JsonObject, count: int, kind: Kind) -> int:
        """Return the number of heads of keys and values of a layer. count: as the config states
        it.
        """
        return count

    def value_width(self, part: JsonObject, width: int) -> int:
        """Return the width of a head of values. width: of a head of keys."""
        return width

    def runs(self, part: JsonObject, layer: int) -> int:
        """Return how often a layer runs in one forward pass. layer: its number, which counts
        attention blocks.
        """
        return 1

    def nope_query_scaling(self, part: JsonObject) -> QueryScaling | None:
        """Return the query scaling of the layers that do not rotate; None without one."""
        return None

    def gguf_variant(self, tensors: Collection[str]) -> tuple[tuple[str, ...], JsonObject]:
        """Return `Gguf.names` and `Gguf.config` that a GGUF file with these tensors has beside the
        usual ones.
        """
        return (), {}


@cache
def hooks_of(family: str) -> FamilyHooks:
    """Return the hooks of a family of the package by its name."""
    if not (Path(__file__).parent / "data" / f"{family}.py").is_file():
        return FamilyHooks()
    hooks: FamilyHooks = import_module(f"ropeconv.models.data.{family}").Hooks()
    return hooks


class Family(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A model family: the facts of one file in `data/`.

    model_types: values of `model_type` in configs. source: where its facts are stated. layout:
    pairs are (i, i + r/2) in "half", (2i, 2i + 1) in "interleaved". still_pairs: the slowest pairs
    of a head stand still by architecture, under rope_type proportional. mla: multi-head latent
    attention. rotates: config values without which a model has no rotary embedding. encoder: it
    reads in both directions and has no logits of the next token. halves: of a model with an encoder
    and a decoder, the keys of their configs, joined by dots where they are nested; the first is the
    one that is read, all must have the same RoPE, and all are written alike. refuse: why nothing
    can be baked for it, or empty. no_gguf: why its checkpoints do not become GGUF, or empty. since:
    per runtime, the first version that loads it. gguf, code, ministral3: None where that kind of
    output is not known for it. origin: the file of a user that it is from, empty for those of the
    package. assumed: a model type that `--family` says is of this family, the last of model_types;
    no file sets either of them.
    """

    name: str
    display_name: str
    model_types: tuple[str, ...]
    source: str
    layout: Literal["half", "interleaved"] = "half"
    still_pairs: bool = False
    mla: bool = False
    rotates: tuple[Need, ...] = ()
    encoder: bool = False
    halves: tuple[str, ...] = ()
    refuse: str = ""
    no_gguf: str = ""
    since: dict[str, str] = {}
    keys: ConfigKeys = ConfigKeys()
    defaults: Defaults = Defaults()
    layers: Layers = Layers()
    window: WindowRule = WindowRule()
    trained: tuple[TrainedContext, ...] = ()
    writing: ConfigWriting = ConfigWriting()
    weights: WeightNames = WeightNames()
    cache: Cache = Cache()
    gguf: Gguf | None = None
    code: Code | None = None
    ministral3: Ministral3 | None = None
    origin: str = ""
    assumed: str = ""

    @property
    def hooks(self) -> FamilyHooks:
        """Behaviour that differs from all other families; a user's file cannot have any."""
        return hooks_of("" if self.origin else self.name)

    @property
    def text_type(self) -> str:
        """The model type of its text model, with which transformers loads a config that it does not
        know by name.
        """
        return next(
            (name for name in self.model_types if name.endswith("_text")), self.model_types[0]
        )
