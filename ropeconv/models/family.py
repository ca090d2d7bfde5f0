"""The schema of `data/*.toml`, one file per model family, and FamilyHooks.

`Family` is the whole file; read it first. The class `Hooks` in `data/NAME.py` has the behaviour of
the family NAME that no field describes. Other families have the behaviour of FamilyHooks.
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

    A config may list the type of each layer. Without that list, `indices`, `pattern` and
    `interval` say which layers are `last`; the others are `rest`.
    """

    types: dict[str, Kind] = {}
    """The kind of layer for each name in the list of layer types."""

    interval: int = 0
    """One layer in so many is `last`; 0 where all are."""

    interval_key: str = ""
    """The config key that sets `interval`."""

    last: str = "full_attention"
    """The type of the final layer of each interval."""

    rest: str = "sliding_attention"
    """The type of the other layers."""

    leading: bool = False
    """The first layer of each interval is `last`, not its final one."""

    indices: str = ""
    """The key of a list with the numbers of the layers that are `last`."""

    pattern: tuple[str, ...] = ()
    """Types that repeat, where the list of layer types is absent."""

    first: str = ""
    """The type of the first layer, where it differs."""

    final: str = ""
    """The type of the last layer, where it differs."""

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
    """The config key of the size in tokens, where null means none; empty without windows."""

    default: int | None = None
    """The size in the stock class."""

    switch: str = ""
    """A config key that must be true."""

    layers: Literal["all", "named", "rotating", "not-rotating"] = "named"
    """Which layers have the window.

    All, those that rotate, those that do not, or those that `layer_types` names so.
    """

    first_key: str = ""
    """Without `layer_types`, a config key with the number of the first layer that has it."""

    first: int = 0
    """The default of that number."""

    divided_by: int = 1
    """The divisor of the size (ModernBERT counts both sides)."""

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
    """How tensors of a checkpoint are changed.

    Rules are applied in their order, each to the tensors that those before it left.
    """

    match: str
    """A regular expression that is searched in the names."""

    how: str = "rename"
    """Name of a conversion in `to_gguf/conversions.py`."""

    names: tuple[str, ...] = ()
    """The names that replace the matched part, one for each tensor that comes out."""

    times: tuple[str, ...] = ()
    """Config keys of factors that the tensor is multiplied by; KEY.N for the N-th of a list."""

    when: str = ""
    """The rule is for models in whose config this key is neither absent nor 0; empty for all."""

    unless: str = ""
    """The rule is for models in whose config this key is absent or 0; empty for all."""

    unless_columns: str = ""
    """A config key; a tensor with so many columns is only renamed, since it needs no change."""


class Gguf(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How this family's checkpoints become GGUF."""

    arch: str
    """The value of general.architecture."""

    like: tuple[str, ...] = ()
    """Architectures that have its tensors, for those that the released gguf-py does not know."""

    u32: dict[str, str] = {}
    """Metadata keys of integers, and the expressions of config keys that give them.

    `to_gguf/hparams.py` reads them; absent or null ones are left out.
    """

    f32: dict[str, str] = msgspec.field(
        default_factory=lambda: {"attention.layer_norm_rms_epsilon": "rms_norm_eps"}
    )
    """The same for floats."""

    flag: dict[str, str] = {}
    """The same for booleans."""

    fixed: dict[str, int | float | bool | str | list[int]] = {}
    """Metadata keys with fixed values."""

    layer_flags: dict[str, str] = {}
    """Metadata keys with a boolean for each layer, and the layer type for which it is true."""

    computed: dict[str, str] = {}
    """Metadata keys, and the functions in `to_gguf/hparams.py` that give them."""

    scalars: dict[str, tuple[str, tuple[int, ...]]] = {}
    """Metadata keys that are lists, and the tensors of each layer with their single numbers.

    The second value is the shape of such a tensor.
    """

    defaults: JsonObject = {}
    """Defaults of the class for config keys that are absent."""

    convert: tuple[Convert, ...] = ()
    """Changes of tensors, in their order."""

    tied: bool = False
    """The architecture has no output weights."""

    projection: bool = False
    """Whether projections of embeddings (`2_Dense` and `3_Dense`) are written."""

    copy_output: bool = False
    """The architecture needs output weights, so that those of tied models are written twice."""

    stacked: dict[str, str] = {}
    """Prefixes of numbered tensors that become one, and the name of that one."""

    skip: str = ""
    """A regular expression of tensors that llama.cpp computes without."""

    need: tuple[Need, ...] = ()
    """Values that llama.cpp assumes."""

    act: str = "silu"
    """The activations that llama.cpp computes, empty where it is not checked."""

    act_key: str = "hidden_act"
    """The config key that names the activation."""

    scale_layers: int = 0
    """The number of layers with which llama.cpp scales queries by 1/sqrt(hidden_size / heads).

    Otherwise it scales them by 1/sqrt(head_dim).
    """

    window: Literal["", "pattern", "interval", "size"] = ""
    """Whether attention.sliding_window is written, and with which other keys.

    With a flag for each layer ("pattern"), with the interval of layers without a window where
    config.json states one ("interval"), or with no other key ("size").
    """

    global_first: bool = False
    """The first layer must have no window: llama.cpp rotates as many dimensions as it has."""

    pre: dict[str, str] = {}
    """Names of pre-tokenizers that replace the usual ones."""

    tokenizer: dict[str, bool] = {}
    """Keys behind tokenizer.ggml. with their values, where the files of the tokenizer have none."""

    special: dict[str, str | int] = {}
    """Special tokens that llama.cpp's converter names for this architecture, where no file does.

    Texts of added tokens, or ids, such as { eot = "<|user|>" }; those that a vocabulary lacks are
    left out.
    """

    turn_end: bool = False
    """The second id in a list `eos_token_id` of config.json ends a turn (`eot`)."""

    names: tuple[str, ...] = ()
    """Names of tensors that are not those of Llama or Gemma, with {layer} for the number."""

    present: dict[str, str] = {}
    """Config switches, and the part of a tensor's name with which they are on."""

    prediction: bool = False
    """Whether layers that predict further tokens are kept behind the others, else left out."""

    config: JsonObject = {}
    """Settings that no GGUF key has, and that the conversion back to a checkpoint needs."""

    absent: JsonObject = {}
    """Config values for files without the key that they come from, "none" for null.

    Values of `fixed` are here where a file may lack them; it must have all other keys of `u32` and
    `fixed`.
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
    """The key of a list with the base of each layer, which counts in place of `theta`.

    Its entry is 0 for a layer that does not rotate.
    """

    unread_theta: tuple[str, ...] = ()
    """Names under which publishers write the base too, and which the class ignores."""

    local_theta: tuple[str, ...] = ()
    partial: tuple[str, ...] = ()
    unread_partial: tuple[str, ...] = ()
    """The same for the share of a head."""

    rotary_dim: tuple[str, ...] = ()
    head_dim: tuple[str, ...] = ("head_dim",)
    local_head_dim: tuple[str, ...] = ()
    """Width of a head in local layers, empty where it is the same as in the others."""

    hidden: tuple[str, ...] = ("hidden_size",)
    heads: tuple[str, ...] = ("num_attention_heads",)
    kv_heads: tuple[str, ...] = ("num_key_value_heads",)
    layers: tuple[str, ...] = ("num_hidden_layers",)
    context: tuple[str, ...] = ("max_position_embeddings",)
    query_beta: str = ""
    """In the RoPE dictionary, beta of a query scale `1 + beta ln(1 + floor(p / L))`.

    p is the position, and L the original context.
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
    """The share of a head that rotates in local layers, None where it is the same as in others."""

    unstated_partial: float | None = None
    """The share for a RoPE dictionary that does not state one, None where it is the default."""

    unstated_theta: float | None = None
    """The base for a RoPE dictionary that does not state one, None where it is the default."""

    original_context: int | None = None
    """original_max_position_embeddings of a class that has it at the top level of its config.

    It counts before the one in the RoPE dictionary, also where the config has none.
    """

    scaling: JsonObject | None = None


class TrainedContext(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A context that configs declare and that is not the trained one."""

    declared: int
    """In tokens."""

    trained: int
    """In tokens."""

    source: str
    """The place where the trained one is stated."""

    doubt: JsonObject | None = None
    """Other keys of the config and the values that they must have too; None for none.

    Where this is given, the trained context is uncertain and only mentioned.
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
    """Whether there are rope_parameters per layer type, under the names of `Layers.types`."""

    rope_scaling: bool = True
    """Whether the class takes that key beside rope_parameters."""

    legacy_keys: dict[str, tuple[str, ...]] = {}
    """The only keys that its class accepts in `rope_scaling`, per type."""

    keep: tuple[str, ...] = ()
    """Keys in the dictionary that belong to the architecture and not to a method."""

    pinned_original: bool = False
    """Whether original_max_position_embeddings means something else too and must not change."""

    head_dim: bool = True
    """Whether the class takes an explicit head_dim."""

    share_of: tuple[str, ...] = ()
    """Config keys; the first over the sum of all is written as partial_rotary_factor."""

    longrope: Literal["keys", "original", "mscale"] = "keys"
    """The source of the attention factor of longrope in the class.

    The keys of its dictionary, only the top-level original_max_position_embeddings, or only
    short_mscale and long_mscale, without which it fails.
    """


class FurtherNorm(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A norm of further queries or keys that are rotated as those of attention are."""

    name: str
    """The name of the tensor without `.weight`."""

    kind: Norm
    """As in `WeightNames.norm`."""

    side: Literal["q", "k", "product"]
    """The side that it makes; "product" where the other side has no norm.

    Such a norm takes the factors of both.
    """

    rows: Literal["first", "last"] = "first"
    """Which rotary_dim of its rows rotate."""


class WeightNames(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Names of the tensors that make queries and keys.

    Factors are folded into these tensors, and their variances are measured.
    """

    layer: tuple[str, ...] = ("model.layers.{layer}.",)
    """Prefixes of names, with {layer} for the number and {block} for an attention block in it."""

    q: str = ""
    """The projection of queries, without `.weight`."""

    k: str = ""
    """The projection of keys, without `.weight`."""

    q_gate: str = ""
    """The config key of the number of rows of an output gate behind the queries of each head."""

    fused: str = ""
    """One projection for queries, keys and values."""

    fused_order: Literal["", "blocks", "gate-and-blocks", "per-head", "per-group"] = ""
    """The order of the rows of `fused`, behind a gate or not."""

    q_norm: str = ""
    """The norm of queries."""

    k_norm: str = ""
    """The norm of keys."""

    norm: Norm = ""
    """The kind of both norms, and whether they come after the rotation."""

    rows: Literal["first", "last"] = "first"
    """Which rotary_dim rows of a head rotate."""

    bias: bool = False
    """Whether projections may have a bias."""

    keys_and_values: bool = False
    """Whether the second half of the rows of `k` makes values."""

    input: InputNorm = "rms"
    """The kind of the norm before the projections, empty where there is none."""

    input_norm: tuple[str, ...] = ("input_layernorm",)
    """Names of the norm before the projections, of which the first that exists counts.

    Its weights are 1 where none exists.
    """

    further_norms: tuple[FurtherNorm, ...] = ()
    """Norms of further queries and keys, which an indexer rotates alike."""

    fixed: str = ""
    """Why no factor can be folded into these tensors."""

    @property
    def queries(self) -> str:
        """The end of the name of the last module that outputs queries before the rotation."""
        return self.q_norm or self.q

    unmeasured: str = ""
    """Why these tensors do not give the variances of queries and keys."""


class Cache(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The contents of the key-value cache of this family's attention layers."""

    global_heads: tuple[str, ...] = ()
    """The config key of the number of key heads in global layers, and switches that turn it on."""

    shared: tuple[str, int] = ("", 0)
    """The config key of the number of last layers that take keys and values from an earlier one.

    The second value is its default.
    """

    index_key: str = ""
    """The config key of the width of the keys that an indexer keeps beside them."""

    index_interval: int = 1
    """Without `indexer_types`, the first layer and every such one from the second have it."""

    per_token: bool = True
    """Whether these layers keep numbers per token."""


class Code(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Names of classes in transformers, for the modelling file of the encoding `buffers`."""

    prefix: str
    """The beginning of class names, such as Llama in LlamaModel.

    The module is named after the first model type.
    """

    window: str = ""
    """The Python expression with which its attention reads its sliding window."""

    window_switch: str = ""
    """The config key that turns the sliding window on."""


class Ministral3(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How checkpoints load as Ministral 3, the class that scales queries by position."""

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
        attention_factor: The factor on cos and sin whatever a config says; None where it follows
            from the config.
        no_attention_factor: Why only the attention factor 1 is possible; empty for families without
            that limit.
    """

    keys: ClassVar[Mapping[str, object]] = {}
    types_key: ClassVar[str] = "layer_types"
    blocks: ClassVar[tuple[str, ...]] = ()
    attention_factor: ClassVar[float | None] = None
    no_attention_factor: ClassVar[str] = ""

    def refusal(self, part: JsonObject) -> str:
        """Return why nothing can be baked for a config that its keys show; else empty."""
        return ""

    def head_dim(self, hidden: int, heads: int) -> int:
        """Return the width of a head for a config that does not state it."""
        return hidden // heads

    def layer_names(self, part: JsonObject, layers: Layers, count: int) -> list[str] | None:
        """Return the layer types of a config that does not list them; None to go by `layers`."""
        return None

    def layer_kinds(self, part: JsonObject, kinds: tuple[Kind, ...]) -> tuple[Kind, ...]:
        """Return the kinds of the layers; `kinds` are those by their types."""
        return kinds

    def window_size(self, part: JsonObject, size: int | None) -> int | None:
        """Return the tokens that a layer with a window sees; `size` is by the family's fields."""
        return size

    def kv_heads(self, part: JsonObject, count: int, kind: Kind) -> int:
        """Return the number of heads of keys and values; `count` is as the config states it."""
        return count

    def kv_heads_by_layer(self, part: JsonObject, heads: int) -> list[int] | None:
        """Return the heads of keys of each layer, 0 without attention; None for `kv_heads`.

        `heads` is the number of heads of queries.
        """
        return None

    def value_width(self, part: JsonObject, width: int) -> int:
        """Return the width of a head of values; `width` is that of a head of keys."""
        return width

    def runs(self, part: JsonObject, layer: int) -> int:
        """Return how often a layer runs in one forward pass; `layer` counts attention blocks."""
        return 1

    def nope_query_scaling(self, part: JsonObject) -> QueryScaling | None:
        """Return the query scaling of the layers that do not rotate; None without one."""
        return None

    def gguf_kind(self, part: JsonObject) -> str:
        """Return the entry of `gguf_kinds` by which a model becomes GGUF; empty for `gguf`."""
        return ""

    def gguf_variant(self, tensors: Collection[str]) -> tuple[tuple[str, ...], JsonObject]:
        """Return further `Gguf.names` and `Gguf.config` for a GGUF file with these tensors."""
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
    """The name for `--family` and in messages, as in the name of the file."""

    display_name: str
    """The name of the models, as in "Llama 3"."""

    model_types: tuple[str, ...]
    """Values of `model_type` in configs."""

    source: str
    """Where its facts are stated."""

    layout: Literal["half", "interleaved"] = "half"
    """Pairs are (i, i + r/2) in "half", (2i, 2i + 1) in "interleaved"."""

    still_pairs: bool = False
    """The slowest pairs of a head stand still by architecture, under rope_type proportional."""

    mla: bool = False
    """Whether it has multi-head latent attention."""

    rotates: tuple[Need, ...] = ()
    """Config values without which a model has no rotary embedding."""

    encoder: bool = False
    """Whether it reads in both directions and has no logits of the next token."""

    halves: tuple[str, ...] = ()
    """For a model with an encoder and a decoder, the keys of their configs; the first is read.

    Dots join nested keys. All halves must have the same RoPE, and all are written alike.
    """

    refuse: str = ""
    """Why nothing can be baked for it, or empty."""

    gguf_only: bool = False
    """Whether `refuse` does not hold for GGUF files, which code of the model does not read."""

    converter_keys: dict[str, str] = {}
    """Config keys that llama.cpp's converter reads and published configs lack, with those that have
    the value there.
    """

    no_gguf: str = ""
    """Why its checkpoints do not become GGUF, or empty."""

    since: dict[str, str] = {}
    """The first version of each runtime that loads it."""

    keys: ConfigKeys = ConfigKeys()
    defaults: Defaults = Defaults()
    layers: Layers = Layers()
    window: WindowRule = WindowRule()
    trained: tuple[TrainedContext, ...] = ()
    writing: ConfigWriting = ConfigWriting()
    weights: WeightNames = WeightNames()
    cache: Cache = Cache()
    gguf: Gguf | None = None
    """How it becomes GGUF; None where that is not known."""

    gguf_kinds: dict[str, Gguf] = {}
    """How models of another GGUF architecture become GGUF, by the name of `hooks.gguf_kind`.

    `detect` puts the right one into `gguf`.
    """

    code: Code | None = None
    """The classes of the encoding `buffers`; None where they are not known."""

    ministral3: Ministral3 | None = None
    """How it loads as Ministral 3; None where it does not."""

    origin: str = ""
    """The file of a user that describes it, empty for those of the package; no file sets it."""

    assumed: str = ""
    """A model type that `--family` says is of this family, the last of `model_types`.

    No file sets it.
    """

    derived: str = ""
    """The class that was run to derive it, and its version; empty for a family of a file."""

    not_derived: tuple[str, ...] = ()
    """Facts that this class did not show."""

    @property
    def hooks(self) -> FamilyHooks:
        """Behaviour that differs from all other families; a user's file cannot have any."""
        return hooks_of("" if self.origin else self.name)

    @property
    def text_type(self) -> str:
        """The model type of its text model, as which transformers loads a config of other types."""
        for name in self.model_types:
            if name.endswith("_text"):
                return name
        return self.model_types[0]
