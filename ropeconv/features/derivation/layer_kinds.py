"""Which layers rotate by which frequencies, and how the kinds of layers are laid out.

The experiment is one run of the whole model: layers whose queries rotate by the same frequencies
are of one kind. `find_kinds` names the kinds:

global   the frequencies that are extended: those of layers that see the whole context
local    a second set of frequencies, which layers with a sliding window have (Gemma 3)
none     the layer does not rotate (NoPE), or has no attention

`describe_layers` then looks for the rule by which a config without that run knows the kind of each
layer: the type of each layer by its name, a list of flags, or an order such as "every sixth".
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Literal

from .asked_model import Config, NotDerivable
from .rotation import Attention, Rotation

if TYPE_CHECKING:
    from ropeconv.models.family import Kind

FULL_TYPE = "full_attention"
"""The name that transformers gives to layers that see the whole context."""
SLIDING_TYPE = "sliding_attention"
"""The name that transformers gives to layers with a sliding window."""
TYPE_OF_KIND: dict[Kind, str] = {
    "global": FULL_TYPE,
    "local": SLIDING_TYPE,
    "none": "no_rope",  # a name that ropeconv made; transformers has none
}
"""The type of layers of each kind in a family file, for a class that names no types."""

OddLayer = Literal["", "first", "final", "both"]
"""The layers that do not follow the order of the others; empty where all do."""


def types_of_layers(text: Any, count: int) -> list[str] | None:
    """Return the type of each layer by its name; None where the class has none.

    Args:
        text: The config of the text model, an object of transformers.
        count: The number of layers.
    """
    types = getattr(text, "layer_types", None)
    if isinstance(types, list) and len(types) >= count:
        return [str(name) for name in types[:count]]
    return None


def find_kinds(
    attention: Sequence[Attention | None], types: Sequence[str] | None
) -> tuple[list[Kind], dict[Kind, Rotation]]:
    """Return the kind of each layer, and the rotation (the frequencies) of each kind.

    A layer is "global" (it sees the whole context), "local" (it has a window, and frequencies of
    its own) or "none" (it does not rotate).

    Args:
        attention: How each layer rotates, as measured; None for one without queries and keys.
        types: The type of each layer, such as "sliding_attention"; None where the class has none.

    Returns:
        Such as ["local", "local", "global"] and {"global": ..., "local": ...}.

    Raises:
        NotDerivable: No layer rotates, or there are more than two sets of frequencies.
    """
    # the different rotations, and for each layer the index of its rotation; None for a layer that
    # does not rotate
    rotations: list[Rotation] = []
    rotation_of_layer: list[int | None] = []
    for layer in attention:
        if layer is None or not layer.rotates or layer.queries is None:
            rotation_of_layer.append(None)
            continue
        index = _index_of_equal(layer.queries, rotations)
        if index is None:  # the first layer with this rotation
            index = len(rotations)
            rotations.append(layer.queries)
        rotation_of_layer.append(index)
    if not rotations:
        raise NotDerivable("no layer rotates")
    if len(rotations) > 2:
        raise NotDerivable(f"its layers rotate by {len(rotations)} different sets of frequencies")

    # the names of the kinds
    global_index = _index_of_global(rotations, rotation_of_layer, types)
    kinds: list[Kind] = []
    for layer_index in rotation_of_layer:
        if layer_index is None:
            kinds.append("none")
        elif layer_index == global_index:
            kinds.append("global")
        else:
            kinds.append("local")
    by_kind: dict[Kind, Rotation] = {"global": rotations[global_index]}
    for index, rotation in enumerate(rotations):
        if index != global_index:
            by_kind["local"] = rotation
    return kinds, by_kind


def _index_of_equal(rotation: Rotation, others: Sequence[Rotation]) -> int | None:
    """Return the index of the rotation that rotates by the same angles; None without one."""
    for index, other in enumerate(others):
        if rotation.is_like(other):
            return index
    return None


def _index_of_global(
    rotations: Sequence[Rotation],
    rotation_of_layer: Sequence[int | None],
    types: Sequence[str] | None,
) -> int:
    """Return the index of the rotation of global layers, which see the whole context.

    It is that of layers of the type full_attention. Without such a layer, it is the rotation with
    the slowest pair (the smallest frequency), since layers with a window need no slow ones.

    Args:
        rotations: The different rotations, one or two.
        rotation_of_layer: For each layer the index of its rotation, such as [1, 1, 0]; None for a
            layer that does not rotate.
        types: The type of each layer, such as "sliding_attention"; None where the class has none.
    """
    # in nearly every model all layers of the type full_attention rotate alike; where they do not,
    # the last of them counts
    global_index = None
    for layer_type, index in zip(types or (), rotation_of_layer, strict=False):
        if layer_type == FULL_TYPE and index is not None:
            global_index = index
    if global_index is not None:
        return global_index

    slowest_pairs = []
    for rotation in rotations:
        turning_pairs = [inv_freq for inv_freq in rotation.inv_freq if inv_freq > 0]
        slowest_pairs.append(min(turning_pairs))
    return slowest_pairs.index(min(slowest_pairs))


def find_widths(attention: Sequence[Attention | None], kinds: Sequence[Kind]) -> dict[Kind, int]:
    """Return the width of a head in the first layer of each kind.

    Args:
        attention: The attention of each layer.
        kinds: The kind of each layer: "global", "local" with frequencies of its own, or "none".
    """
    widths: dict[Kind, int] = {}
    for item, kind in zip(attention, kinds, strict=True):
        if item is not None:
            widths.setdefault(kind, item.width)
    return widths


def describe_layers(
    types: Sequence[str] | None,
    kinds: Sequence[Kind],
    part: Config,
    text: Any,
    not_derived: list[str],
) -> Config:
    """Return how a config says the kind of each layer: the table [layers] of a family file.

    For Gemma 3, with a global layer after every five local layers:

        {"types": {"sliding_attention": "local", "full_attention": "global"}, "interval": 6}

    Args:
        types: The type of each layer, such as "sliding_attention"; None where the class has none.
        kinds: The kind of each layer: "global", "local" with frequencies of its own, or "none".
        part: The settings of the text model in config.json.
        text: The config of the text model, an object of transformers.
        not_derived: A list to which a sentence is appended where the order in models of another
            size is not known.

    Returns:
        The fields of `models.family.Layers`; {} where all layers are alike.
    """
    # Llama: all layers are alike
    all_rotate_alike = set(kinds) == {"global"}
    has_several_types = types is not None and len(set(types)) > 1
    if all_rotate_alike and not has_several_types:
        return {}

    # SmolLM 3: a list in the config has a flag for each layer, 0 for a layer that does not rotate
    list_of_flags = _find_flags(kinds, part, text)
    if list_of_flags:
        return list_of_flags

    # Gemma 3: a list has the type of each layer, and layers of one type rotate alike
    if types is not None and _each_type_is_of_one_kind(types, kinds):
        order = _describe_order(types, not_derived)  # such as {"interval": 6}
        if all_rotate_alike:  # types differ in their window only
            return order
        return {"types": dict(zip(types, kinds, strict=True)), **order}

    # no family can describe a list of types if layers of one type rotate in different ways
    if "layer_types" in part:
        raise NotDerivable("layers of one type rotate in different ways")

    # no list: the family file gives names to the kinds, such as "no_rope"
    made_types = [TYPE_OF_KIND[kind] for kind in kinds]
    order = _describe_order(made_types, not_derived)
    return {"types": dict(zip(made_types, kinds, strict=True)), **order}


def _each_type_is_of_one_kind(types: Sequence[str], kinds: Sequence[Kind]) -> bool:
    """Whether all layers of one type are of one kind."""
    pairs = set(zip(types, kinds, strict=True))
    return len(pairs) == len(set(types))


def _find_flags(kinds: Sequence[Kind], part: Config, text: Any) -> Config:
    """Return the config key of a list that says which layers rotate; {} without a list.

    SmolLM 3: its list no_rope_layers has 0 for each layer that does not rotate, which is every
    fourth. The result is {"flags": "no_rope_layers", "interval": 4, "interval_key":
    "no_rope_layer_interval"}.

    Args:
        kinds: The kind of each layer: "global", "local" with frequencies of its own, or "none".
        part: The settings of the text model in config.json.
        text: The config of the text model, of transformers, which may have made the list.
    """
    # flags have two values, so they cannot describe layers with two sets of frequencies
    all_layers_rotate = "none" not in kinds
    has_two_sets = "local" in kinds
    if all_layers_rotate or has_two_sets:
        return {}
    rotates = [kind != "none" for kind in kinds]
    name_of_list = _find_list(rotates, part, text)
    if not name_of_list:
        return {}
    facts: Config = {"flags": name_of_list}

    # A config may lack the list. The class then makes it from an interval: with the interval 4,
    # layers 4, 8, 12, ... do not rotate, counted from 1.
    interval = rotates.index(False) + 1
    rotates_by_interval = []
    for number in range(1, len(rotates) + 1):
        rotates_by_interval.append(number % interval != 0)
    if rotates == rotates_by_interval:
        facts["interval"] = interval

    # the key of the interval, such as no_rope_layer_interval
    for key in vars(text):
        if key.endswith("layer_interval"):
            facts["interval_key"] = key
            break
    return facts


def _find_list(rotates: Sequence[bool], part: Config, text: Any) -> str:
    """Return the key about RoPE whose list says which layers rotate; empty without one.

    Args:
        rotates: Whether each layer rotates, as measured.
        part: The settings of the text model in config.json.
        text: The config of the text model, of transformers, which may have made the list.
    """
    count = len(rotates)
    keys: list[str] = [*part, *vars(text)]
    for name in dict.fromkeys(keys):
        if "rope" not in name:
            continue
        flags = part.get(name, getattr(text, name, None))
        if not isinstance(flags, list) or len(flags) < count:  # not one entry per layer
            continue
        if [bool(flag) for flag in flags[:count]] == list(rotates):
            return name
    return ""


def _describe_order(types: Sequence[str], not_derived: list[str]) -> Config:
    """Return how the types of layers follow each other, for a config that does not list them.

    The simplest rule is found first: every sixth layer has another type (an interval), or a list of
    types repeats (a pattern). If no rule holds for all layers, the last layer may break it, then
    the first one, then both.

    Args:
        types: The type of each layer, such as "sliding_attention".
        not_derived: A list to which a sentence is appended where there is no rule, and only the
            list itself is known.

    Returns:
        {"interval": 6} or {"pattern": ["a", "a", "b"]}; also {"first": type} or {"final": type} for
        a layer that breaks the rule. {} where all layers have one type.
    """
    if len(set(types)) == 1:
        return {}
    odd_layers: tuple[OddLayer, ...] = ("", "final", "first", "both")
    for search in (_find_interval, _find_pattern):
        for odd_layer in odd_layers:
            found = search(types, odd_layer)
            if not found:
                continue
            if odd_layer in ("first", "both"):
                found["first"] = types[0]
            if odd_layer in ("final", "both"):
                found["final"] = types[-1]
            return found
    not_derived.append("how the types of layers follow each other in models of another size")
    return {"pattern": list(types)}


def _layers_without(count: int, odd_layer: OddLayer) -> range:
    """Return the numbers of the layers, without the first or the last one, or both."""
    first = 1 if odd_layer in ("first", "both") else 0
    end = count - 1 if odd_layer in ("final", "both") else count
    return range(first, end)


def _find_pattern(types: Sequence[str], odd_layer: OddLayer) -> Config:
    """Return the shortest list of types that repeats, such as {"pattern": ["a", "b", "b"]}.

    This is the pattern of the types a, b, b, a, b, b. {} where no list of two or more types repeats
    at least twice.

    Args:
        types: The type of each layer, such as "sliding_attention".
        odd_layer: The layers that need not follow the pattern: the "first" one, the "final" one,
            "both", or "" for none.
    """
    layers = _layers_without(len(types), odd_layer)
    for period in range(2, len(types) // 2 + 1):
        # The type of the first layer at each place in the pattern. At most the first and the final
        # layer are left out, and the pattern fits twice, so each place has a layer.
        type_by_place: dict[int, str] = {}
        for layer in layers:
            type_by_place.setdefault(layer % period, types[layer])
        pattern = [type_by_place[place] for place in range(period)]

        repeats = all(types[layer] == pattern[layer % period] for layer in layers)
        if repeats:
            return {"pattern": pattern}
    return {}


def _find_interval(types: Sequence[str], odd_layer: OddLayer) -> Config:
    """Return the interval at which one layer has another type; {} where there is no interval.

    - a, a, b, a, a, b: {"interval": 3, "last": "b", "rest": "a"}, the type of every third layer,
      and the type of all others;
    - b, a, a, b, a, a: {"interval": 3, "leading": True, "last": "b", "rest": "a"}, where the layer
      of type b is the first of each interval.

    Args:
        types: The type of each layer, such as "sliding_attention".
        odd_layer: The layers that need not follow the interval: the "first" one, the "final" one,
            "both", or "" for none.
    """
    count = len(types)
    layers = _layers_without(count, odd_layer)
    for interval in range(2, count // 2 + 1):
        # the single layer may be the last or the first of each interval
        for place in (interval - 1, 0):
            single_layers = [layer for layer in layers if layer % interval == place]
            other_layers = [layer for layer in layers if layer % interval != place]
            is_repeated = len(single_layers) >= 2 and len(other_layers) >= 1
            if not is_repeated:
                continue
            types_of_single = {types[layer] for layer in single_layers}
            types_of_others = {types[layer] for layer in other_layers}
            has_one_type_each = len(types_of_single) == 1 and len(types_of_others) == 1
            if has_one_type_each and types_of_single != types_of_others:
                (single_type,) = types_of_single
                (other_type,) = types_of_others
                is_first = place == 0
                return _interval_facts(interval, single_type, other_type, is_first)
    return {}


def _interval_facts(interval: int, single_type: str, other_type: str, is_first: bool) -> Config:
    """Return the fields of a family file for one layer of another type in each interval.

    The usual types, full_attention for the single layer and sliding_attention for the others, are
    left out.

    Args:
        interval: The number of layers of an interval.
        single_type: The type of the single layer.
        other_type: The type of all other layers.
        is_first: Whether the single layer is the first of each interval, and not the last.
    """
    facts: Config = {"interval": interval}
    if is_first:
        facts["leading"] = True
    if single_type != FULL_TYPE:
        facts["last"] = single_type
    if other_type != SLIDING_TYPE:
        facts["rest"] = other_type
    return facts
