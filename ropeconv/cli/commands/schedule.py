"""`ropeconv schedule`: the schedule of a method for a model given by numbers."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Annotated, Any

import typer

from ...errors import UsageError
from ...rope.bound.answer import smallest_base
from ...rope.bound.reach import reach
from ...rope.forms import base_inv_freq, critical_dimension, theta_steps
from ...rope.lengths import parse_tokens
from ...rope.recipe import Recipe
from ...rope.schedule import Schedule
from ...rope.spec import RopeSpec
from ..command import METHOD, OUTPUT, needs
from ..model_args import HeadDimOption, ModelArgs, RotaryDimOption, find, frequencies_only, in_numbers, single
from ..options import JsonOption, QuietOption, with_recipe
from ..output import Output

SCHEDULE_EXAMPLES = """Examples:

ropeconv schedule --head-dim 128 --theta 10000 --original-context 4096 --yarn 16 --json

ropeconv schedule --theta 500000 --original-context 8192 --context 128k --longrope factors.json

ropeconv schedule --theta 500000 --original-context 8192 --steps 65k,262k,1048k
"""

MODEL_IN_NUMBERS = ("theta", "original_context")
"""Options of a recipe that describe the model."""


@with_recipe(dict)
def schedule_command(
    recipe: dict[str, Any],
    head_dim: HeadDimOption = None,
    rotary_dim: RotaryDimOption = None,
    steps: Annotated[
        str,
        typer.Option(
            "--steps",
            metavar="TOKENS,TOKENS",
            help="Bases by the scaling law for a training in steps.",
            rich_help_panel=METHOD,
            show_default=False,
        ),
    ] = "",
    as_json: JsonOption = False,
) -> None:
    """Print the schedule of a method for a model of given sizes.

    --theta is the model's base and --original-context its trained length (defaults: 10000, 4096); --context is the
    length to declare.
    """
    output = Output(as_json)
    if steps:
        unused = [name for name, value in recipe.items() if value is not None and name not in MODEL_IN_NUMBERS]
        if unused:
            flag = unused[0].replace("_", "-")
            raise UsageError(f"--{flag} has no effect on --steps, which compute bases from lengths; leave one out")
    model = in_numbers(recipe, head_dim, rotary_dim)
    if steps:
        show_steps(model, [parse_tokens(step) for step in steps.split(",")], output)
        return
    chosen = single(model)
    output.note(chosen.method.slow_note)
    schedule = chosen.schedule(model.spec)
    if as_json:
        output.data({**chosen.to_dict(), **schedule.to_dict()})
    else:
        show(schedule, model.spec, chosen, output)


def show_steps(model: ModelArgs, targets: list[int], output: Output) -> None:
    """Prints a row per stage of a training: base by the scaling law, critical dimension and effective length.

    targets: the lengths of the stages in tokens. Raises UsageError where these do not rise from the trained one on.
    """
    spec = model.spec
    if targets != sorted(targets) or targets[0] <= max(spec.original_context, 6):
        raise UsageError(f"--steps are lengths that rise from above the trained {spec.original_context} tokens")
    stages = []
    for target, theta in zip(targets, theta_steps(spec.rope_theta, spec.original_context, targets), strict=True):
        found = reach(base_inv_freq(theta, spec.rotary_dim), spec.unrotated, target)
        least = smallest_base(target, spec.rotary_dim, spec.head_dim)
        stages.append(
            {
                "context": target,
                "rope_theta": theta,
                "critical_dimension": critical_dimension(theta, target, spec.rotary_dim),
                "effective_length": found.effective_length,
                "smallest_base": least,
            }
        )
    if output.as_json:
        start = {
            "rope_theta": spec.rope_theta,
            "original_context": spec.original_context,
            "rotary_dim": spec.rotary_dim,
        }
        output.data({**start, "critical_dimension": _critical(spec), "stages": stages})
        return
    rows = [[_number(value) for value in stage.values()] for stage in stages]
    first = [f"{spec.original_context:,}", f"{spec.rope_theta:.12g}", str(_critical(spec)), "", ""]
    columns = ("context", "rope_theta", "critical dimension", "effective length", "smallest base")
    output.table("theta^(ln(L'/2pi) / ln(L/2pi))", columns, [first, *rows])
    output.say("Each stage: --theta-for its context on the first model, then training.")


def _critical(spec: RopeSpec) -> int:
    return critical_dimension(spec.rope_theta, spec.original_context, spec.rotary_dim)


def _number(value: float | None) -> str:
    return "" if value is None else f"{math.floor(value):,}"


def show(schedule: Schedule, spec: RopeSpec, recipe: Recipe, output: Output) -> None:
    """Prints a table of pairs: frequency, wavelength in tokens, and by what the method divides the frequency.

    schedule: to show. spec: the model before, for the divisors. recipe: whose method is named. output: that prints.
    """
    from ...runtimes.verdict import frequencies

    form = frequencies(schedule)
    output.say(f"{recipe.method.name}: {form}")
    log_n = f", log-n ({schedule.log_n.kind}) over {schedule.log_n.length:,} tokens" if schedule.log_n else ""
    output.say(f"context {schedule.context:,}, attention_factor {schedule.attention_factor:.6g}{log_n}")
    output.say("")
    base = spec.form.inv_freq(spec.rotary_dim)
    rows = [
        (str(pair), f"{new:.6e}", *((f"{math.tau / new:,.1f}", f"{old / new:.4f}") if new else ("-", "-")))
        for pair, (old, new) in enumerate(zip(base, schedule.inv_freq, strict=True))
    ]
    output.table("", ("pair", "inv_freq", "wavelength (tokens)", "divided by"), rows)


PLOT_EXAMPLES = """Examples:

ropeconv plot meta-llama/Llama-2-7b-hf --yarn 16 --mixed 16 --linear 16 -o llama-2.svg

ropeconv plot --theta 500000 --original-context 8192 --llama3 8 -o llama-3.png

ropeconv plot ./Llama-2-7b-hf-yarn16 --dark -o baked.svg
"""


@needs(dark=(lambda given: given["out"], "is for a picture; add -o plot.svg"))
@with_recipe(dict)
def plot_command(
    recipe: dict[str, Any],
    source: Annotated[
        str | None, typer.Argument(metavar="[SOURCE]", help="A model, as for `inspect`; left out, one in numbers.")
    ] = None,
    head_dim: HeadDimOption = None,
    rotary_dim: RotaryDimOption = None,
    out: Annotated[
        Path | None,
        typer.Option(
            "-o",
            "--out",
            metavar="FILE",
            help="The picture, .png or .svg (needed unless --json).",
            rich_help_panel=OUTPUT,
            show_default=False,
        ),
    ] = None,
    dark: Annotated[bool, typer.Option("--dark", help="Draw for a dark background.", rich_help_panel=OUTPUT)] = False,
    as_json: JsonOption = False,
    quiet: QuietOption = False,
) -> None:
    """Draw wavelengths per pair, what each frequency is divided by, where near tokens stay preferred, and decay.

    Several methods may be given, each is a curve. A model that is scaled is drawn beside its unscaled RoPE.
    """
    from ...rope.forms import base_inv_freq
    from ...views.plot_style import checked, figure, write
    from ...views.schedule_plots import FARTHEST, lengths_of, numbers, pictures_of

    if out is None and not as_json:
        raise UsageError("no picture is named; add -o plot.svg, or --json for its numbers")
    if out is not None:
        checked(out)
    frequencies_only(recipe)
    model = find(source, recipe, head_dim, rotary_dim)
    spec, schedules = model.spec, model.schedules()
    before = base_inv_freq(spec.rope_theta, spec.rotary_dim)
    curves = {name: one.inv_freq for name, one in schedules.items() if model.recipes or spec.scaled}
    context = max(one.context for one in schedules.values())
    lengths, reach = lengths_of(spec, context), min(2 * context, FARTHEST)
    output = Output(as_json, quiet)
    if out is not None:
        panels = [one.draw for one in pictures_of(spec, curves, context)]
        write(figure(*panels, columns=2, title=model.name, dark=dark), out)
        output.note(f"Wrote {out}")
    if as_json:
        drawn = {
            name: numbers(before, one, spec.unrotated, reach) for name, one in {"before": before, **curves}.items()
        }
        output.data({"model": model.name, "picture": out and str(out), "lengths": lengths, "curves": drawn})
