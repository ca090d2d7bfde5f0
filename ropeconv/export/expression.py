"""Numbers from config keys: `a`, `a * b`, `a + b`, `a | b`, where `a | b` is the first of both that is there."""

from __future__ import annotations

import re
from functools import reduce
from operator import add, mul
from typing import Any

from ..errors import BadSource, shown
from ..families.config import Config

OPERATORS = ((" + ", add), (" * ", mul))
LARGEST = 3e38  # of f32
NAMES = re.compile(r"[A-Za-z_]\w*")


def names_in(text: str) -> list[str]:
    """The config keys that an expression reads."""
    return NAMES.findall(text)


def value_of(config: Config, text: str) -> Any:
    """The value of an expression, None where a key of it is absent or null.

    config: the text part of a config. text: the expression. Raises BadSource for what is no number in a sum or product.
    """
    for sign, operator in OPERATORS:
        if sign in text:
            values = [value_of(config, part) for part in text.split(sign)]
            if any(value is None for value in values):
                return None
            return reduce(operator, (number(value, text) for value in values))
    if text.isdigit():
        return int(text)
    return next((config[name] for name in text.split(" | ") if config.get(name) is not None), None)


def count(config: Config, text: str) -> int:
    """The value of an expression as a whole number. Raises BadSource where it is absent, or none that GGUF can hold."""
    value = value_of(config, text)
    if value is None:
        raise BadSource(f"config.json has no {text}, which GGUF needs; add it")
    return whole(value, text)


def whole(value: Any, name: str) -> int:
    """A value as a whole number of 32 bits. name: of its key. Raises BadSource."""
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value < 1 << 32:
        raise BadSource(f"config.json has {name} = {shown(value)}; write a whole number there")
    return value


def number(value: Any, name: str) -> Any:
    """A value as a number of 32 bits. name: of its key. Raises BadSource."""
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not abs(value) < LARGEST:
        raise BadSource(f"config.json has {name} = {shown(value)}; write a number there, below {LARGEST:g}")
    return value
