"""Rows of an evaluation: a method on the source, a saved recipe, or an output of `apply`.

`parse_rows` reads those of `--methods`.
"""

from dataclasses import dataclass, field
from pathlib import Path

from ..errors import UsageError
from ..formats.jsontext import JsonObject
from ..inspection.receipts.receipt import Receipt
from ..inspection.receipts.storage import read_recipe
from ..rope.recipe import Recipe, parse_recipe

BASE = "base"
DEFAULT = "base,yarn:4,mixed:4,ntk:4"
"""The rows of a source without --methods."""


@dataclass(frozen=True)
class Row:
    """A row of an evaluation."""

    name: str

    recipe: Recipe | None = None
    """The extension to patch into the source; None for the unchanged model."""

    path: Path | None = None
    """An output to load, or that the server runs; None for the source."""

    made_by: Recipe | None = None
    """The recipe by which the output at `path` was made, by its receipt; None for other rows."""

    receipt: Receipt | None = field(default=None, compare=False, repr=False)
    """The receipt of the output at `path` before it is run; None for other rows."""

    url: str = ""
    """The URL of the server that runs it; empty for none."""

    def refuse_other(self) -> None:
        """Refuse a row that is not a method on the source.

        Raises:
            UsageError: It is an output, or on a server.
        """
        if self.path is not None or self.url:
            raise UsageError(
                f"{self.name} is not a method on the source; run `ropeconv eval` on it"
            )

    def to_dict(self) -> JsonObject:
        """Return the row as JSON-ready data."""
        return {
            "name": self.name,
            "recipe": self.recipe and self.recipe.to_dict(),
            "path": self.path and str(self.path),
            "url": self.url,
        }


def parse_rows(text: str, folder: Path | None = None) -> list[Row]:
    """Parse rows such as `"base,yarn:4,mixed:128k,recipe:FILE"`.

    A colon separates a method from its value, its settings and modifiers: `yarn:4:beta_fast=16`.

    Args:
        text: The rows, with commas between them.
        folder: The folder that files are relative to; None for the current one.

    Raises:
        UsageError: There is no row, a row is there twice, or a method is unknown.
        RecipeError: A value is wrong.
    """
    folder = folder or Path()
    rows = [_parse_row(part.strip(), folder) for part in text.split(",") if part.strip()]
    if not rows:
        raise UsageError("--methods has no method; name each row once")
    names = [row.name for row in rows]
    for name in names:
        if names.count(name) > 1:
            raise UsageError(f"--methods has {name} twice; name each row once")
    return rows


def _parse_row(text: str, folder: Path) -> Row:
    """Return a row from its text, such as `yarn:4`; files are relative to a folder."""
    name, *values = text.split(":")
    if name == BASE:
        if values:
            raise UsageError(
                "base is the model without changes and has no value; write base in place of"
                f" {text!r}"
            )
        return Row(BASE)
    if name == "recipe":
        path = Path(":".join(values))  # a path may have colons too
        return Row(text, read_recipe(folder / path))
    return Row(text, parse_recipe(text))
