"""Rows of an evaluation: a method on the source, a saved recipe, or an output of `apply`."""

from __future__ import annotations

import dataclasses
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..errors import UsageError
from ..formats.jsontext import JsonObject
from ..inspection.receipts.reader import read_recipe
from ..rope.lengths import parse_factor, parse_tokens
from ..rope.methods.method import REGISTRY, Method, Value
from ..rope.recipe import MODIFIERS, Recipe

BASE = "base"
DEFAULT = "base,yarn:4,mixed:4,ntk:4"
"""The rows of a source without --methods."""


@dataclass(frozen=True)
class Row:
    """A row of an evaluation.

    recipe: the extension to patch into the source; None for the unchanged model. path: an output to load, or that the
    server runs; None for the source. url: of the server that runs it; empty for none.
    """

    name: str
    recipe: Recipe | None = None
    path: Path | None = None
    url: str = ""

    def to_dict(self) -> JsonObject:
        """JSON-ready data."""
        return {
            "name": self.name,
            "recipe": self.recipe and self.recipe.to_dict(),
            "path": self.path and str(self.path),
            "url": self.url,
        }


def parse_rows(text: str) -> list[Row]:
    """`"base,yarn:4,mixed:128k,recipe:FILE"` as rows.

    A colon separates a method from its value, its settings and modifiers: `yarn:4:beta_fast=16`. Raises UsageError and
    RecipeError for unknown methods, wrong values and a row that is there twice.
    """
    rows = [_row(part.strip()) for part in text.split(",") if part.strip()]
    names = [row.name for row in rows]
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice or not rows:
        raise UsageError(f"--methods has {twice or 'no method'}{' twice' if twice else ''}; name each row once")
    return rows


def _row(text: str) -> Row:
    name, *values = text.split(":")
    if name == BASE:
        if values:
            raise UsageError(f"base is the model without changes and has no value; write base in place of {text!r}")
        return Row(BASE)
    if name == "recipe":
        path = Path(":".join(values))
        return Row(text, read_recipe(path))
    kind = REGISTRY.get(name)
    if kind is None or kind.value is Value.FILE:
        known = ", ".join(method.name for method in REGISTRY.values() if method.value is not Value.FILE)
        raise UsageError(f"{text!r} is not a method; choose base, recipe:FILE, {known} (with a value: yarn:4)")
    return _method_row(kind, values, text)


def _method_row(kind: type[Method], values: list[str], text: str) -> Row:
    """A row of a method. values: the parts after its name. text: the whole row."""
    settings = _settings([part for part in values if "=" in part], text)
    plain = _plain_value(kind, [part for part in values if "=" not in part], text)
    modifiers = {key: settings.pop(key) for key in list(settings) if key in MODIFIERS}
    first, *others = [item.name for item in dataclasses.fields(kind)] or [""]
    if first in settings and plain is not None:
        raise UsageError(f"{text!r} gives {first} twice; leave one of them out")
    unknown = settings.keys() - {*others, first}
    if unknown:
        known = ", ".join((*others, *MODIFIERS))
        raise UsageError(f"{text!r} has the setting {min(unknown)}, which {kind.name} does not have; it has {known}")
    if "at" in others and settings.get("at") is None:
        raise UsageError(f"{text!r} changes with the sequence; freeze it at a length, as in {text}:at=32k")
    value = {} if plain is None else {first: _value(kind, plain)}
    return Row(text, Recipe(kind(**value, **settings), **modifiers))


def _plain_value(kind: type[Method], plain: list[str], row: str) -> str | None:
    """The value of a method; None for a method without one."""
    if kind.value is Value.TEXT and plain:
        return ":".join(plain)  # dynamic:yarn:4
    if kind.value is Value.SWITCH:
        if plain:
            raise UsageError(f"{kind.name} has no value, so {row!r} is not a row; write {kind.name}")
        return None
    if len(plain) != 1:
        example = f"{kind.name}:4" if kind.value is Value.FACTOR else f"{kind.name}:VALUE"
        raise UsageError(f"{row!r} needs one value after the method; write it like {example}")
    return plain[0]


def _settings(parts: list[str], row: str) -> JsonObject:
    settings = dict(_setting(part, row) for part in parts)
    if len(settings) < len(parts):
        raise UsageError(f"{row!r} gives a setting twice; leave one of them out")
    return settings


def _setting(part: str, row: str) -> tuple[str, Any]:
    key, _, text = part.partition("=")
    key = key.replace("-", "_")
    if key == "at" or key.endswith(("context", "length")):
        return key, parse_tokens(text)
    try:
        return key, json.loads(text)
    except ValueError:
        if text.isalpha():
            return key, text
        raise UsageError(f"{row!r} sets {key} to {text!r}; write a number, true, false or a word") from None


def _value(kind: type[Method], text: str) -> Any:
    if kind.value is Value.TOKENS:
        return parse_tokens(text)
    if kind.value is Value.FACTOR:
        return parse_factor(text, kind.flag())
    if kind.value is Value.TEXT:
        return text
    try:
        return float(text)
    except ValueError:
        raise UsageError(
            f"{kind.flag()} needs a number, and {text!r} is not one; write it like {kind.name}:1000000"
        ) from None
