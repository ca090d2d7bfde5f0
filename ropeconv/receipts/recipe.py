"""Reads saved recipes, and those of outputs."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ..errors import BadSource, UsageError, counted
from ..formats import jsontext
from ..formats.regular import read_text
from ..rope.recipe import Recipe
from .read import parse_receipt


def read_recipe(path: Path) -> Recipe:
    """The recipe in a file: a saved one, a tuned one, or that of the receipt of an output, also given by its folder.

    Raises UsageError for a file that cannot be read, RecipeError for one that is no recipe.
    """
    if path.is_dir():
        path = path / "ropeconv.json"
    try:
        text = read_text(path, str(path))
        data = jsontext.loads(text, str(path))
    except OSError:
        raise UsageError(f"{path} cannot be read; give a recipe, or the ropeconv.json of an earlier output") from None
    except BadSource as problem:
        raise UsageError(str(problem)) from None
    if isinstance(data, dict) and "ropeconv_tune" in data:
        data = data.get("recipe")
    elif isinstance(data, dict) and "ropeconv" in data:
        data = parse_receipt(text, str(path)).recipe
    return Recipe.from_dict(data)


def described(recipe: Mapping[str, Any]) -> str:
    """A recipe for display, lists by their length. recipe: as `Recipe.to_dict` has it."""
    return ": ".join(filter(None, (str(recipe.get("method", "")), described_settings(recipe))))


def described_settings(recipe: Mapping[str, Any]) -> str:
    """The settings of a recipe for display, lists by their length. recipe: as `Recipe.to_dict` has it."""
    given = {**recipe.get("parameters", {}), **{k: v for k, v in recipe.items() if k not in ("method", "parameters")}}
    return ", ".join(f"{name.replace('_', '-')} {_short(value)}" for name, value in given.items())


def _short(value: Any) -> str:
    if isinstance(value, list):
        return f"of {counted(len(value), 'value')}"
    if isinstance(value, bool):
        return "on" if value else "off"
    return f"{value:.12g}" if isinstance(value, float) else str(value)
