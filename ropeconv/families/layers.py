"""Which layers of a config.json rotate, by which frequencies, and how many tokens each of them sees."""

from __future__ import annotations

from ..errors import BadSource
from .family import Family, Kind
from .keys import Config, positive_int

WINDOWED = ("sliding_attention", "chunked_attention")


def layer_names(part: Config, family: Family, count: int) -> tuple[str, ...]:
    """The layer type of each of `count` layers: the config's `layer_types`, else as the stock class derives them.

    part: the text part of the config.
    """
    rules = family.layers
    listed = part.get("layer_types")
    if isinstance(listed, list) and all(isinstance(name, str) for name in listed):
        return tuple(listed)
    interval = positive_int(part, (rules.interval_key,), rules.interval) if rules.interval_key else rules.interval
    if not interval:
        return (rules.last,) * count
    ahead = 0 if rules.from_first else 1
    return tuple(rules.last if (index + ahead) % interval == 0 else rules.rest for index in range(count))


def layer_kinds(part: Config, family: Family, count: int) -> tuple[Kind, ...]:
    """The kind of each of `count` layers. part: the text part of the config."""
    rules = family.layers
    flagged: tuple[Kind, Kind] = ("none", "global")
    if rules.flags:
        flags = part.get(rules.flags)
        if isinstance(flags, list) and flags:
            return tuple(flagged[bool(flag)] for flag in flags)
        interval = positive_int(part, (rules.interval_key,), rules.interval) or count + 1
        return tuple(flagged[(index + 1) % interval != 0] for index in range(count))
    if not rules.types or (rules.one_kind_without_window and window_size(part, family) is None):
        return (flagged[1],) * count
    return tuple(rules.types.get(name, "global") for name in layer_names(part, family, count))


def window_size(part: Config, family: Family) -> int | None:
    """The tokens that a layer with a sliding window or chunk sees; None where the model has none.

    part: the text part of the config. A null means none, and so does a switch that is off; an absent key means the
    default of the stock class. 0 is no length: transformers masks everything with it, in layers that have a window.
    """
    window = family.window
    if not window.key or (window.switch and not part.get(window.switch, False)):
        return None
    value = part.get(window.key, window.default)
    return positive_int({window.key: value}, (window.key,), least=0)


def layer_windows(part: Config, family: Family, kinds: tuple[Kind, ...]) -> tuple[int | None, ...]:
    """The tokens that each layer sees: its sliding window or chunk, None for the whole context.

    part: the text part of the config. kinds: of the layers. Raises BadSource for a window of 0 that a layer has.
    """
    window, size = family.window, window_size(part, family)
    if size is None:
        return (None,) * len(kinds)
    flags = [True] * len(kinds)
    if window.layers == "rotating":
        flags = [kind != "none" for kind in kinds]
    elif window.layers == "not-rotating":
        flags = [kind == "none" for kind in kinds]
    elif window.layers == "named":
        flags = [name in WINDOWED for name in layer_names(part, family, len(kinds))]
        if window.first_key and not part.get("layer_types"):
            first = positive_int(part, (window.first_key,), window.first, least=0) or 0
            flags = [index >= first for index in range(len(kinds))]
    if size == 0 and any(flags):
        raise BadSource(
            f"config.json has {window.key} = 0, with which a layer sees no token; write how many tokens it sees, or "
            "null for all"
        )
    return tuple(size if flag else None for flag in flags)
