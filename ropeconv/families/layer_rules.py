"""The schema of what differs from layer to layer: which of them rotate, and which see a window alone."""

from __future__ import annotations

from typing import Literal

import msgspec

Kind = Literal["global", "local", "none"]


class Layers(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Which layers rotate, and with which frequencies.

    key: the config key of the list of layer types. types: the kind of layer for each name in it. Without that list
    every `interval`-th layer is `last` and the others are `rest`; with `leading` the first layer of each interval is
    `last`, not its final one. interval_key: the config key that sets `interval`. indices: the key of a list with the
    numbers of the layers that are `last`; ratios: of one whose entry is 0 for those that are `rest`. pattern: names
    that repeat, where neither is there. first, final: the first and the last layer, where they differ. flags: the key
    of a list whose entry is not 0 where the layer rotates (SmolLM3's no_rope_layers). one_kind_without_window: a model
    without a window has global layers alone. backward: intervals and patterns count from the last layer. dense: the key
    of the number of first layers without experts, where `mlp_layer_types` does not list them; dense_interval: the key
    of their own interval, which is 1 by default and lets all of them rotate then. blocks: attention blocks in each
    numbered layer, which count as that many layers. null_is_none: layers of a type whose settings are null do not
    rotate.
    """

    key: str = "layer_types"
    types: dict[str, Kind] = {}
    interval: int = 0
    interval_key: str = ""
    last: str = "full_attention"
    rest: str = "sliding_attention"
    leading: bool = False
    indices: str = ""
    ratios: str = ""
    pattern: tuple[str, ...] = ()
    first: str = ""
    final: str = ""
    flags: str = ""
    one_kind_without_window: bool = False
    backward: bool = False
    dense: str = ""
    dense_interval: str = ""
    blocks: int = 1
    null_is_none: bool = False


class Window(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The sliding window or chunk in which some layers see.

    key: the config key of its size in tokens, where null means none; empty for families without windows. default: that
    of the stock class. switch: a config key that has to be true. layers: which of them have it: all, those that rotate,
    those that do not, or those that `layer_types` names so. first_key, first: without that list, a config key with the
    number of the first such layer, and its default. chunked: the context is cut into chunks (Llama 4). divided_by: what
    the size is divided by (ModernBERT counts both sides). before_key: a config key that counts the tokens before one
    alone, and goes first.
    """

    key: str = ""
    default: int | None = None
    switch: str = ""
    layers: Literal["all", "named", "rotating", "not-rotating"] = "named"
    first_key: str = ""
    first: int = 0
    chunked: bool = False
    divided_by: int = 1
    before_key: str = ""


class QueryTemperature(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The factor `1 + beta ln(1 + floor((p + 1) / length))` on the queries of layers that do not rotate (Llama 4).

    switch, beta, length: config keys, each with the default of the stock class.
    """

    switch: tuple[str, bool]
    beta: tuple[str, float]
    length: tuple[str, int]
