"""Writes a RoPE setting into a config.json, in both schemas, without changing other keys.

transformers 4 reads `rope_theta` and `rope_scaling`, transformers 5 prefers `rope_scaling` to
`rope_parameters`, llama.cpp's converter prefers the reverse, and some readers only know one: so all
keys get the same values.
"""

import copy
from dataclasses import dataclass

from ..errors import BadSource
from ..formats.jsontext import JsonObject
from ..models.config import STATES, nested_settings, rotary_share, text_parts
from ..models.family import Family
from ..models.layers import kinds_of, layer_names, layer_types, settings_name
from ..models.length_limits import window_keys
from ..models.schema import Config, first_present, positive_int
from ..rope.spec import RopeSpec
from ..runtimes.read_config import QUERY_SCALE, rope_dict


@dataclass(frozen=True)
class RopeSetting:
    """A RoPE setting for a config."""

    rope: JsonObject
    """The dictionary, with `rope_type` and without `rope_theta`."""

    theta: float
    context: int
    """In tokens, for max_position_embeddings."""

    top_original: int | None = None
    """original_max_position_embeddings at the top level, None where it is not needed."""

    notes: tuple[str, ...] = ()
    """Sentences for the user."""


def bake_config(config: Config, family: Family, spec: RopeSpec, written: RopeSetting) -> Config:
    """Return a copy of a config.json with one RoPE setting in every schema.

    transformers 4 reads the dictionary rope_scaling, and transformers 5 rope_parameters. Some keys
    are beside them at the top level, such as max_position_embeddings and rope_theta. Keys that the
    config has stay at their places, and so do unknown keys; a new one is put behind a related one.

    Args:
        config: The whole config.json of the source.
        family: The family of the source.
        spec: The RoPE of the source.
        written: The new setting.
    """
    baked = copy.deepcopy(config)
    # a model with an encoder and a decoder has the settings of both
    for part in text_parts(baked, family):
        # the new RoPE dictionary, which is written below, then the keys beside it: lengths, bases,
        # and shares of a head
        rope = _with_kept_keys(part, family, spec, written.rope)
        _put_context(part, family, written.context)
        _put_bases(part, family, spec, written.theta)
        if family.writing.head_dim and not family.mla:
            put(part, family.keys.head_dim[0], spec.head_dim, after="hidden_size")
        _put_original_context(part, family, written, rope)
        _put_query_scale(part, family, rope)
        _put_rotating_share(part, family, spec)

        # the dictionary in the schema of transformers 4, then in that of transformers 5
        if family.writing.rope_scaling:
            put(part, "rope_scaling", _rope_scaling(rope, family), after="rope_theta")
        else:
            # transformers would read this key, even null, in place of rope_parameters
            part.pop("rope_scaling", None)
        rope_parameters = _rope_parameters(part, rope, written.theta, family, spec)
        put(part, "rope_parameters", rope_parameters, after="rope_scaling")
    return baked


def _put_original_context(
    part: Config, family: Family, written: RopeSetting, rope: JsonObject
) -> None:
    """Set original_max_position_embeddings beside max_position_embeddings, where it is needed."""
    name = "original_max_position_embeddings"
    original = written.top_original
    # one that the source has there must not contradict the one in the RoPE dictionary
    if original is None and part.get(name) is not None:
        original = rope.get(name, written.context)
    if original is not None:
        put(part, name, original, after=family.keys.context[0])


def _put_query_scale(part: Config, family: Family, rope: JsonObject) -> None:
    """Repeat Ministral 3's scaling of queries where vLLM reads it (vllm#48621)."""
    beta = rope.get(family.keys.query_beta)
    if beta:
        length = rope["original_max_position_embeddings"]
        scale = {"original_max_position_embeddings": length, "beta": beta}
        put(part, QUERY_SCALE, scale, after="rope_parameters")


def _put_rotating_share(part: Config, family: Family, spec: RopeSpec) -> None:
    """State the share of a head that rotates, where it is absent and not the default."""
    names = family.keys.partial  # such as partial_rotary_factor
    if not names or first_present(part, names) is not None:
        return
    share = _share(part, family, spec)
    if share != family.defaults.partial_rotary_factor:
        put(part, names[0], share)


def _put_context(part: Config, family: Family, context: int) -> None:
    """Set the context under all keys that have it, and windows that would be shorter."""
    keys = family.keys.context
    present = [key for key in keys if key in part]
    for key in present or keys[:1]:
        put(part, key, context)
    for key in window_keys():
        if isinstance(part.get(key), int) and part[key] < context:
            put(part, key, context)


def _put_bases(part: Config, family: Family, spec: RopeSpec, theta: float) -> None:
    """Set the base of global layers to `theta`, and keep the source's for local layers.

    Global layers are those whose context grows; local ones keep their RoPE, as Gemma 3's layers
    with a sliding window do.

    Args:
        part: The text part of the config, which is changed.
        family: The family of the model.
        spec: The RoPE of the source.
        theta: The new base.
    """
    # Step 3.5 has a list with the base of each layer under rope_theta. The list is read now, since
    # a single base replaces it below.
    keys = family.keys
    base_of_layers = part.get(keys.layer_theta) if keys.layer_theta else None

    # A family may know the base by several names, as GPT-NeoX by rotary_emb_base and rope_theta.
    # The first name and rope_theta are always written, other names where the config has them. A
    # new key is inserted directly behind max_position_embeddings.
    names = list(keys.theta)
    if "rope_theta" not in names:
        names.append("rope_theta")
    always_written = {"rope_theta", *keys.theta[:1]}
    for name in names:
        if name in part or name in always_written:
            put(part, name, theta, after=keys.context[0])

    # the list again, with the new base for global layers
    if isinstance(base_of_layers, list) and base_of_layers:
        kinds = kinds_of(part, family, layer_names(part, family, len(base_of_layers)))
        bases = []
        for base, kind in zip(base_of_layers, kinds, strict=False):
            # 0 is the base of a layer that does not rotate
            rotates_globally = base and kind == "global"
            bases.append(theta if rotates_globally else base)
        put(part, keys.layer_theta, bases)
    if spec.local_form is not None and keys.local_theta:
        put(part, keys.local_theta[0], spec.local_form.theta, after="rope_theta")


def put(part: Config, key: str, value: object, after: str = "") -> None:
    """Set a key of a config in place.

    A new key is inserted behind the key `after`, or last where that is absent.
    """
    is_new = key not in part
    before = list(part)
    part[key] = value
    if is_new and after in before:
        # a dict keeps the order of insertion: the keys that come behind are inserted again
        for name in before[before.index(after) + 1 :]:
            part[name] = part.pop(name)


def _with_kept_keys(part: Config, family: Family, spec: RopeSpec, rope: JsonObject) -> JsonObject:
    """The new RoPE dictionary, with keys of the source's dictionary that belong to the model.

    mrope_section of Qwen2-VL is such a key: it says how positions are divided, whatever the scaling
    is. In the result, lengths are ints and other numbers floats.

    Args:
        part: The text part of the config.
        family: The family of the model.
        spec: The RoPE of the source.
        rope: The new RoPE dictionary, without the keys of the source.
    """
    writing = family.writing
    source_rope, _ = rope_dict(part, family)
    kept = {key: source_rope[key] for key in writing.keep if key in source_rope}

    # In latent attention (MLA), a head has dimensions that rotate (qk_rope_head_dim) and others
    # that do not (qk_nope_head_dim). Some classes read the share of the former, which `share_of`
    # names first.
    sizes = []
    for key in writing.share_of:
        size = positive_int(part, (key,))
        if not size:
            raise BadSource(f"config.json has no {key}; add it")
        sizes.append(size)
    if sizes:
        rotating, *_ = sizes
        kept["partial_rotary_factor"] = rotating / sum(sizes)

    # Ministral 3 scales queries by position, in units of original_max_position_embeddings
    # (`pinned_original`). Where the source has that scaling, the length must stay. The families
    # with this rule keep one key: llama_4_scaling_beta, which turns the query scaling on.
    if writing.pinned_original and writing.keep:
        query_scaling_key = writing.keep[0]
        if query_scaling_key in kept:
            kept = {"original_max_position_embeddings": spec.query_length, **kept}

    merged = {**rope, **kept}  # where both have a key, the value of the source counts
    return {key: _number(key, value) for key, value in merged.items()}


def _number(key: str, value: object) -> object:
    """A number of a RoPE dictionary as an int or float; other values unchanged."""
    if isinstance(value, list) and key.endswith("_factor"):
        return [float(entry) for entry in value]
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return value
    if key == "original_max_position_embeddings":
        return int(value)
    return float(value)


def _rope_scaling(rope: JsonObject, family: Family) -> JsonObject | None:
    """The value of `rope_scaling`, the schema of transformers 4; None for no scaling.

    {"rope_type": "linear", "factor": 2.0} gives
    {"rope_type": "linear", "type": "linear", "factor": 2.0}.

    Args:
        rope: The new RoPE dictionary.
        family: The family of the model.
    """
    # Without scaling the value is null, with two exceptions: for classes with a default scaling,
    # null means that default; and some models need other keys in the dictionary, such as
    # mrope_section (`family.writing.keep`).
    kind = rope["rope_type"]
    is_unscaled = kind == "default"
    has_keys_of_model = bool(set(rope) & set(family.writing.keep))
    null_means_unscaled = family.defaults.scaling is None
    if is_unscaled and null_means_unscaled and not has_keys_of_model:
        return None

    settings = {"rope_type": kind, "type": kind}  # `type` for transformers before 4.43
    for key, value in rope.items():
        if key != "rope_type":
            settings[key] = value

    # Some classes refuse keys that they do not know: Phi-3's knows "type" and the two lists of
    # LongRoPE. `legacy_keys` has no entry for a type where the class accepts all keys.
    known_keys = family.writing.legacy_keys.get(kind)
    if known_keys is None:
        return settings
    return {key: settings[key] for key in known_keys}


def _rope_parameters(
    part: Config, rope: JsonObject, theta: float, family: Family, spec: RopeSpec
) -> JsonObject:
    """The value of `rope_parameters`, the schema of transformers 5, which has the base too.

    {"rope_type": "linear", "factor": 2.0} gives
    {"rope_type": "linear", "factor": 2.0, "rope_theta": 10000.0}. Gemma 3 has one such dictionary
    for each layer type: {"full_attention": {...}, "sliding_attention": {...}}.

    Args:
        part: The text part of the config.
        rope: The new RoPE dictionary, without the base.
        theta: The base of the layers that a method extends.
        family: The family of the model.
        spec: The RoPE of the source.
    """
    # The dictionary of the layers that a method extends. Classes that refuse unknown keys in
    # `rope_scaling` refuse them here too; `known_keys` is None where all keys are accepted.
    known_keys = family.writing.legacy_keys.get(rope["rope_type"])
    extended = {}
    for key, value in rope.items():
        if known_keys is None or key in (*known_keys, "rope_type"):
            extended[key] = value
    extended["rope_theta"] = theta
    if family.keys.partial:
        extended["partial_rotary_factor"] = _share(part, family, spec)
    if not family.writing.nested:
        return extended

    # Classes with several layer types, such as Gemma 3, have a dictionary for each type. Layers of
    # the kind "global" are extended, "local" layers keep the RoPE of the source, and layers of the
    # kind "none" do not rotate.
    extended_type = settings_name(part, family, "global")  # such as "full_attention"
    local_type = settings_name(part, family, "local")  # such as "sliding_attention"
    by_layer_type: JsonObject = {extended_type: extended}
    for layer_type, kind in layer_types(part, family).items():
        if kind == "local" and layer_type == local_type:
            by_layer_type[layer_type] = _local_settings(part, theta, family, spec)
        # null, but no entry for layers with a state in place of attention, such as Mamba's
        if kind == "none" and layer_type not in STATES:
            by_layer_type[layer_type] = None
    return by_layer_type


def _local_settings(part: Config, theta: float, family: Family, spec: RopeSpec) -> JsonObject:
    """The entry of `rope_parameters` for layers that keep the RoPE of the source."""
    local: JsonObject = {"rope_type": "default", "rope_theta": theta}
    if spec.local_form is not None:
        local["rope_theta"] = spec.local_form.theta
    if family.keys.partial:
        local["partial_rotary_factor"] = float(rotary_share(part, family, "local"))
    return {**local, **nested_settings(part, family, "local")}


def _share(part: Config, family: Family, spec: RopeSpec) -> float:
    """The partial_rotary_factor to write, which gives exactly the rotary_dim of the source."""
    share = rotary_share(part, family)
    if int(spec.head_dim * share) == spec.rotary_dim:
        return float(share)
    return spec.rotary_dim / spec.head_dim
