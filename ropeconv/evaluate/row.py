"""Rows of an evaluation: a method on the source, a saved recipe, or an output of `apply`."""

from dataclasses import dataclass
from pathlib import Path

from ..errors import UsageError
from ..formats.jsontext import JsonObject
from ..inspection.receipts.storage import read_recipe
from ..rope.recipe import Recipe, parse_recipe

BASE = "base"
DEFAULT = "base,yarn:4,mixed:4,ntk:4"
"""The rows of a source without --methods."""


@dataclass(frozen=True)
class Row:
    """A row of an evaluation.

    recipe: the extension to patch into the source; None for the unchanged model. path: an output to
    load, or that the server runs; None for the source. url: of the server that runs it; empty for
    none.
    """

    name: str
    recipe: Recipe | None = None
    path: Path | None = None
    url: str = ""

    def refuse_other(self) -> None:
        """Raises UsageError for a row that is not a method on the source."""
        if self.path is not None or self.url:
            raise UsageError(
                f"{self.name} is not a method on the source; run `ropeconv eval` on it"
            )

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

    A colon separates a method from its value, its settings and modifiers: `yarn:4:beta_fast=16`.
    Raises UsageError and RecipeError for unknown methods, wrong values and a row that is there
    twice.
    """
    rows = [_row(part.strip()) for part in text.split(",") if part.strip()]
    names = [row.name for row in rows]
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice or not rows:
        raise UsageError(
            f"--methods has {twice or 'no method'}{' twice' if twice else ''}; name each row once"
        )
    return rows


def _row(text: str) -> Row:
    name, *values = text.split(":")
    if name == BASE:
        if values:
            raise UsageError(
                "base is the model without changes and has no value; write base in place of"
                f" {text!r}"
            )
        return Row(BASE)
    if name == "recipe":
        path = Path(":".join(values))
        return Row(text, read_recipe(path))
    return Row(text, parse_recipe(text))
