"""Reads single keys of a config.json."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from ..errors import BadSource

Config = dict[str, Any]


def first_present(part: Config, keys: Iterable[str], default: Any = None) -> Any:
    """The value of the first key that is present and not null."""
    return next((part[key] for key in keys if part.get(key) is not None), default)


def positive_int(part: Config, keys: tuple[str, ...], default: int | None = None) -> int | None:
    """Like `first_present`, for a positive whole number. Raises BadSource for another value."""
    value = first_present(part, keys, default)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, (int, float)) or value != int(value) or value < 1:
        raise BadSource(f"config.json has {keys[0]} = {value!r}; write a positive whole number there")
    return int(value)
