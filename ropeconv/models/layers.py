"""Which layers of a config.json rotate, how many tokens each sees, and where its projections are.

`part` is the text part of a config throughout.
"""

import re
from collections.abc import Container, Iterable
from typing import Literal

from ..errors import BadSource
from ..rope.errors import counted
from .family import Family, Kind, Layers
from .schema import Config, positive_int

LAYER_NUMBER = re.compile(r"[0-9]{1,5}")
WINDOWED = ("sliding_attention", "chunked_attention", "hybrid_sliding")


def layer_types(part: Config, family: Family) -> dict[str, Kind]:
    """Return the kind of the layers of each type, as {"sliding_attention": "local"} for Gemma 3.

    "global" layers are extended, "local" ones keep frequencies of their own, and "none" do not
    rotate. A type that is not in the result is "global". In most families the kinds are fixed.
    """
    types = family.layers.types
    settings = part.get("rope_parameters")
    if not family.layers.null_is_none or not isinstance(settings, dict):
        return types

    # in some families, {"full_attention": null, ...} says that these layers do not rotate
    kinds: dict[str, Kind] = {}
    for name, kind in types.items():
        is_null = name in settings and settings[name] is None
        kinds[name] = "none" if is_null else kind

    # then the layers with a window are the ones that rotate, and are extended
    if "global" not in kinds.values():
        for name, kind in kinds.items():
            if kind == "local":
                kinds[name] = "global"
    return kinds


def kinds_of(part: Config, family: Family, names: Iterable[str]) -> tuple[Kind, ...]:
    """Return the kind of each layer, such as "global", from the name of its type."""
    types = layer_types(part, family)
    return tuple(types.get(name, "global") for name in names)


def settings_name(part: Config, family: Family, kind: Kind) -> str:
    """The layer type under which a nested `rope_parameters` has a kind of layers; else empty."""
    for name, type_kind in layer_types(part, family).items():
        if type_kind == kind:
            return name
    return ""


def own_settings(part: Config) -> dict[int, Config]:
    """Settings of single layers by their numbers: `per_layer_config` of transformers."""
    by_layer = {}
    for number, settings in (part.get("per_layer_config") or {}).items():
        if LAYER_NUMBER.fullmatch(number):
            by_layer[int(number)] = settings
    return by_layer


def layer_names(part: Config, family: Family, count: int) -> tuple[str, ...]:
    """Return the type of each layer, such as ("sliding_attention", "full_attention", ...).

    Args:
        part: The text part of the config.
        family: The family of the model.
        count: The number of layers.

    Raises:
        BadSource: The config lists the types of fewer layers.
    """
    # Gemma 3 and others: a list in the config
    rules = family.layers
    key = family.hooks.types_key  # "layer_types" in most families
    listed = part.get(key)
    if isinstance(listed, list) and all(isinstance(name, str) for name in listed):
        if len(listed) < count:
            raise BadSource(
                f"config.json has {len(listed)} {key} and {counted(count, 'layer')}; name the type"
                " of each"
            )
        return tuple(listed)

    # no list: as the class in transformers does it, by code for the family or by a rule
    names = family.hooks.layer_names(part, rules, count)  # empty for most families
    if not names:
        names = _names_by_rule(part, rules, count)
    if rules.backward:  # the rule counts from the last layer
        names.reverse()

    # families whose first or last layer always has the same type; a slice also works for a model
    # without layers
    type_of_first_layer = rules.first
    type_of_last_layer = rules.final
    if type_of_first_layer:
        names[:1] = [type_of_first_layer]
    if type_of_last_layer:
        names[-1:] = [type_of_last_layer]
    return tuple(names)


def _names_by_rule(part: Config, rules: Layers, count: int) -> list[str]:
    """Return the layer types of a config that does not list them, such as "sliding_attention".

    Args:
        part: The text part of the config.
        rules: The rules of the family. Layers that a rule selects have the type `rules.last`, such
            as "full_attention", and the others `rules.rest`, such as "sliding_attention".
        count: The number of layers.
    """
    # a list with the numbers of the selected layers
    if rules.indices:
        numbers = part.get(rules.indices)
        if isinstance(numbers, list):
            return [rules.last if layer in numbers else rules.rest for layer in range(count)]

    # a pattern that repeats, such as ("sliding_attention", "full_attention")
    if rules.pattern:
        return [rules.pattern[layer % len(rules.pattern)] for layer in range(count)]

    # an interval: 3 selects the layers 2, 5, 8, ...; 0 selects all layers
    interval: int | None = rules.interval
    if rules.interval_key:
        interval = positive_int(part, (rules.interval_key,), rules.interval)
    if not interval:
        return [rules.last] * count
    return at_intervals(rules, count, interval)


def at_intervals(rules: Layers, count: int, interval: int) -> list[str]:
    """Return the types of layers, with the type `rules.last` once in each interval.

    The layer with this type is the last of its interval, or with `rules.leading` the first.
    """
    place_in_interval = 0 if rules.leading else interval - 1
    names = []
    for layer in range(count):
        is_last_type = layer % interval == place_in_interval
        names.append(rules.last if is_last_type else rules.rest)
    return names


def _kinds_by_interval(part: Config, rules: Layers, count: int) -> tuple[Kind, ...]:
    """Return the kinds of layers: the last layer of each interval does not rotate.

    With an interval of 4, these are the layers 3, 7, 11, ... Without one, all layers rotate.

    Args:
        part: The text part of the config, which may state the interval.
        rules: The rules of the family, with the key of the interval and its default.
        count: How many layers there are.
    """
    class_default = rules.interval or None
    interval = positive_int(part, (rules.interval_key,), class_default)
    kinds: list[Kind] = []
    for layer in range(count):
        is_last_of_interval = interval is not None and (layer + 1) % interval == 0
        kinds.append("none" if is_last_of_interval else "global")
    return tuple(kinds)


def layer_kinds(part: Config, family: Family, count: int) -> tuple[Kind, ...]:
    """Return the kind of each layer: "global", "local" or "none".

    The context of global layers is extended. Local layers have frequencies of their own, which no
    method changes. Layers of the kind "none" have no RoPE.

    Args:
        part: The text part of the config.
        family: The family of the model.
        count: The number of layers.
    """
    rules = family.layers
    has_layer_types = bool(rules.types)

    # Llama 4 and SmolLM3: the list no_rope_layers, where 1 stands for a layer with RoPE in spite of
    # the name: [1, 1, 1, 0, ...]
    if rules.flags:
        flags = part.get(rules.flags)
        if isinstance(flags, list) and flags:
            return tuple("global" if flag else "none" for flag in flags)
        if not has_layer_types:
            return _kinds_by_interval(part, rules, count)

    # Llama 3: all layers are alike
    if not has_layer_types:
        return tuple("global" for _ in range(count))
    # families whose layers are all alike in a config without a sliding window
    if rules.one_kind_without_window and window_size(part, family) is None:
        return tuple("global" for _ in range(count))

    # Gemma 3: by the type of each layer
    names = layer_names(part, family, count)[:count]
    return family.hooks.layer_kinds(part, kinds_of(part, family, names))


def key_layers(part: Config, family: Family, count: int) -> tuple[int, ...]:
    """Return for each layer the number of the layer whose keys it uses.

    Most layers make their own keys. The last `num_kv_shared_layers` layers of Gemma 3n use the keys
    of the last earlier layer that has the same layer type and makes keys. With 6 layers of the
    types A A B A B B, of which the last 3 make no keys, the result is (0, 1, 2, 1, 2, 2).
    """
    key, class_default = family.cache.shared  # e.g. ("num_kv_shared_layers", 15)
    layers_without_keys = 0
    if key:  # empty in a family where all layers have keys
        layers_without_keys = positive_int(part, (key,), class_default, least=0) or 0
    first_without_keys = count - layers_without_keys

    last_with_keys: dict[str, int] = {}  # by layer type
    layers_of_keys = []
    for layer, layer_type in enumerate(layer_names(part, family, count)):
        if layer < first_without_keys:
            last_with_keys[layer_type] = layer
        layers_of_keys.append(last_with_keys.get(layer_type, layer))
    return tuple(layers_of_keys)


def window_size(part: Config, family: Family) -> int | None:
    """Return how many tokens a layer with a sliding window or chunk sees; None without a window.

    Returns 0 for a window of 0, with which transformers masks every token.
    """
    window = family.window
    # Llama 3: no layer of the family has a window
    if not window.key:
        return None
    # Qwen2.5: the config has sliding_window, but use_sliding_window is false
    if window.switch and not part.get(window.switch, False):
        return None

    # an absent key means the default of the class, and null means that there is no window
    value = part.get(window.key, window.default)
    size = positive_int({window.key: value}, (window.key,), least=0)
    # ModernBERT: the key counts both sides of a token (`divided_by` is 2)
    if size is not None:
        size //= window.divided_by
    return family.hooks.window_size(part, size)  # the size itself in most families


def layer_windows(part: Config, family: Family, kinds: tuple[Kind, ...]) -> tuple[int | None, ...]:
    """Return how many tokens each layer sees: the size of its window, None for the whole context.

    Args:
        part: The text part of the config.
        family: The family of the model.
        kinds: The kind of each layer.

    Raises:
        BadSource: For a window of 0 that a layer has.
    """
    window = family.window
    size = window_size(part, family)
    if size is None:
        return (None,) * len(kinds)
    has_window = _has_window(part, family, kinds)
    if size == 0 and any(has_window):
        raise BadSource(
            f"config.json has {window.key} = 0, with which a layer sees no token; write how many"
            " tokens it sees, or null for all"
        )

    # a config can have settings for single layers, by their numbers
    own_sizes = {}
    for layer, settings in own_settings(part).items():
        own_sizes[layer] = positive_int(settings, (window.key,), size, least=0)
    windows: list[int | None] = []
    for layer in range(len(kinds)):
        if has_window[layer]:
            windows.append(own_sizes.get(layer, size))
        else:
            windows.append(None)
    return tuple(windows)


def _has_window(part: Config, family: Family, kinds: tuple[Kind, ...]) -> list[bool]:
    """Return for each layer whether it sees only a sliding window (or chunk).

    Args:
        part: The text part of the config, of a model that has a window.
        family: The family of the model.
        kinds: How each layer rotates; "none" for one that does not.
    """
    # in some families it depends on whether the layer rotates, and in some all layers have one
    window = family.window
    if window.layers == "rotating":
        return [kind != "none" for kind in kinds]
    if window.layers == "not-rotating":
        return [kind == "none" for kind in kinds]
    if window.layers == "all":
        return [True] * len(kinds)

    # else by the number of the layer (max_window_layers of Qwen2), or by its layer type
    if window.first_key and not part.get("layer_types"):
        first = positive_int(part, (window.first_key,), window.first, least=0) or 0
        return [layer >= first for layer in range(len(kinds))]
    return [name in WINDOWED for name in layer_names(part, family, len(kinds))]


Which = Literal["q", "k"]


def layer_prefixes(layer: int, family: Family) -> tuple[str, ...]:
    """Return the possible prefixes of a layer's tensor names; `layer` counts attention blocks."""
    number, block = divmod(layer, family.layers.blocks)
    block_name = family.hooks.blocks[block] if family.hooks.blocks else block
    return tuple(pattern.format(layer=number, block=block_name) for pattern in family.weights.layer)


def layer_prefix(layer: int, family: Family, names: Container[str]) -> str | None:
    """Return the prefix of a layer's tensor names; None if `names` has none of its projections."""
    weights = family.weights
    projections = [name for name in (weights.k, weights.fused, weights.q) if name]
    for prefix in layer_prefixes(layer, family):
        if any(f"{prefix}{name}.weight" in names for name in projections):
            return prefix
    return None


def head_count(part: Config, family: Family) -> int:
    """Return the number of heads of queries.

    Args:
        part: The text part of config.json.
        family: The family of the model.

    Raises:
        BadSource: Where it is not stated.
    """
    heads = positive_int(part, family.keys.heads, family.defaults.heads)
    if heads is None:
        raise BadSource(f"config.json has no {family.keys.heads[0]}; add it")
    return heads


def fused_heads(
    which: Which, rows: int, heads: int, head_dim: int, family: Family
) -> tuple[int, ...]:
    """Return the first row of each head of queries or keys in a fused projection of q, k and v.

    The order of the heads depends on the family. For 4 heads of queries, 2 of keys and 2 of values:

        "blocks"     q q q q k k v v
        "per-group"  q q k v q q k v
        "per-head"   q k v q k v q k v q k v (4 heads each)

    Args:
        which: "q" or "k".
        rows: The number of rows of the projection.
        heads: The number of heads of queries.
        head_dim: The number of rows of a head.
        family: The family of the model, with the order (`weights.fused_order`).
    """
    order = family.weights.fused_order
    all_heads = rows // head_dim  # heads of queries, keys and values

    # In blocks. HRM-Text ("gate-and-blocks") has a gate for each head of queries in front.
    if order.endswith("blocks"):
        gates = heads if order == "gate-and-blocks" else 0
        kv_heads = (all_heads - gates - heads) // 2  # half of the rest are keys, and half values
        first_key = gates + heads
        places = range(gates, first_key)
        if which == "k":
            places = range(first_key, first_key + kv_heads)
        return tuple(place * head_dim for place in places)

    # In groups of some queries, one key and one value. "per-head" has one query in a group.
    kv_heads = heads
    if order != "per-head":
        kv_heads = (all_heads - heads) // 2
    groups = kv_heads
    queries_in_group = heads // groups
    heads_in_group = queries_in_group + 2
    places_in_group = range(queries_in_group)
    if which == "k":
        key_place = queries_in_group  # behind the queries
        places_in_group = range(key_place, key_place + 1)
    first_rows = []
    for group in range(groups):
        for place in places_in_group:
            first_rows.append((group * heads_in_group + place) * head_dim)
    return tuple(first_rows)
