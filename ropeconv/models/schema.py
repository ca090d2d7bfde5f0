"""The types and ranges of the keys of config.json that are read, checked before anything else."""

import math
import re
from collections.abc import Iterable, Mapping
from contextlib import suppress
from functools import cache
from typing import Annotated, Any

import msgspec
from msgspec import Meta

from ..errors import BadSource
from ..formats.jsontext import JsonObject
from ..rope.errors import shown
from ..rope.lengths import MOST_TOKENS
from ..rope.spec import MOST_LAYERS, WIDEST_HEAD
from .family import Family
from .parts import text_path

Config = JsonObject


def first_present(part: Config, keys: Iterable[str], default: object = None) -> Any:
    """Return the value of the first key that is present and not null; a dot joins nested keys."""
    for key in keys:
        value: Any = part
        for name in key.split("."):
            value = value.get(name) if isinstance(value, dict) else None
        if value is not None:
            return value
    return default


def text_config(config: Config) -> Config | None:
    """Return the part of a config that is its language model; None where it is one itself.

    It is the `text_config`, or what has the structure of a language model elsewhere (`text_path`).
    """
    path = text_path(config)
    if not path:
        return None
    part: Config = config
    for key in path:
        part = part[key]
    return part


def is_null(settings: Config, key: str) -> bool:
    """Return whether a config has a key whose value is null."""
    return key in settings and settings[key] is None


def positive_int(
    part: Config, keys: tuple[str, ...], default: int | None = None, least: int = 1
) -> int | None:
    """Return the value of the first of some keys that a config has, a whole number.

    {"n_head": 12} with the keys ("num_attention_heads", "n_head") gives 12. Without any of the keys
    it is `default`.

    Raises:
        BadSource: For a value that is not a whole number, or is below `least`.
    """
    value = first_present(part, keys, default)
    if value is None:
        return None
    if not _is_whole(value) or value < least:
        kind = "positive whole number" if least else "whole number"
        raise BadSource(f"config.json has {keys[0]} = {shown(value)}; write a {kind} there")
    return int(value)


def _is_whole(value: object) -> bool:
    """Whether a value of JSON is a whole number, which may be written as 4096.0."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return False
    return math.isfinite(value) and value == int(value)


LARGEST = 1e30
"""A bound on every other number, so that their products stay within float64."""
LARGEST_SIZE = 1 << 31
"""A bound on sizes of tensors: runtimes count them in 32 bits."""
LARGEST_DIVISOR = 3.5e38
"""A bound on the numbers that divide frequencies, which runtimes keep in float32."""
MOST_SECTIONS = 64
"""A bound on the sections of a multimodal RoPE: published models have three or four."""

Name = str
Object = JsonObject
Flag = bool
Switch = bool | int
"""Any number but 0 is true: the first release of Llama 4 has `attn_temperature_tuning` = 4."""
Names = Annotated[list[str | None], Meta(max_length=MOST_LAYERS)]
Numbers = Annotated[list[Annotated[int, Meta(ge=0, le=MOST_LAYERS)]], Meta(max_length=MOST_LAYERS)]
Flags = Annotated[list[bool | float | None], Meta(max_length=MOST_LAYERS)]
Layers = Annotated[float, Meta(ge=1, le=MOST_LAYERS, multiple_of=1)]
Width = Annotated[float, Meta(ge=1, le=WIDEST_HEAD, multiple_of=1)]
Size = Annotated[float, Meta(ge=1, le=LARGEST_SIZE, multiple_of=1)]
Index = Annotated[float, Meta(ge=0, le=LARGEST_SIZE, multiple_of=1)]
Sizes = Size | Annotated[list[Size], Meta(max_length=MOST_LAYERS)]
Interval = (
    Annotated[float, Meta(ge=0, le=MOST_LAYERS, multiple_of=1)]
    | Annotated[str, Meta(max_length=MOST_LAYERS)]
)
Tokens = Annotated[float, Meta(ge=1, le=MOST_TOKENS, multiple_of=1)]
Length = Annotated[float, Meta(ge=1, le=MOST_TOKENS)]
Base = Annotated[float, Meta(gt=1, le=LARGEST)]
Bases = Base | Flags
Share = Annotated[float, Meta(gt=0, le=1)]
Shares = Annotated[list[Share], Meta(max_length=MOST_LAYERS)]
ShareOrNone = Annotated[float, Meta(ge=0, le=1)]
Positive = Annotated[float, Meta(gt=0, le=LARGEST)]
Factor = Annotated[float, Meta(gt=0, le=1e6)]
Turns = Annotated[float, Meta(ge=1e-100, le=1e6)]
Number = Annotated[float, Meta(ge=-LARGEST, le=LARGEST)]
Divisor = Annotated[float, Meta(gt=0, lt=LARGEST_DIVISOR)]
Divisors = Annotated[list[Divisor], Meta(max_length=WIDEST_HEAD)]
Section = Annotated[int, Meta(ge=0, le=WIDEST_HEAD)]
Sections = Annotated[list[Section], Meta(max_length=MOST_SECTIONS)]
Heads = Annotated[list[Annotated[int, Meta(ge=1, le=LARGEST_SIZE)]], Meta(max_length=MOST_LAYERS)]
Objects = Annotated[list[Object], Meta(max_length=MOST_LAYERS)]

WORDS: dict[object, str] = {
    Name: "a name",
    Flag: "true or false",
    Switch: "true or false",
    Names: f"a list of at most {MOST_LAYERS:,} names",
    Flags: f"a list of at most {MOST_LAYERS:,} flags",
    Layers: (
        f"a positive whole number there, at most {MOST_LAYERS:,}: published models have up to 128"
        " layers"
    ),
    Width: (
        f"a positive whole number there, at most {WIDEST_HEAD:,}: published models have heads of up"
        " to 576"
    ),
    Size: f"a positive whole number there, at most {LARGEST_SIZE:,}",
    Index: f"a whole number there, from 0 and at most {LARGEST_SIZE:,}",
    Sizes: (
        f"a positive whole number there, at most {LARGEST_SIZE:,}, or such a number for each of at"
        f" most {MOST_LAYERS:,} layers"
    ),
    Interval: (
        f"a positive whole number there, at most {MOST_LAYERS:,}, or the pattern of the layers as"
        " letters"
    ),
    Tokens: f"a positive whole number there, at most {MOST_TOKENS:,}",
    Length: f"a number there, of at least 1 and at most {MOST_TOKENS:,}",
    Base: f"a number above 1 there, at most {LARGEST:g}: a base must be above 1",
    Share: "a number above 0 and up to 1",
    Bases: (
        f"a number above 1 there, at most {LARGEST:g}, or one for each of at most {MOST_LAYERS:,}"
        " layers"
    ),
    Shares: f"a list of at most {MOST_LAYERS:,} numbers above 0 and up to 1",
    ShareOrNone: "a share from 0 to 1",
    Positive: f"a positive number there, at most {LARGEST:g}",
    Factor: "a positive number there, at most 1e6",
    Turns: "a number from 1e-100 to 1e6 there",
    Number: f"a number there, from -{LARGEST:g} to {LARGEST:g}",
    Object: "an object",
    Objects: f"a list of at most {MOST_LAYERS:,} objects",
    Heads: (
        f"a list of the heads of each layer there, positive whole numbers for at most"
        f" {MOST_LAYERS:,} layers"
    ),
    Numbers: (
        f"a list of the numbers of layers, from 0 and at most {MOST_LAYERS:,}, and no longer than"
        " that"
    ),
    Divisors: (
        f"positive numbers below {LARGEST_DIVISOR:g} there, one per pair and at most"
        f" {WIDEST_HEAD:,}"
    ),
    Sections: (
        f"a list of at most {MOST_SECTIONS} whole numbers there, from 0 and at most {WIDEST_HEAD:,}"
    ),
}
"""The correct value of each type, for messages."""

LAYER_TYPES = ("full_attention", "sliding_attention")
PER_LAYER_CONFIG = "per_layer_config"
DUAL_CHUNK = "dual_chunk_attention_config"
ADVICE_FOR_IMAGE_MODELS = (
    "image and video models compute their RoPE from the size of the picture at run time, so none"
    " can be written into a checkpoint; give a language model"
)
LAYER_SHARES = "partial_rotary_factors"
"""The key of a list with the share of a head that rotates in each layer."""
NORM_AFTER = "norm_after"
"""The key of a switch that puts the norm before the projections behind attention."""
ROPE_DICTIONARIES = ("rope_scaling", "rope_parameters", "llama_4_scaling")

ROPE: dict[str, object] = {
    "rope_type": Name,
    "type": Name,
    "rope_theta": Base,
    "factor": Factor,
    "attention_factor": Positive,
    "attn_factor": Positive,
    "beta_fast": Turns,
    "beta_slow": Turns,
    "mscale": Number,
    "mscale_all_dim": Number,
    "long_mscale": Positive,
    "short_mscale": Positive,
    "low_freq_factor": Factor,
    "high_freq_factor": Factor,
    "original_max_position_embeddings": Length,
    "alpha": Number,
    "partial_rotary_factor": ShareOrNone,
    "short_factor": Divisors,
    "long_factor": Divisors,
    "truncate": Flag,
    "llama_4_scaling_beta": Number,
    "beta": Number,
    "mrope_section": Sections,
}
"""The keys of a RoPE dictionary."""
TOP: dict[str, object] = {
    "layer_types": Names,
    "original_max_position_embeddings": Length,
    "max_sequence_length": Length,
    PER_LAYER_CONFIG: Object,
    DUAL_CHUNK: Object,
    "vocab_size": Size,
    "intermediate_size": Sizes,
    "alibi": Flag,
    "tie_word_embeddings": Flag,
    LAYER_SHARES: Shares,
    NORM_AFTER: Flag,
}
"""Keys that mean the same in all families."""


ROPE_KEY = re.compile(r"(^|_)(rope|yarn|ntk)(_|$)|rotary_|theta|original_max_position_embeddings")
"""Names of keys of a config.json that are about RoPE."""
SHARE_KEY = re.compile(r"partial|pct|percent|fraction")
"""Names of those that say how much of a head rotates; 1 says all of it."""


def check_config(config: Config, parts: Iterable[Config], family: Family) -> None:
    """Check the type and range of every key that is read, so that the code after it need not.

    Args:
        config: The whole config.json.
        parts: The text parts of the config.
        family: The family of the model.

    Raises:
        BadSource: A key has another type or range.
    """
    types = key_types(family)
    for part in parts:
        _check_part(part, types, family)
    _check_values(config, {"quantization_config": Object}, "")
    quantization = config.get("quantization_config") or {}
    _check_values(quantization, {"quant_method": Name}, " in its quantization_config")


def _check_part(part: Config, types: Mapping[str, object], family: Family) -> None:
    """Check the values of all keys that are read for a family, in the text part of a config.

    Args:
        part: The text part.
        types: The type of each key; a dot joins the keys of nested objects, as in
            "attn_config.rope_theta".
        family: The family.

    Raises:
        BadSource: A value has another type.
    """
    # keys of the top level
    types_at_top = {key: kind for key, kind in types.items() if "." not in key}
    _check_values(part, types_at_top, place="")

    # keys inside of objects, which `first_present` finds by the dots
    types_inside = {key: kind for key, kind in types.items() if "." in key}
    for key, kind in types_inside.items():
        value = first_present(part, (key,))
        if value is not None:
            _check_value(key, value, kind, place="")

    # settings of single layers
    types_in_layer: dict[str, object] = {"head_dim": Width, "num_key_value_heads": Size}
    if family.window.key:
        types_in_layer[family.window.key] = Index
    for settings in (part.get(PER_LAYER_CONFIG) or {}).values():  # "per_layer_config"
        if not isinstance(settings, dict):
            raise BadSource(
                f"config.json has {shown(settings)} in {PER_LAYER_CONFIG}; write an object there"
            )
        _check_values(settings, types_in_layer, place=f" in its {PER_LAYER_CONFIG}")

    # dual_chunk_attention_config
    dual_chunk = part.get(DUAL_CHUNK) or {}
    types_of_dual_chunk = {"original_max_position_embeddings": Tokens}
    _check_values(dual_chunk, types_of_dual_chunk, place=f" in its {DUAL_CHUNK}")

    # rope_scaling and rope_parameters
    for key in ROPE_DICTIONARIES:
        _check_rope(part.get(key), family)


def _check_rope(rope: object, family: Family) -> None:
    """Check the values of a RoPE dictionary, such as rope_scaling; raise BadSource for a wrong one.

    The settings are in the dictionary itself, as in `{"rope_type": "yarn", "factor": 4.0}`; or in a
    dictionary for each layer type inside, as in Gemma 3 of transformers 5:
    `{"full_attention": {"rope_theta": 1e6}, "sliding_attention": {"rope_theta": 1e4}}`.

    Args:
        rope: The value of rope_scaling or rope_parameters; an absent or empty one is correct.
        family: The family of the model, which may have names of layer types of its own.
    """
    candidates = [rope]
    if isinstance(rope, dict):
        for layer_type in (*LAYER_TYPES, *family.layers.types):
            candidates.append(rope.get(layer_type))

    for settings in candidates:
        if not settings:
            continue
        if not isinstance(settings, dict):
            raise BadSource(
                f"config.json has a RoPE setting of {shown(settings)}; write an object there, or"
                " null"
            )
        # ROPE has the type of each key of a RoPE dictionary, e.g. of "factor"
        _check_values(settings, types=ROPE, place=" in its RoPE settings")


def _check_values(data: Mapping[str, object], types: Mapping[str, object], place: str) -> None:
    """Check the values of some keys of an object.

    Args:
        data: The object. Keys without a type are not checked.
        types: The type of each key.
        place: The place of the object for messages, e.g. " in its RoPE settings".

    Raises:
        BadSource: A value has another type.
    """
    # all values at once, which is fast; if one is wrong, each alone, so that the message can name
    # the wrong one
    try:
        msgspec.convert(data, _schema(tuple(types.items())))
    except msgspec.ValidationError:
        for key, kind in types.items():
            if data.get(key) is not None:
                _check_value(key, data[key], kind, place)  # raises BadSource for a wrong value
        raise  # not reached: one of the values was wrong
    except UnicodeError:
        raise BadSource(
            f"config.json has an unpaired surrogate{place}; write the whole character"
        ) from None


@cache
def _schema(types: tuple[tuple[str, Any], ...]) -> Any:
    """Return a class whose fields are optional keys of these types."""
    return msgspec.defstruct("Keys", [(key, kind | None, None) for key, kind in types])


def _check_value(key: str, value: object, kind: object, place: str) -> None:
    """Check the value of one key."""
    try:
        msgspec.convert(value, kind)
    except msgspec.ValidationError:
        fix = WORDS[kind]
        if isinstance(value, str) and kind is not Name and len(value) < 40:
            with suppress(ValueError):
                float(value)
                fix = f"the number {value} without quotes"
        raise BadSource(f"config.json has {key} = {shown(value)}{place}; write {fix}") from None


def key_types(family: Family) -> dict[str, object]:
    """Return the keys of a config.json that ropeconv reads for a family, each with its type.

    For Llama the result has {"rope_theta": Base, "head_dim": Width, ...}. A type has the range of
    the numbers too: a Base is above 1.
    """
    # Each of these has names of keys, e.g. keys.theta = ("rope_theta",). A key that a family does
    # not have is "".
    keys = family.keys
    layers = family.layers
    window = family.window
    cache = family.cache
    types: dict[str, object] = dict(TOP)  # keys that mean the same in all families

    def add(kind: object, *names: str) -> None:
        """Give a type to some keys."""
        for name in names:
            if name:
                types[name] = kind

    # the RoPE
    add(Base, *keys.theta, *keys.unread_theta, *keys.local_theta)
    add(Share, *keys.partial, *keys.unread_partial)
    add(Width, *keys.rotary_dim, *keys.head_dim, *keys.local_head_dim)
    add(Tokens, *keys.context)

    # sizes
    add(Size, *keys.hidden, *keys.heads, *keys.kv_heads)
    add(Layers, *keys.layers)
    if family.mla:
        add(Size, "kv_lora_rank", "qk_nope_head_dim", "v_head_dim")

    # which layers rotate, and by which base; in Granite with windows, one key has the flags and the
    # bases, and is checked as bases
    add(Interval, layers.interval_key)
    add(Flags, layers.flags)
    add(Bases, keys.layer_theta)
    add(Numbers, layers.indices)

    # windows
    add(Index, window.key, window.first_key)
    add(Switch, window.switch)

    # the key-value cache: layers that share it, e.g. by ("num_kv_shared_layers", 15) with the
    # default of the class; the width of an index; and the heads of global layers, whose key comes
    # before keys of switches
    shared_layers_key, _class_default = cache.shared
    add(Index, shared_layers_key)
    add(Size, cache.index_key)
    if cache.global_heads:
        heads_key, *_switch_keys = cache.global_heads
        add(Size, heads_key)
    return types | dict(family.hooks.keys)
