"""Which key of the config sets a sliding window, and which layers have it: the table [window].

The experiment writes a small window (`SMALL_WINDOW`) into a key and looks at the attention mask: a
layer has the window if the last token then sees only the tokens next to it.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Literal

import numpy as np

from .asked_model import Config, class_default, shorten
from .layer_kinds import SLIDING_TYPE
from .model_runs import ModelRuns
from .observing import TOKENS, keep_outputs
from .rotation import Numbers

NAME_OF_WINDOW_KEY = re.compile(r"window|chunk_size|local_attention|^swa_size")
"""Names of keys that may set a window."""
WINDOW_SWITCH = "use_sliding_window"
"""The key without which classes like that of Qwen 2 use no window."""
FIRST_LAYER_KEY = "max_window_layers"
"""The key of the first layer with a window, in such classes."""
WINDOWED_TYPES = (SLIDING_TYPE, "chunked_attention", "hybrid_sliding")
"""The types of layers that have a window by their name."""
LayerRule = Literal["", "all", "named", "rotating", "not-rotating"]
"""Which layers have the window, as `WindowRule.layers` of a family says it.

"all" layers; those "named" so by their type (`WINDOWED_TYPES`); those that rotate; those that do
not rotate; empty where none of these rules holds.
"""
SMALL_WINDOW = 5
"""The length of the window that is tried, in tokens."""
MOST_SEEN = 8
"""The most tokens that the last token sees in a window or a chunk of `SMALL_WINDOW` tokens."""


def describe_window(runs: ModelRuns, types: Sequence[str] | None, not_derived: list[str]) -> Config:
    """Return the config key of the sliding window, and which layers have it: the table [window].

    For Mistral: {"key": "sliding_window", "default": 4096, "layers": "all"}.

    Args:
        runs: The model, which can be built from a changed config and run again.
        types: The type of each layer, such as "sliding_attention"; None where the class has none.
        not_derived: A list to which a sentence is appended where it is not clear which layers have
            the window.

    Returns:
        The fields of `models.family.WindowRule`; {} for a model without a window, or where it is
        not clear which layers have it.
    """
    all_keys = runs.config_keys()
    for name in all_keys:
        # skip keys that set no window
        value = getattr(runs.text, name, None)
        is_no_number = isinstance(value, (list, dict, str, bool))
        if is_no_number or not NAME_OF_WINDOW_KEY.search(name):
            continue
        has_window = _layers_with_window(runs, name)
        if has_window is None or not any(has_window):
            continue

        facts: Config = {"key": name}
        default = class_default(runs.text, name)
        if isinstance(default, int) and not isinstance(default, bool):
            facts["default"] = default
        if WINDOW_SWITCH in all_keys:
            facts["switch"] = WINDOW_SWITCH

        # Qwen 2: all layers from a number on have the window
        if FIRST_LAYER_KEY in all_keys:
            first_layer = class_default(runs.text, FIRST_LAYER_KEY) or 0
            return facts | {"first_key": FIRST_LAYER_KEY, "first": first_layer}

        # other models, such as Mistral ("all" layers) and Gemma 3 (layers "named" so by their type)
        layers_with_window = _find_rule(runs, types, has_window)
        if not layers_with_window:
            not_derived.append(f"which layers have the window {name}")
            return {}
        if layers_with_window != "named":  # a family file without "layers" means "named"
            facts["layers"] = layers_with_window
        return facts
    return {}


def _find_rule(runs: ModelRuns, types: Sequence[str] | None, has_window: list[bool]) -> LayerRule:
    """Return the rule by which layers have the window, in the words of a family file.

    It is "all", "named" (those whose type says so, such as "sliding_attention"), "rotating",
    "not-rotating", or empty where none of these fits.

    Args:
        runs: The model, which can be built from a changed config and run again.
        types: The type of each layer, such as "sliding_attention"; None where the class has none.
        has_window: Whether each of the first layers, which were run, has the window.
    """
    if all(has_window):
        return "all"
    if types:
        types_of_first_layers = types[: len(has_window)]
        if has_window == [layer_type in WINDOWED_TYPES for layer_type in types_of_first_layers]:
            return "named"
    rotates = [kind != "none" for kind in runs.kinds_of_first_layers]
    if has_window == rotates:
        return "rotating"
    if has_window == [not flag for flag in rotates]:
        return "not-rotating"
    return ""


def _layers_with_window(runs: ModelRuns, key: str) -> list[bool] | None:
    """Set a config key to a small window, run the model, and return which layers have the window.

    Args:
        runs: The model, which can be built from a changed config and run again.
        key: A key that may hold the length of a window, such as sliding_window.

    Returns:
        For each of the first layers whether the last token attends only to the tokens next to it.
        None where the class does not accept such a config.
    """
    all_keys = runs.config_keys()

    def set_window(part: Config) -> None:
        """Write the small window into the text part of a config.json."""
        part[key] = SMALL_WINDOW
        # Qwen 2: a flag switches the window on, for the layers from a number on. 0 means all.
        if WINDOW_SWITCH in all_keys:
            part[WINDOW_SWITCH] = True
            if FIRST_LAYER_KEY in all_keys:
                part[FIRST_LAYER_KEY] = 0

    # run the first layers over `TOKENS` tokens at the positions 0, 1, 2, ..., as in a usual text
    try:
        changed_text = runs.subject.changed(set_window)
        observer = runs.build(shorten(changed_text, runs.first_layer_count))
        seen_by_layer = observer.run(keep_outputs, positions=range(TOKENS))
    except Exception:  # a class can raise anything
        return None

    has_window = [False] * runs.first_layer_count
    for layer_name, seen in seen_by_layer.items():
        *_, last_part = layer_name.split(".")  # "3" in "model.layers.3"
        number = int(last_part)
        # `visible` has a row for each token: which tokens it attends to
        if seen.visible is not None and number < len(has_window):
            visible_to_last_token = seen.visible[-1]
            has_window[number] = _is_window(visible_to_last_token)
    return has_window


def _is_window(visible: Numbers) -> bool:
    """Whether the last token sees a run of tokens that ends at itself, and not the first ones.

    Args:
        visible: Whether the last token sees each token, of shape (tokens,).
    """
    if visible[0]:
        return False
    first_seen = int(np.argmax(visible))  # the first True
    # a choice of tokens, such as that of Doge's keep_window_size, has gaps
    has_no_gaps = bool(visible[first_seen:].all())
    return has_no_gaps and first_seen >= TOKENS - MOST_SEEN
