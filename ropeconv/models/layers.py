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
    """Return the kinds of layers by the names of their types."""
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
    """Return the layer type of each of `count` layers, e.g. "sliding_attention".

    They are those of a list in the config, or as the stock class derives them without one.

    Raises:
        BadSource: Where the list has fewer.
    """
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

    names = family.hooks.layer_names(part, rules, count)
    if not names:  # most families have no code for it, but a rule
        names = _names_by_rule(part, rules, count)
    if rules.backward:  # the rule counts from the last layer
        names.reverse()

    # the first or the last layer may be an exception; a model may have no layer at all
    if rules.first:
        names[:1] = [rules.first]
    if rules.final:
        names[-1:] = [rules.final]
    return tuple(names)


def _names_by_rule(part: Config, rules: Layers, count: int) -> list[str]:
    """Return the layer types of a config that does not list them, such as "sliding_attention".

    A family has one of three rules: the numbers of some layers, a pattern that repeats, or an
    interval. With the interval 3, usually two layers of the type `rules.rest` are followed by one
    of the type `rules.last`, and so on.
    """
    if rules.indices:
        numbers = part.get(rules.indices)
        if isinstance(numbers, list):
            return [rules.last if layer in numbers else rules.rest for layer in range(count)]
    if rules.pattern:  # such as ("sliding_attention", "full_attention")
        return [rules.pattern[layer % len(rules.pattern)] for layer in range(count)]

    interval: int | None = rules.interval
    if rules.interval_key:
        interval = positive_int(part, (rules.interval_key,), rules.interval)
    if not interval:
        return [rules.last] * count
    return at_intervals(rules, count, interval)


def at_intervals(rules: Layers, count: int, interval: int) -> list[str]:
    """Return the layer types of `count` layers of which one in each interval is `rules.last`."""
    at = 0 if rules.leading else interval - 1
    return [rules.last if index % interval == at else rules.rest for index in range(count)]


def _kinds_by_interval(part: Config, rules: Layers, count: int) -> tuple[Kind, ...]:
    """Return the kinds of layers of which the last of each interval does not rotate.

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
    """Return how each of `count` layers rotates.

    "global" layers have the frequencies that a method extends, "local" ones keep frequencies of
    their own, and "none" do not rotate.
    """
    rules = family.layers

    # Families with a list of the layers that rotate, such as no_rope_layers of Llama 4. In spite of
    # its name, 1 stands for a layer that rotates: [1, 1, 1, 0, ...].
    if rules.flags:
        flags = part.get(rules.flags)
        if isinstance(flags, list) and flags:
            return tuple("global" if flag else "none" for flag in flags)
        if not rules.types:
            return _kinds_by_interval(part, rules, count)

    # families whose layers are all alike, and those that have several kinds only with a window
    all_alike = not rules.types
    if rules.one_kind_without_window and window_size(part, family) is None:
        all_alike = True
    if all_alike:
        return tuple("global" for _ in range(count))

    names = layer_names(part, family, count)[:count]
    return family.hooks.layer_kinds(part, kinds_of(part, family, names))


def key_layers(part: Config, family: Family, count: int) -> tuple[int, ...]:
    """Return the layer that makes the keys of each layer: itself, or an earlier one of its type.

    The last `num_kv_shared_layers` layers of Gemma 3n have no keys of their own. Each uses those of
    the last layer before them that has its layer type.
    """
    key, default = family.cache.shared
    sharing = 0
    if key:
        sharing = positive_int(part, (key,), default, least=0) or 0
    first_sharing = count - sharing

    names = layer_names(part, family, count)
    last_of_type: dict[str, int] = {}
    makers = []
    for layer, name in enumerate(names):
        if layer < first_sharing:
            last_of_type[name] = layer
        makers.append(last_of_type.get(name, layer))
    return tuple(makers)


def window_size(part: Config, family: Family) -> int | None:
    """Return the tokens that a layer with a sliding window or chunk sees; None without windows.

    A null means none, and so does a switch that is off; an absent key means the default of the
    stock class. 0 is not a length: transformers masks everything with it, in layers that have a
    window.
    """
    window = family.window
    if not window.key:
        return None
    # Qwen2.5 has a sliding_window in its config, and use_sliding_window = false
    if window.switch and not part.get(window.switch, False):
        return None

    value = part.get(window.key, window.default)
    size = positive_int({window.key: value}, (window.key,), least=0)  # checks the number
    if size is not None:
        size //= window.divided_by
    return family.hooks.window_size(part, size)


def layer_windows(part: Config, family: Family, kinds: tuple[Kind, ...]) -> tuple[int | None, ...]:
    """Return the tokens that each layer sees: its window or chunk, None for the whole context.

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
    """Return where each head of queries or keys begins in a fused projection of q, k and v.

    With 4 heads of queries, 2 of keys and of values, a projection has the order
    q q q q k k v v ("blocks"), or for each head of keys q q k v ("groups").

    Args:
        which: "q" or "k".
        rows: Rows of the projection.
        heads: Number of heads of queries.
        head_dim: Rows of one head.
        family: The family of the model, which knows the order of the rows.
    """
    # each letter is a head, of head_dim rows
    order = family.weights.fused_order
    letters = rows // head_dim

    # q q q q k k v v: a block of all queries, then one of all keys. In HRM-Text a gate for each
    # head of queries comes before both. The rest are keys and values, as many of each.
    if order.endswith("blocks"):
        gates = heads if order == "gate-and-blocks" else 0
        kv_heads = (letters - gates - heads) // 2
        first_key = gates + heads
        places = range(gates, first_key)
        if which == "k":
            places = range(first_key, first_key + kv_heads)
        return tuple(place * head_dim for place in places)

    # q q k v q q k v: a group for each head of keys, with its queries, itself and its values;
    # q k v q k v ("per-head") is the same with a group for each head of queries
    groups = heads if order == "per-head" else (letters - heads) // 2
    queries = heads // groups
    letters_in_group = queries + 2
    wanted_in_group = range(queries)
    if which == "k":
        wanted_in_group = range(queries, queries + 1)
    starts = []
    for group in range(groups):
        for place in wanted_in_group:
            starts.append((group * letters_in_group + place) * head_dim)
    return tuple(starts)
