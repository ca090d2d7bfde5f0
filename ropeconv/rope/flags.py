"""A recipe as it is written on a command line."""

from __future__ import annotations

import dataclasses
from typing import Any

from .methods.method import Value
from .recipe import MODIFIERS, Recipe


def flags(recipe: Recipe) -> list[str] | None:
    """The words of a command line that give a recipe: `["--yarn", "16", "--context", "65536"]`.

    recipe: the recipe. None where its method has lists of numbers, which come from files.
    """
    method = recipe.method
    if any(isinstance(value, tuple) for value in vars(method).values()):
        return None
    words, fields = [method.flag()], dataclasses.fields(method)
    words += [_text(getattr(method, item.name)) for item in fields[:1] if method.value is not Value.SWITCH]
    given = {item.name: getattr(method, item.name) for item in fields[1:] if getattr(method, item.name) != item.default}
    given |= {name: getattr(recipe, name) for name in MODIFIERS if getattr(recipe, name) not in (None, False)}
    for name, value in given.items():
        spelled = name.replace("_", "-")
        if isinstance(value, bool):
            words.append(f"--{spelled}" if value else f"--no-{spelled}")
        else:
            words += [f"--{spelled}", _text(value)]
    return words


def _text(value: Any) -> str:
    """A number without needless digits, which reads back as the same; other values as they are."""
    if not isinstance(value, float):
        return str(value)
    short = format(value, ".12g")
    return short if float(short) == value else repr(value)
