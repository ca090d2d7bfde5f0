"""Changes to one key of a config, after which the model is run again.

Whether a key sets a fact of the model (its base, the share of a head that rotates, its window) is
found by an experiment: change only this key, build the model, and see whether that fact follows.
Each function here returns a change, which edits the text part of a config.json in place:

    change = set_key("rope_base", PROBE_BASE)
    text = asked_model.changed(change)

Newer configs state the base twice, at the top level and in a RoPE dictionary
(`ROPE_DICTIONARY_KEYS`), and the class reads the dictionary. `set_key` therefore removes a key from
the dictionary too.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

from .asked_model import Config

Change = Callable[[Config], None]

PROBE_BASE = 54321.0
"""The base (theta) that is written into keys to see which one sets it; no model has it."""
ROPE_DICTIONARY_KEYS = ("rope_scaling", "rope_parameters")
"""The keys of the RoPE dictionary, in transformers 4 and 5."""
NAME_OF_BASE_KEY = re.compile(
    r"theta|rope_base|rotary_base|rotary_emb_base|freq",
    re.IGNORECASE,
)
"""Names of keys that may set the base of the frequencies (theta)."""


def set_key(name: str, value: Any) -> Change:
    """Return a function that sets one key of a config, so that the key takes effect.

    The function removes from the RoPE dictionary what would override the key, and the scaling, so
    that the class computes plain frequencies. With `set_key("rope_theta", 5e5)`, for example,
    {"rope_type": "yarn", "rope_theta": 1e4, "factor": 4.0} becomes {"rope_type": "default",
    "factor": 4.0}, and the config gets the base 5e5 beside it.

    Args:
        name: The key.
        value: Its new value.
    """

    def change(part: Config) -> None:
        """Set the key in `part`, the text part of a config.json."""
        for dictionary_key in ROPE_DICTIONARY_KEYS:
            rope = part.get(dictionary_key)
            if not isinstance(rope, dict):
                continue
            _remove_scaling(rope, name)
            has_only_type = set(rope) <= {"rope_type", "type"}
            if has_only_type:
                part.pop(dictionary_key)
        part[name] = value

    return change


def _remove_scaling(rope: Config, name: str) -> None:
    """Remove from a RoPE dictionary its scaling and all keys that would hide a top-level key.

    For the top-level key "rope_theta", {"rope_type": "linear", "rope_theta": 1e4, "factor": 2.0}
    becomes {"rope_type": "default", "factor": 2.0}.

    Args:
        rope: The dictionary, such as rope_scaling, which is changed in place.
        name: The key at the top level of the config that the class shall read.
    """
    # Gemma 3 has a dictionary for each layer type, {"full_attention": {...}, ...}
    inner_dictionaries = [item for item in rope.values() if isinstance(item, dict)]
    for inner in inner_dictionaries:
        _remove_scaling(inner, name)

    # A class prefers the keys of the dictionary to those at the top level. `type` is the older name
    # of rope_type.
    keys_to_remove = {name, "rope_theta", "type"}
    # A key of the base, such as rotary_emb_base: the share of a head that rotates is kept, since
    # the frequencies depend on both. For any other key, such as rotary_pct, the share is removed.
    sets_base = NAME_OF_BASE_KEY.search(name) is not None
    if not sets_base:
        keys_to_remove.add("partial_rotary_factor")
    for key in list(rope):
        if key in keys_to_remove and not isinstance(rope[key], dict):
            rope.pop(key)
    if not inner_dictionaries:
        rope["rope_type"] = "default"


def set_only(name: str, value: Any) -> Change:
    """Return a function that sets one key of a config, and leaves the RoPE dictionary unchanged."""

    def change(part: Config) -> None:
        """Set the key in `part`, the text part of a config.json."""
        part[name] = value

    return change


def leave_out(names: Iterable[str]) -> Change:
    """Return a function that removes keys of a config, so that the class uses its defaults."""

    def change(part: Config) -> None:
        """Remove the keys from `part`, the text part of a config.json."""
        for name in names:
            part.pop(name, None)

    return change


def set_rope_type(text: Any, rope_type: str, settings: Config) -> Change:
    """Return a function that writes other RoPE settings into a config, with the base `PROBE_BASE`.

    With the type "linear" and {"factor": 2.0}, the RoPE dictionary {"rope_type": "default",
    "rope_theta": 1e4, "mrope_section": [16, 24, 24]} becomes {"rope_type": "linear", "rope_theta":
    PROBE_BASE, "factor": 2.0, "mrope_section": [16, 24, 24]}: keys that the new settings do not
    name stay.

    Args:
        text: The config of the text model, of transformers, with the present RoPE dictionary.
        rope_type: The type, such as "yarn".
        settings: The other keys of that type.
    """
    present_rope = getattr(text, "rope_parameters", None) or {}
    new_settings = {"rope_type": rope_type, "rope_theta": PROBE_BASE, **settings}
    # Gemma 3: a dictionary for each layer type
    if is_nested(text):
        return partial(
            _write_rope_of_layer_types, present_rope=present_rope, new_settings=new_settings
        )
    return partial(_write_rope, present_rope=present_rope, new_settings=new_settings)


def _write_rope_of_layer_types(part: Config, present_rope: Config, new_settings: Config) -> None:
    """Write RoPE settings into a config with a dictionary for each layer type, as in Gemma 3.

    Args:
        part: The text part of a config.json, which is changed in place.
        present_rope: {"full_attention": {"rope_type": "default", ...}, ...}, say.
        new_settings: The settings that every layer type gets, such as {"rope_type": "yarn", ...}.
            Other keys of its dictionary stay.
    """
    rope_by_layer_type = {}
    for layer_type, rope in present_rope.items():
        if isinstance(rope, dict):
            rope_by_layer_type[layer_type] = {**rope, **new_settings}
        else:
            rope_by_layer_type[layer_type] = rope
    part["rope_parameters"] = rope_by_layer_type
    part.pop("rope_scaling", None)


def _write_rope(part: Config, present_rope: Config, new_settings: Config) -> None:
    """Write RoPE settings into a config with one RoPE dictionary.

    Args:
        part: The text part of a config.json, which is changed in place.
        present_rope: The present RoPE dictionary. Its keys stay that are not in the new settings.
        new_settings: {"rope_type": "yarn", "rope_theta": PROBE_BASE, "factor": 4.0, ...}, say.
    """
    rope = dict(new_settings)
    for key, value in present_rope.items():
        rope.setdefault(key, value)

    # classes of transformers 4 read the base at the top level, and the dictionary as rope_scaling;
    # those of transformers 5 read everything in rope_parameters
    part["rope_theta"] = PROBE_BASE
    part["rope_parameters"] = rope
    part["rope_scaling"] = rope
    # Phi-3 has this key at the top level, where it may override the key in the dictionary
    part.pop("original_max_position_embeddings", None)


def is_nested(text: Any) -> bool:
    """Whether the RoPE dictionary has one dictionary for each layer type, as in Gemma 3."""
    rope = getattr(text, "rope_parameters", None)
    return isinstance(rope, dict) and any(isinstance(item, dict) for item in rope.values())
