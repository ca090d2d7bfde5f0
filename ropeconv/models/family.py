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
    """Which layers rotate, and with which frequencies."""

    types: dict[str, Kind] = {}
    """The kind of layer for each name in the list of layer types. Without that list every
    `interval`-th layer is `last` and the others are `rest`; with `leading` the first layer of each
    interval is `last`, not its final one.
    """

    interval: int = 0
    interval_key: str = ""
    """The config key that sets `interval`."""

    last: str = "full_attention"
    rest: str = "sliding_attention"
    leading: bool = False
    indices: str = ""
    """The key of a list with the numbers of the layers that are `last`."""

    pattern: tuple[str, ...] = ()
    """Names that repeat, where that is not there."""

    first: str = ""
    """The first and the last layer, where they differ."""

    final: str = ""
    """The first and the last layer, where they differ."""

    flags: str = ""
    """The key of a list whose entry is not 0 where the layer rotates (SmolLM3's no_rope_layers)."""

    one_kind_without_window: bool = False
    """A model without a window has only global layers."""

    backward: bool = False
    """Intervals and patterns count from the last layer."""

    blocks: int = 1
    """Attention blocks in each numbered layer, which count as that many layers."""

    null_is_none: bool = False
    """Layers of a type whose settings are null do not rotate."""


class WindowRule(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The sliding window or chunk in which some layers see."""

    key: str = ""
    """The config key of its size in tokens, where null means none; empty for families without
    windows.
    """

    default: int | None = None
    """That of the stock class."""

    switch: str = ""
    """A config key that must be true."""

    layers: Literal["all", "named", "rotating", "not-rotating"] = "named"
    """Which of them have it: all, those that rotate, those that do not, or those that `layer_types`
    names so.
    """

    first_key: str = ""
    """Without that list, a config key with the number of the first such layer, and its default."""

    first: int = 0
    """Without that list, a config key with the number of the first such layer, and its default."""

    divided_by: int = 1
    """what the size is divided by (ModernBERT counts both sides)."""

    @property
    def chunked(self) -> bool:
        """Whether the context is cut into chunks (Llama 4)."""
        return self.key == "attention_chunk_size"


class Need(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A config key that must have a certain value, which a reader assumes."""

    key: str
    value: Any
    default: Any = None
    """The class default where the key is absent."""

    below_layers: int = 0
    """Checked only for models with fewer layers than this, 0 for all."""

    when: str = ""
    """Checked only where this config key is true, empty for always."""


class Convert(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How tensors of a checkpoint are changed. Rules are applied in their order, each to what those
    before it left.
    """

    match: str
    """A regular expression that is searched in the names."""

    how: str = "rename"
    """Name of a conversion in `to_gguf/conversions.py`."""

    names: tuple[str, ...] = ()
    """what replaces the matched part, for each tensor that comes out."""

    times: tuple[str, ...] = ()
    """Config keys of factors that it is multiplied by; KEY.N for the N-th of a list."""


class Gguf(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How this family's checkpoints become GGUF."""

    arch: str
    """The value of general.architecture."""

    u32: dict[str, str] = {}
    """Metadata keys, and the expressions of config keys that they come from (`to_gguf/hparams.py`);
    absent or null ones are left out.
    """

    f32: dict[str, str] = msgspec.field(
        default_factory=lambda: {"attention.layer_norm_rms_epsilon": "rms_norm_eps"}
    )
    """Metadata keys, and the expressions of config keys that they come from (`to_gguf/hparams.py`);
    absent or null ones are left out.
    """

    flag: dict[str, str] = {}
    """Metadata keys, and the expressions of config keys that they come from (`to_gguf/hparams.py`);
    absent or null ones are left out.
    """

    fixed: dict[str, int | float | bool | str | list[int]] = {}
    """Metadata keys with fixed values."""

    layer_flags: dict[str, str] = {}
    """Metadata keys that say of every layer whether it is of a type."""

    computed: dict[str, str] = {}
    """Metadata keys, and the functions in `to_gguf/hparams.py` that give them."""

    scalars: dict[str, tuple[str, tuple[int, ...]]] = {}
    """Metadata keys that are lists, and the tensors of each layer that have their single numbers,
    each with its shape.
    """

    defaults: JsonObject = {}
    """of the class, for config keys that are absent."""

    convert: tuple[Convert, ...] = ()
    """what happens to tensors."""

    tied: bool = False
    """The architecture has no output weights."""

    copy_output: bool = False
    """It needs them, so that those of tied models are written twice."""

    stacked: dict[str, str] = {}
    """Prefixes of numbered tensors that become one, and the name of that one."""

    skip: str = ""
    """A regular expression of tensors that llama.cpp computes without."""

    need: tuple[Need, ...] = ()
    """Values that llama.cpp assumes."""

    act: str = "silu"
    """The activations that llama.cpp computes, empty where it is not checked, and act_key: the
    config key that says which.
    """

    act_key: str = "hidden_act"
    scale_layers: int = 0
    """llama.cpp scales queries by 1/sqrt(head_dim), and with this many layers by 1/sqrt(hidden_size
    / heads).
    """

    window: Literal["", "pattern", "size"] = ""
    """Whether attention.sliding_window is written, with the pattern of layers or without."""

    pre: dict[str, str] = {}
    """Names of pre-tokenizers that replace the usual ones."""

    names: tuple[str, ...] = ()
    """Names of tensors that are not those of Llama or Gemma, with {layer} for the number."""

    present: dict[str, str] = {}
    """Config switches, and the part of a tensor's name with which they are on."""

    prediction: bool = False
    """Layers that predict further tokens are kept behind the others; they are left out else."""

    config: JsonObject = {}
    """Settings that no GGUF key has, for the conversion back to a checkpoint, which needs them."""

    absent: JsonObject = {}
    """Config values where a file lacks the key that they come from, "none" for null, and values of
    `fixed` that it may lack; it must have all other keys of u32 and fixed.
    """

    idle: dict[str, int] = {}
    """Metadata keys that change nothing with this value, which exports leave out."""


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
    """The keys of config.json for each quantity; the first that is present counts."""

    theta: tuple[str, ...] = ("rope_theta",)
    layer_theta: str = ""
    """A list with the base of each layer, which counts in place of `theta`; 0 for a layer that does
    not rotate.
    """

    local_theta: tuple[str, ...] = ()
    partial: tuple[str, ...] = ()
    rotary_dim: tuple[str, ...] = ()
    head_dim: tuple[str, ...] = ("head_dim",)
    local_head_dim: tuple[str, ...] = ()
    """Width of a head in local layers, empty where it is that of the others."""

    hidden: tuple[str, ...] = ("hidden_size",)
    heads: tuple[str, ...] = ("num_attention_heads",)
    kv_heads: tuple[str, ...] = ("num_key_value_heads",)
    layers: tuple[str, ...] = ("num_hidden_layers",)
    context: tuple[str, ...] = ("max_position_embeddings",)
    query_beta: str = ""
    """In the RoPE dictionary, the slope of a query scale `1 + beta ln(1 + floor(p / original
    context))`.
    """


class Defaults(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The defaults of the stock class for keys that are absent from a config."""

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
    """The share of a head that rotates in local layers, None where it is that of the others."""

    unstated_partial: float | None = None
    """That of a RoPE dictionary which does not state it, None where it is the default all the same.
    """

    scaling: JsonObject | None = None


class TrainedContext(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A context that configs declare and that is not the trained one. Both in tokens."""

    declared: int
    trained: int
    source: str
    """Where the trained one is stated."""

    doubt: JsonObject | None = None
    """Not None where that is uncertain, so that it is only mentioned; other keys of the config, and
    the values that they must have too.
    """


class ConfigWriting(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How the RoPE of this family is written into a config."""

    types: tuple[RopeType, ...] = (
        "default",
        "linear",
        "dynamic",
        "yarn",
        "longrope",
        "llama3",
        "proportional",
    )
    """The rope types its stock class takes."""

    nested: bool = False
    """rope_parameters per layer type, under the names of `Layers.types`."""

    rope_scaling: bool = True
    """Whether the class takes that key beside rope_parameters; if not, it is left out."""

    legacy_keys: dict[str, tuple[str, ...]] = {}
    """The only keys that its class accepts in `rope_scaling`, per type."""

    keep: tuple[str, ...] = ()
    """Keys in the dictionary that belong to the architecture and not to a method."""

    pinned_original: bool = False
    """original_max_position_embeddings has another meaning as well and must not change."""

    head_dim: bool = True
    """Whether the class takes an explicit head_dim."""

    share_of: tuple[str, ...] = ()
    """Config keys; the first over the sum of all is written as partial_rotary_factor."""

    longrope: Literal["keys", "original", "mscale"] = "keys"
    """Where the class has the attention factor of longrope from: the keys of its dictionary, only
    the top-level original_max_position_embeddings, or only short_mscale and long_mscale, without
    which it fails.
    """


class FurtherNorm(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A norm of further queries or keys that are rotated as those of attention are."""

    name: str
    """Without .weight."""

    kind: Norm
    """As in `Weights.norm`."""

    side: Literal["q", "k", "product"]
    """Which of both it makes, or "product" where the other side has none, so that it takes the
    factor of both.
    """

    rows: Literal["first", "last"] = "first"
    """Whether the first or the last rotary_dim of them rotate."""


class WeightNames(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Names of the tensors that make queries and keys, for folding factors into them and for
    measuring them.
    """

    layer: tuple[str, ...] = ("model.layers.{layer}.",)
    """Prefixes of names, with {layer} for the number and {block} for that of the attention block in
    it.
    """

    q: str = ""
    """Projections, without .weight."""

    k: str = ""
    """Projections, without .weight."""

    q_gate: str = ""
    """The config key of the number of rows of an output gate, which follow the queries of each head
    in `q`.
    """

    fused: str = ""
    """One projection for queries, keys and values."""

    fused_order: Literal["", "blocks", "gate-and-blocks", "per-head", "per-group"] = ""
    """The order of their rows in it, behind a gate or not."""

    q_norm: str = ""
    """Norms of queries and keys."""

    k_norm: str = ""
    """Norms of queries and keys."""

    norm: Norm = ""
    """Their kind, and whether they come after the rotation."""

    rows: Literal["first", "last"] = "first"
    """Whether the first or the last rotary_dim rows of a head rotate."""

    bias: bool = False
    """Whether projections may have one."""

    keys_and_values: bool = False
    """The second half of the rows of `k` makes values."""

    input: InputNorm = "rms"
    """The kind of the norm before the projections, empty where there is none."""

    input_norm: tuple[str, ...] = ("input_layernorm",)
    """The name of the norm before the projections, the first that is there; its weights are 1 where
    none is.
    """

    further_norms: tuple[FurtherNorm, ...] = ()
    """Those of further queries and keys, which an indexer rotates alike."""

    fixed: str = ""
    """Why no factor can be folded into these tensors."""

    unmeasured: str = ""
    """Why they do not give the variances of queries and keys."""


class Cache(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The contents of the key-value cache of this family's attention layers."""

    global_heads: tuple[str, ...] = ()
    """The config key of the number of heads of keys and values in global layers, and a switch of
    it.
    """

    shared: tuple[str, int] = ("", 0)
    """The config key of the number of last layers that take keys and values from an earlier one,
    and its default.
    """

    index_key: str = ""
    """The config key of the width of the keys that an indexer keeps beside them;."""

    index_interval: int = 1
    """Without `indexer_types`, the first layer and every such one from the second on have an
    indexer.
    """

    per_token: bool = True
    """Whether what they keep is a number per token."""


class Code(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Names of the family's classes in transformers, for the modelling file of the encoding
    `buffers`.
    """

    prefix: str
    """of class names, such as Llama in LlamaModel; the module is named after the first model type.
    """

    window: str = ""
    """The Python expression with which its attention reads its sliding window."""

    window_switch: str = ""
    """The config key that turns the sliding window on."""


class Ministral3(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How checkpoints of this family load as Ministral 3, whose class scales queries by position."""

    defaults: JsonObject
    """Defaults of the family's own class that differ from those of Ministral 3."""

    null: tuple[str, ...] = ()
    """Keys whose absence means null."""


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
        """Return the kinds of the layers.

        Args:
            kinds: By their types.
        """
        return kinds

    def window_size(self, part: JsonObject, size: int | None) -> int | None:
        """Return the tokens that a layer with a window sees.

        Args:
            size: By the fields of the family.
        """
        return size

    def kv_heads(self, part: JsonObject, count: int, kind: Kind) -> int:
        """Return the number of heads of keys and values of a layer.

        Args:
            count: As the config states it.
        """
        return count

    def value_width(self, part: JsonObject, width: int) -> int:
        """Return the width of a head of values.

        Args:
            width: of a head of keys.
        """
        return width

    def runs(self, part: JsonObject, layer: int) -> int:
        """Return how often a layer runs in one forward pass.

        Args:
            layer: Its number, which counts attention blocks.
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
    """A model family: the facts of one file in `data/`."""

    name: str
    display_name: str
    model_types: tuple[str, ...]
    """Values of `model_type` in configs."""

    source: str
    """Where its facts are stated."""

    layout: Literal["half", "interleaved"] = "half"
    """Pairs are (i, i + r/2) in "half", (2i, 2i + 1) in "interleaved"."""

    still_pairs: bool = False
    """The slowest pairs of a head stand still by architecture, under rope_type proportional."""

    mla: bool = False
    """multi-head latent attention."""

    rotates: tuple[Need, ...] = ()
    """Config values without which a model has no rotary embedding."""

    encoder: bool = False
    """It reads in both directions and has no logits of the next token."""

    halves: tuple[str, ...] = ()
    """of a model with an encoder and a decoder, the keys of their configs, joined by dots where
    they are nested; the first is the one that is read, all must have the same RoPE, and all are
    written alike.
    """

    refuse: str = ""
    """Why nothing can be baked for it, or empty."""

    no_gguf: str = ""
    """Why its checkpoints do not become GGUF, or empty."""

    since: dict[str, str] = {}
    """Per runtime, the first version that loads it."""

    keys: ConfigKeys = ConfigKeys()
    defaults: Defaults = Defaults()
    layers: Layers = Layers()
    window: WindowRule = WindowRule()
    trained: tuple[TrainedContext, ...] = ()
    writing: ConfigWriting = ConfigWriting()
    weights: WeightNames = WeightNames()
    cache: Cache = Cache()
    gguf: Gguf | None = None
    """None where that kind of output is not known for it."""

    code: Code | None = None
    """None where that kind of output is not known for it."""

    ministral3: Ministral3 | None = None
    """None where that kind of output is not known for it."""

    origin: str = ""
    """The file of a user that it is from, empty for those of the package."""

    assumed: str = ""
    """A model type that `--family` says is of this family, the last of model_types; no file sets
    either of them.
    """

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
