"""A recipe as words of a command line, which the command line reads as the same recipe."""

from __future__ import annotations

import math
from typing import Any

import pytest
import typer
from typer.testing import CliRunner

from ropeconv.cli.options import build_recipe, with_recipe
from ropeconv.rope.flags import flags
from ropeconv.rope.methods import REGISTRY
from ropeconv.rope.recipe import Recipe


def of(name: str, *values: Any, modifiers: dict[str, Any] | None = None, **settings: Any) -> Recipe:
    return Recipe(REGISTRY[name](*values, **settings), **(modifiers or {}))


RECIPES: dict[str, Recipe] = {
    "--yarn 16": of("yarn", 16.0),
    "--yarn 4 --beta-fast 16 --no-truncate --attention-factor 1.25": of(
        "yarn", 4.0, beta_fast=16.0, truncate=False, modifiers={"attention_factor": 1.25}
    ),
    f"--yarn {math.pi!r}": of("yarn", math.pi),
    "--theta 500000 --context 16384": of("theta", 500000.0, modifiers={"context": 16384}),
    "--theta-for 131072": of("theta-for", 131072),
    "--linear 4 --log-n clamped --log-n-length 1024": of(
        "linear", 4.0, modifiers={"log_n": "clamped", "log_n_length": 1024}
    ),
    "--mixed 4 --keep-short": of("mixed", 4.0, modifiers={"keep_short": True}),
    "--llama3 4 --on-top": of("llama3", 4.0, modifiers={"on_top": True}),
    "--ntk 2 --original-context 4096": of("ntk", 2.0, modifiers={"original_context": 4096}),
    "--dynamic yarn:4 --at 3000": of("dynamic", "yarn:4", 3000),
    "--by-parts 4 --temperature-slope 0.2": of("by-parts", 4.0, modifiers={"temperature_slope": 0.2}),
    "--as-is": of("as-is"),
}


def read(words: list[str]) -> Recipe:
    """The recipe that the options of `ropeconv apply` give."""
    app, seen = typer.Typer(), list[Recipe]()

    @app.command()
    @with_recipe(build_recipe)
    def main(recipe: Recipe) -> None:
        seen.append(recipe)

    done = CliRunner().invoke(app, words, catch_exceptions=False)
    assert done.exit_code == 0, done.output
    return seen[0]


@pytest.mark.parametrize("line", list(RECIPES))
def test_the_words_are_read_as_the_same_recipe(line: str) -> None:
    recipe = RECIPES[line]
    assert flags(recipe) == line.split()
    assert read(line.split()) == recipe


def test_a_recipe_with_lists_has_no_words() -> None:
    assert flags(of("longrope", (1.0, 2.0), (1.0, 1.5))) is None
    assert flags(of("inv-freq", (1.0, 0.5))) is None
