"""The keys about RoPE of a config.json that nothing reads for a family.

A hint to treat a model as a family is true only where there are none. `unread_rope_keys` is the
function to read first.
"""

import re
from collections.abc import Iterator
from typing import Any, Literal

from .family import Family
from .parts import other_parts
from .schema import (
    LAYER_TYPES,
    ROPE,
    ROPE_DICTIONARIES,
    ROPE_KEY,
    SHARE_KEY,
    Config,
    first_present,
    key_types,
)

OTHER_NAMES = re.compile(
    r"(^|_)(m?rope|nope|xpos|alibi|logn|rotary)(_|\d|$)|rotary|wavelength|inv_freq|freqs"
    r"|freq_base|base_freq|(?<!max_)position_(embedding|encoding)|pos_emb|temperature_tuning"
)
"""Names of further keys about positions that a class may read."""
SWITCH = re.compile(
    r"(use_|apply_|with_|is_|has_)?(rope|rotary)(_(pos_?)?emb(edding)?s?)?"
    r"|pos(ition)?_(emb(edding)?|encoding)(_type)?"
)
"""Names of keys that say whether a model rotates, or by which embeddings it knows positions."""
ROTATING = (True, 1, "rope", "rotary", "rotary_embedding")
"""The values of such a key in models that rotate."""
NOT_OF_ROPE = ("quantization_config", "compression_config", "auto_map")
"""Objects in configs that say nothing about the model."""
WITHOUT_EFFECT = (
    "finetuned",
    "extrapolation_factor",
    "max_position_embeddings",
    "mrope_interleaved",
)
"""Keys that publishers write beside others in a RoPE dictionary, and that no class reads."""
ALIASES = {"mrope": "default", "su": "longrope"}
"""Rope types under their older names."""


Quantity = Literal["hidden", "heads", "layers", "context"]
SIZE_NAMES: dict[Quantity, tuple[str, ...]] = {
    "hidden": ("n_embd", "d_model", "dim", "hidden_dim"),
    "heads": ("n_head", "n_heads"),
    "layers": ("n_layer", "n_layers"),
    "context": ("max_sequence_length", "max_seq_len", "max_seq_length", "n_positions", "n_ctx"),
}
"""Sizes as code of a model's own names them; stock classes with other names ignore them."""


def unread_sizes(
    part: Config, family: Family, quantities: tuple[Quantity, ...] = tuple(SIZE_NAMES)
) -> list[str]:
    """Return the keys of sizes that a config has under names that a family does not read.

    They are ["n_embd"] for a config with n_embd and without hidden_size, which the family reads.

    Args:
        part: The text part of the config.
        family: The family.
        quantities: The sizes to look for, such as "hidden" and "heads".
    """
    unread = []
    for quantity in quantities:
        read_keys = getattr(family.keys, quantity)
        if first_present(part, read_keys) is not None:
            continue
        for name in SIZE_NAMES[quantity]:
            if part.get(name) is not None and name not in read_keys:
                unread.append(name)
    return unread


def unread_rope_keys(part: Config, family: Family) -> list[str]:
    """Return the keys about RoPE in a config that ropeconv ignores for models of a family.

    The keys are in the order of the config, and keys inside objects have a dot, as in
    `attn_config.rope_theta`. A key that changes nothing is left out: it switches something off or
    keeps a default, with a value such as null, false, 0, or a share of 1.

    Args:
        part: The text part of the config.
        family: The family.
    """
    read_keys = set(key_types(family))  # by ropeconv, for this family
    # keys by which the family knows a model without RoPE, such as "alibi" (other positions)
    keys_of_models_without_rope = {need.key for need in family.rotates}
    # objects without keys about RoPE: "quantization_config", and other models ("vision_config")
    other_models = {other.path[0] for other in other_parts(part)}
    objects_without_rope_keys = {*NOT_OF_ROPE, *other_models}

    unread: list[str] = []
    for key, value in part.items():
        # rope_scaling and rope_parameters
        if key in ROPE_DICTIONARIES:
            unread += _unread_settings(key, value, family)
            continue

        # the types of layers, such as ["sliding_attention", "full_attention"]
        if key == "layer_types":
            if not _reads_layer_types(value, family):
                unread.append(key)
            continue

        # {"alibi": true} means a model without RoPE
        if key == "alibi":
            if value and key not in keys_of_models_without_rope:
                unread.append(key)
            continue

        # any other key that is read
        if key in read_keys:
            continue

        # a key about RoPE by its name, such as rope_theta; or an object that is read inside
        if _is_about_rope(key):
            is_read_inside = any(name.startswith(f"{key}.") for name in read_keys)
            if not is_read_inside and not _has_no_effect(key, value):
                unread.append(key)
            continue

        # an object that may have keys about RoPE inside, such as attn_config
        if isinstance(value, dict) and key not in objects_without_rope_keys:
            unread += _unread_inside(key, value, read_keys)
    return unread


def _unread_inside(name: str, values: Config, read: set[str]) -> Iterator[str]:
    """Yield the keys about RoPE in an object that are not read."""
    for key, value in values.items():
        if not isinstance(key, str):  # id2label of a config that no file holds has numbers
            continue
        path = f"{name}.{key}"
        if _is_about_rope(key) and path not in read and not _has_no_effect(key, value):
            yield path


def _is_about_rope(key: str) -> bool:
    """Whether a key is about positions, by its name."""
    return bool(ROPE_KEY.search(key) or OTHER_NAMES.search(key))


def _has_no_effect(key: str, value: Any) -> bool:
    """Whether a key has no effect with a value."""
    if SWITCH.fullmatch(key) and value is not None:
        return value in ROTATING
    if SHARE_KEY.search(key) and value == 1:
        return True
    return not value


def _reads_layer_types(names: Any, family: Family) -> bool:
    """Whether a family has a rule for each type of layers."""
    if not isinstance(names, list):
        return True
    known = {"full_attention", *family.layers.types}
    if family.window.key:
        known.add("sliding_attention")
    return all(name is None or name in known for name in names)


def _unread_settings(name: str, settings: Any, family: Family) -> Iterator[str]:
    """Yield the keys of a RoPE dictionary that are not read, such as "rope_scaling.rope_type".

    Args:
        name: The key of the dictionary in the config.
        settings: Its content, e.g. {"rope_type": "yarn", "factor": 4.0}.
        family: The family.
    """
    if not isinstance(settings, dict):
        return
    rope_type = settings.get("rope_type", settings.get("type"))  # the second is an older name
    known_types = family.writing.types
    if isinstance(rope_type, str) and ALIASES.get(rope_type, rope_type) not in known_types:
        yield f"{name}.rope_type"

    layer_types = (*LAYER_TYPES, *family.layers.types)
    for key, value in settings.items():
        path = f"{name}.{key}"
        if isinstance(value, dict):  # settings of one layer type, as in Gemma 3
            if key in layer_types and family.writing.nested:
                yield from _unread_settings(path, value, family)
            else:
                yield path
            continue

        if not value:  # it is off, or null
            continue
        if not _is_read_setting(key, value, family):
            yield path


def _is_read_setting(key: str, value: Any, family: Family) -> bool:
    """Whether ropeconv reads a key of a RoPE dictionary, such as "factor", for models of a family.

    Keys without an effect count as read, since ignoring them changes nothing.

    Args:
        key: The key.
        value: Its value, which is neither null nor false.
        family: The family.
    """
    # keys of the dictionary that only some families have: of the architecture, such as
    # mrope_section of Qwen2-VL, and of a query scaling, such as llama_4_scaling_beta of Ministral 3
    keys_of_architecture = family.writing.keep
    key_of_query_scaling = family.keys.query_beta

    if key == "partial_rotary_factor":
        rotates_whole_head = value == 1  # as without the key
        return bool(family.keys.partial) or rotates_whole_head
    if key == "mrope_section":
        return key in keys_of_architecture
    if key == "llama_4_scaling_beta":
        return key == key_of_query_scaling

    # such as "finetuned", which no class of transformers reads
    if key in WITHOUT_EFFECT:
        return True
    # ROPE has the keys that are read for all families
    return key in {*ROPE, *keys_of_architecture, key_of_query_scaling}
