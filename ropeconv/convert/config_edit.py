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
from ..models.schema import Config, first_present, is_null, positive_int
from ..rope.spec import RopeSpec
from ..runtimes.read_config import QUERY_SCALE, reads_share, rope_dict


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
        rope = _add_keys_of_model(part, family, spec, written.rope)
        _drop_nulls(part, family)
        if not reads_share(family):
            # the class ignores it without a scaling, and scales a part of each head with one
            part.pop("partial_rotary_factor", None)
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


def _drop_nulls(part: Config, family: Family) -> None:
    """Remove keys that are null, on which some classes of transformers fail with a scaling."""
    # keys that the model needs are written with their values afterwards
    names = (*family.keys.head_dim, *family.keys.partial, "original_max_position_embeddings")
    for name in names:
        if is_null(part, name):
            del part[name]


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
    """Write the base of the RoPE (rope_theta) into a config, under each key that the class reads.

    Global layers, whose context grows, get the new base. Local layers, such as Gemma 3's layers
    with a sliding window, keep the base of the source.

    Args:
        part: The text part of the config, which is changed.
        family: The family of the model, with the names of its keys.
        spec: The RoPE of the source.
        theta: The new base.
    """
    keys = family.keys

    # Step 3.5: rope_theta is a list with the base of each layer. The list is read before the single
    # base replaces it.
    old_bases = part.get(keys.layer_theta) if keys.layer_theta else None

    # The single base. A class may read it under several names (keys.theta), such as GPT-NeoX under
    # rotary_emb_base and rope_theta. The first name and rope_theta are always written, other names
    # only where the config has them.
    main_name = keys.theta[:1]
    always_written = {"rope_theta", *main_name}
    names = list(keys.theta)
    if "rope_theta" not in names:
        names.append("rope_theta")
    for name in names:
        if name in part or name in always_written:
            put(part, name, theta, after=keys.context[0])  # behind max_position_embeddings

    # Step 3.5: the list, with the new base for global layers
    if isinstance(old_bases, list) and old_bases:
        kinds = kinds_of(part, family, layer_names(part, family, len(old_bases)))
        new_bases = []
        for base, kind in zip(old_bases, kinds, strict=False):
            # 0 is the base of a layer that does not rotate
            rotates_globally = base and kind == "global"
            new_bases.append(theta if rotates_globally else base)
        put(part, keys.layer_theta, new_bases)

    # Gemma 3: the base of local layers has a key of its own, rope_local_base_freq
    if spec.local_form is not None and keys.local_theta:
        local_name = keys.local_theta[0]
        put(part, local_name, spec.local_form.theta, after="rope_theta")


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


def _add_keys_of_model(
    part: Config, family: Family, spec: RopeSpec, rope: JsonObject
) -> JsonObject:
    """Return a new RoPE dictionary with the keys added that describe the model, not its scaling.

    Qwen2-VL's mrope_section is such a key: it says how positions are divided between dimensions.
    In the result, lengths are ints and other numbers floats.

    Args:
        part: The text part of the config.
        family: The family of the model.
        spec: The RoPE of the source.
        rope: The new RoPE dictionary, such as {"rope_type": "linear", "factor": 2.0}.
    """
    writing = family.writing

    # keys that the source's dictionary has and that must stay (writing.keep), such as mrope_section
    source_rope, _ = rope_dict(part, family)
    added = {key: source_rope[key] for key in writing.keep if key in source_rope}

    # Latent attention (MLA): some classes read the share of each head that rotates. The family
    # names the sizes from which it follows (writing.share_of): first qk_rope_head_dim, the
    # dimensions that rotate, then qk_nope_head_dim, the dimensions that do not.
    sizes = []
    for key in writing.share_of:
        size = positive_int(part, (key,))
        if not size:
            raise BadSource(f"config.json has no {key}; add it")
        sizes.append(size)
    if sizes:
        rotating_size, *_ = sizes
        added["partial_rotary_factor"] = rotating_size / sum(sizes)

    # Ministral 3: original_max_position_embeddings is also the unit of the scaling of queries by
    # position (writing.pinned_original). A source with that scaling keeps this length.
    if writing.pinned_original and writing.keep:
        query_scaling_key = writing.keep[0]  # llama_4_scaling_beta, the only key in `keep` here
        if query_scaling_key in added:
            added = {"original_max_position_embeddings": spec.query_length, **added}

    merged = {**rope, **added}  # where both have a key, the added value counts
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
    """Return the value of `rope_scaling`, the key that transformers 4 reads; None for JSON's null.

    {"rope_type": "linear", "factor": 2.0} gives
    {"rope_type": "linear", "type": "linear", "factor": 2.0}.

    Args:
        rope: The new RoPE dictionary.
        family: The family of the model.
    """
    rope_type = rope["rope_type"]

    # A model without scaling usually has null.
    if rope_type == "default":
        # Where the class has a default scaling, null would switch that scaling on.
        has_default_scaling = family.defaults.scaling is not None
        # Qwen2-VL needs the dictionary for mrope_section.
        has_keys_of_model = bool(set(rope) & set(family.writing.keep))
        if not has_default_scaling and not has_keys_of_model:
            return None

    settings = {"rope_type": rope_type, "type": rope_type}  # transformers before 4.43 reads `type`
    for key, value in rope.items():
        if key != "rope_type":
            settings[key] = value

    # Some classes fail on unknown keys: Phi-3's accepts only "type" and the two lists of LongRoPE.
    # The family's `legacy_keys` has the accepted keys by rope type, and no entry for "all keys".
    accepted_keys = family.writing.legacy_keys.get(rope_type)
    if accepted_keys is None:
        return settings
    return {key: settings[key] for key in accepted_keys}


def _rope_parameters(
    part: Config, rope: JsonObject, theta: float, family: Family, spec: RopeSpec
) -> JsonObject:
    """Return the value of `rope_parameters`, the key that transformers 5 reads.

    {"rope_type": "linear", "factor": 2.0} gives
    {"rope_type": "linear", "factor": 2.0, "rope_theta": 10000.0}. Gemma 3 has one such dictionary
    for each layer type: {"full_attention": {...}, "sliding_attention": {...}}.

    Args:
        part: The text part of the config.
        rope: The new RoPE dictionary, without the base.
        theta: The base of global layers, whose context grows.
        family: The family of the model.
        spec: The RoPE of the source.
    """
    # Some classes fail on unknown keys. The family's `legacy_keys` has the accepted keys by rope
    # type, and no entry where the class accepts all keys.
    accepted_keys = family.writing.legacy_keys.get(rope["rope_type"])

    # the dictionary of global layers
    of_global_layers = {}
    for key, value in rope.items():
        if accepted_keys is None or key in (*accepted_keys, "rope_type"):
            of_global_layers[key] = value
    of_global_layers["rope_theta"] = theta
    if family.keys.partial:
        of_global_layers["partial_rotary_factor"] = _share(part, family, spec)

    # most classes: one dictionary for all layers
    if not family.writing.nested:
        return of_global_layers

    # Gemma 3: one dictionary for each layer type
    global_type = settings_name(part, family, "global")  # such as "full_attention"
    local_type = settings_name(part, family, "local")  # such as "sliding_attention"
    by_layer_type: JsonObject = {global_type: of_global_layers}
    for layer_type, kind in layer_types(part, family).items():
        # local layers keep the RoPE of the source
        if kind == "local" and layer_type == local_type:
            by_layer_type[layer_type] = _local_settings(part, theta, family, spec)
        # Attention without RoPE has the value null. Layers without attention, such as Mamba's
        # (STATES), have no key.
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
