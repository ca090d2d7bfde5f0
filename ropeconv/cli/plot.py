"""`ropeconv plot`: wavelengths, divided frequencies, B(m) and decay of a model and of methods applied to it."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer

from .model_args import HeadDimOption, RotaryDimOption, find
from .options import QuietOption, with_recipe
from .output import Output

EXAMPLES = """Examples:

ropeconv plot meta-llama/Llama-2-7b-hf --yarn 16 --mixed 16 --linear 16 -o llama-2.svg

ropeconv plot --theta 500000 --original-context 8192 --llama3 8 -o llama-3.png

ropeconv plot ./Llama-2-7b-hf-yarn16 -o baked.svg
"""


@with_recipe(dict)
def plot_command(
    recipe: dict[str, Any],
    out: Annotated[Path, typer.Option("-o", "--out", metavar="FILE", help="The picture, .png or .svg.")],
    source: Annotated[
        str | None, typer.Argument(metavar="[SOURCE]", help="A model, as for `inspect`; left out, one in numbers.")
    ] = None,
    head_dim: HeadDimOption = None,
    rotary_dim: RotaryDimOption = None,
    quiet: QuietOption = False,
) -> None:
    """Draw wavelengths per pair, what each frequency is divided by, where near tokens stay preferred, and decay.

    Several methods may be given, each is a curve. A model that is scaled is drawn beside its unscaled RoPE.
    """
    from ..pictures.schedules import decay, preference, ramp, wavelengths
    from ..pictures.style import checked, figure, write
    from ..rope.forms import base_inv_freq

    checked(out)
    model = find(source, recipe, head_dim, rotary_dim)
    spec, schedules = model.spec, model.schedules()
    before = base_inv_freq(spec.rope_theta, spec.rotary_dim)
    curves = {name: one.inv_freq for name, one in schedules.items() if model.recipes or spec.scaled}
    context = max(one.context for one in schedules.values())
    lengths = {"trained": spec.original_context} | ({"new": context} if context != spec.original_context else {})
    panels = [partial(wavelengths, before=before, curves=curves, lengths=lengths)]
    if curves:
        panels.append(partial(ramp, before=before, curves=curves))
    reach = min(2 * context, 1 << 24)
    panels.append(
        partial(preference, before=before, curves=curves, unrotated=spec.unrotated, length=reach, lengths=lengths)
    )
    panels.append(partial(decay, before=before, curves=curves, length=reach, lengths=lengths))
    write(figure(*panels), out)
    Output(quiet=quiet).note(f"Wrote {out}")
