"""A recipe as it is written on a command line."""

from __future__ import annotations

import dataclasses
from typing import Any

from .methods.method import Method, Value
from .recipe import MODIFIERS, Recipe


def flags(recipe: Recipe) -> list[str] | None:
    """The words of a command line that give a recipe: `["--yarn", "16", "--context", "65536"]`.

    recipe: the recipe. None where its method has lists of numbers, which come from files.
    """
    method = recipe.method
    if any(isinstance(value, tuple) for value in vars(method).values()):
        return None
    words = [method.flag()]
    first, *settings = dataclasses.fields(method) if method.value is not Value.SWITCH else (None,)
    if first is not None:
        words.append(_text(getattr(method, first.name)))
    for item in settings:
        if item is not None and getattr(method, item.name) != item.default:
            words += _option(item.name, getattr(method, item.name), switch=_is_switch(method, item.name))
    for name in MODIFIERS:
        value = getattr(recipe, name)
        if value not in (None, False):
            words += _option(name, value)
    return words


def _is_switch(method: Method, name: str) -> bool:
    return isinstance(getattr(method, name), bool)


def _option(name: str, value: Any, switch: bool = False) -> list[str]:
    """An option with its value. switch: whether it is written --no-NAME where it is off."""
    spelled = name.replace("_", "-")
    if value is True:
        return [f"--{spelled}"]
    return [f"--no-{spelled}"] if switch else [f"--{spelled}", _text(value)]


def _text(value: Any) -> str:
    """A number without needless digits, which reads back as the same; other values as they are."""
    if not isinstance(value, float):
        return str(value)
    short = format(value, ".12g")
    return short if float(short) == value else repr(value)
