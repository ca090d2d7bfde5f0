"""`ropeconv schedule`: the numbers of a method, with no checkpoint at hand."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Annotated, Any

import typer

from ..errors import UsageError
from ..rope.forms import Plain
from ..rope.lengths import parse_tokens
from ..rope.recipe import Recipe
from ..rope.schedule import Schedule
from ..rope.spec import RopeSpec
from .options import JsonOption, build_recipe, with_recipe
from .output import Output

EXAMPLES = """Examples:

ropeconv schedule --head-dim 128 --theta 10000 --context 4096 --yarn 16 --json

ropeconv schedule --theta 500000 --original-context 8192 --context 128k --longrope factors.json
"""


@dataclass(frozen=True)
class Model:
    """A model that is only numbers, and the recipe for it."""

    recipe: Recipe
    theta: float
    trained: int


def read_model(given: dict[str, Any]) -> Model:
    """Here `--theta` is the model's base, unless it is the only method; `--context` its trained length, unless
    `--original-context` says that, and then the length to reach.
    """
    others = {name: value for name, value in given.items() if name != "theta"}
    theta = given.get("theta")
    trained = given.get("original_context") or given.get("context") or "4096"
    if given.get("original_context") is None:
        others["context"] = None
    try:
        recipe = build_recipe(others)
    except UsageError:
        if theta is None:
            raise
        recipe = build_recipe({**others, "theta": theta})
    return Model(recipe, 10000.0 if theta is None else theta, parse_tokens(trained))


@with_recipe(read_model)
def schedule_command(
    recipe: Model,
    head_dim: Annotated[int, typer.Option("--head-dim", help="Width of one attention head.")] = 128,
    rotary_dim: Annotated[
        int | None, typer.Option("--rotary-dim", help="How many of its dimensions rotate (default: all).")
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Print the schedule of a method for a model of given sizes.

    --theta is the model's base and --context its trained length (defaults: 10000, 4096).
    """
    rotary = head_dim if rotary_dim is None else rotary_dim
    if rotary < 2 or rotary % 2 or rotary > head_dim:
        raise UsageError(f"--rotary-dim {rotary} must be even, at least 2, and not above --head-dim {head_dim}")
    if recipe.theta <= 1:
        raise UsageError(f"--theta {recipe.theta:g} must be above 1")
    spec = RopeSpec(head_dim, rotary, Plain(recipe.theta), recipe.trained, recipe.trained)
    output = Output(as_json)
    output.note(recipe.recipe.method.patience)
    schedule = recipe.recipe.schedule(spec)
    if as_json:
        output.data({**recipe.recipe.to_dict(), **schedule.to_dict()})
    else:
        show(schedule, spec, recipe.recipe, output)


def show(schedule: Schedule, spec: RopeSpec, recipe: Recipe, output: Output) -> None:
    """A table of pairs: frequency, wavelength, and what the method divides it by."""
    from ..runtimes.verdict import frequencies

    form = frequencies(schedule)
    output.say(f"{recipe.method.name}: {form}")
    output.say(f"context {schedule.context:,}, attention_factor {schedule.attention_factor:.6g}")
    output.say("")
    base = spec.form.inv_freq(spec.rotary_dim)
    rows = [
        (str(pair), f"{new:.6e}", f"{math.tau / new:,.1f}", f"{old / new:.4f}")
        for pair, (old, new) in enumerate(zip(base, schedule.inv_freq, strict=True))
    ]
    output.table("", ("pair", "inv_freq", "wavelength (tokens)", "divided by"), rows)
