"""Reads single keys of a config.json."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

from ..errors import BadSource, shown

Config = dict[str, Any]


def first_present(part: Config, keys: Iterable[str], default: Any = None) -> Any:
    """The value of the first key that is present and not null; a dot stands between the keys of nested objects."""
    values = (_at(part, key.split(".")) for key in keys)
    return next((value for value in values if value is not None), default)


def text_config(config: Config) -> Config | None:
    """The `text_config` of a config, which Qwen's Omni models have in their `thinker_config`; None without one."""
    thinker = config.get("thinker_config")
    text = (thinker if isinstance(thinker, dict) else config).get("text_config")
    return text if isinstance(text, dict) else None


def _at(part: Any, path: list[str]) -> Any:
    for key in path:
        part = part.get(key) if isinstance(part, dict) else None
    return part


def positive_int(part: Config, keys: tuple[str, ...], default: int | None = None, least: int = 1) -> int | None:
    """Like `first_present`, for a whole number of at least `least`. Raises BadSource for another value."""
    value = first_present(part, keys, default)
    if value is None:
        return None
    whole = isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)
    if not whole or value != int(value) or value < least:
        kind = "positive whole number" if least else "whole number"
        raise BadSource(f"config.json has {keys[0]} = {shown(value)}; write a {kind} there")
    return int(value)
