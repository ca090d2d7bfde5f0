"""Changes to one key of a config, after which the model is run again.

Whether a key sets a fact of the model (its base, the share of a head that rotates, its window) is
found by an experiment: change only this key, build the model, and see whether that fact follows.
Each function here returns a change, which edits the text part of a config.json in place:

    change = set_key("rope_base", PROBE_BASE)
    text = asked_model.changed(change)

Newer configs state the base twice, at the top level and in a RoPE dictionary (`SETTINGS_KEYS`),
and the dictionary wins. `set_key` therefore removes a key from the dictionary too.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from typing import Any

from .asked_model import Config

Change = Callable[[Config], None]

PROBE_BASE = 54321.0
"""The base (theta) that is written into keys to see which one sets it; no model has it."""
SETTINGS_KEYS = ("rope_scaling", "rope_parameters")
"""The keys of the RoPE dictionary, in transformers 4 and 5."""
THETA_NAME = re.compile(
    r"theta|rope_base|rotary_base|rotary_emb_base|freq",
    re.IGNORECASE,
)
"""Names of keys that may set the base of the frequencies."""


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
        for key in SETTINGS_KEYS:
            rope = part.get(key)
            if not isinstance(rope, dict):
                continue
            _remove_scaling(rope, name)
            has_only_type = set(rope) <= {"rope_type", "type"}
            if has_only_type:
                part.pop(key)
        part[name] = value

    return change


def _remove_scaling(rope: Config, name: str) -> None:
    """Make a RoPE dictionary unscaled, and remove what would override a key beside it.

    For the key "rope_theta", {"rope_type": "linear", "rope_theta": 1e4, "factor": 2.0} becomes
    {"rope_type": "default", "factor": 2.0}.

    Args:
        rope: The dictionary; one that holds a dictionary for each layer type is changed inside.
        name: The key that is set outside it.
    """
    # Gemma 3 has a dictionary for each layer type, {"full_attention": {...}, ...}
    for item in rope.values():
        if isinstance(item, dict):
            _remove_scaling(item, name)

    # The class prefers these to keys beside the dictionary. `type` is the older name of rope_type.
    # A test of another base keeps the share of the head that rotates; a test of the key of that
    # share needs it gone.
    removed = {name, "rope_theta", "type"}
    is_test_of_base = THETA_NAME.search(name) is not None
    if not is_test_of_base:
        removed.add("partial_rotary_factor")
    for key in list(rope):
        if key in removed and not isinstance(rope[key], dict):
            rope.pop(key)
    holds_dictionaries = any(isinstance(item, dict) for item in rope.values())
    if not holds_dictionaries:
        rope["rope_type"] = "default"


def set_only(name: str, value: Any) -> Change:
    """Return a change of one key, and of nothing in the RoPE dictionary."""

    def change(part: Config) -> None:
        part[name] = value

    return change


def leave_out(names: Iterable[str]) -> Change:
    """Return a change that removes keys, so that the defaults of the class count."""

    def change(part: Config) -> None:
        for name in names:
            part.pop(name, None)

    return change


def set_rope_type(text: Any, rope_type: str, settings: Config) -> Change:
    """Return a function that writes other RoPE settings into a config, with the base `PROBE_BASE`.

    Keys of the present dictionary stay where the new settings do not name them, such as a share of
    the head or mrope_section. With the type "linear" and {"factor": 2.0}, the present
    {"rope_type": "default", "rope_theta": 1e4, "mrope_section": [16, 24, 24]} becomes
    {"rope_type": "linear", "rope_theta": PROBE_BASE, "factor": 2.0, "mrope_section": ...}.

    Args:
        text: The config of the text model, of transformers, whose dictionary is the present one.
        rope_type: The type, such as "yarn".
        settings: The other keys of that type.
    """
    present_rope = getattr(text, "rope_parameters", None) or {}
    has_rope_of_each_type = is_nested(text)
    new_settings = {"rope_type": rope_type, "rope_theta": PROBE_BASE, **settings}

    def change(part: Config) -> None:
        """Write the new settings into `part`, the text part of a config.json, in place."""
        # Gemma 3: every layer type gets the new settings in its own dictionary
        if has_rope_of_each_type:
            nested = {}
            for layer_type, item in present_rope.items():
                nested[layer_type] = {**item, **new_settings} if isinstance(item, dict) else item
            part["rope_parameters"] = nested
            part.pop("rope_scaling", None)
            return

        # others: one dictionary, in which keys of the present one follow
        rope = dict(new_settings)
        for key, value in present_rope.items():
            rope.setdefault(key, value)
        # classes of transformers 4 read the base at the top level and the rest in rope_scaling,
        # those of transformers 5 read everything in rope_parameters
        part["rope_theta"] = PROBE_BASE
        part["rope_parameters"] = rope
        part["rope_scaling"] = rope
        # Phi-3 states it at the top level, where it may override that of the new settings
        part.pop("original_max_position_embeddings", None)

    return change


def is_nested(text: Any) -> bool:
    """Whether the RoPE dictionary holds one dictionary for each layer type."""
    rope = getattr(text, "rope_parameters", None)
    return isinstance(rope, dict) and any(isinstance(item, dict) for item in rope.values())
