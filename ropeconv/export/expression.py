"""Numbers from config keys: `a`, `a * b`, `a + b`, `a | b`, where `a | b` is the first of both that is there."""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import reduce
from operator import add, floordiv, mul, sub
from typing import Any

from ..errors import BadSource, shown
from ..families.config import Config

OPERATORS = ((" + ", add), (" * ", mul))
INVERSE = {" + ": sub, " * ": floordiv}
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


def solved(values: Mapping[str, Any]) -> Config:
    """The config keys with which expressions have these values, the inverse of `value_of`.

    values: by expression. Of `a | b` both keys get the value. A key that several expressions do not tell is left out.
    Raises BadSource where no values of the keys make all expressions true.
    """
    found: Config = {}
    for text, value in values.items():
        if not _sign(text):
            found |= dict.fromkeys(names_in(text), value)
    left = {text for text in values if _sign(text)}
    while ready := {text for text in left if len(_unknown(text, found)) <= 1}:
        for text in sorted(ready):
            sign, unknown = _sign(text), _unknown(text, found)
            known = [value_of(found, part) for part in text.split(sign) if part not in unknown]
            found |= dict.fromkeys(unknown, reduce(INVERSE[sign], known, values[text]))
            if value_of(found, text) != values[text]:
                raise BadSource(
                    f"the header has {shown(values[text])} for {text}, and other keys deny it; fetch it again"
                )
        left -= ready
    return found


def _sign(text: str) -> str:
    return next((sign for sign, _ in OPERATORS if sign in text), "")


def _unknown(text: str, known: Config) -> set[str]:
    return {name for name in names_in(text) if name not in known}
