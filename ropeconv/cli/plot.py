"""`ropeconv plot`: wavelengths, divided frequencies, B(m) and decay of a model and of methods applied to it."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from ..errors import UsageError
from .command import OUTPUT, needs
from .model_args import HeadDimOption, RotaryDimOption, find, frequencies_only
from .options import JsonOption, QuietOption, with_recipe
from .output import Output

EXAMPLES = """Examples:

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
    from ..pictures.of_model import FARTHEST, lengths_of, pictures_of
    from ..pictures.schedules import numbers
    from ..pictures.style import checked, figure, write
    from ..rope.forms import base_inv_freq

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
