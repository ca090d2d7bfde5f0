"""`ropeconv plot`: the frequencies of methods, as a table or a picture."""

import csv
import io
import math
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Annotated

import typer

from ...errors import UsageError
from ...formats.files import expand_home
from ...rope.recipe import Recipe
from ...rope.schedule import Schedule
from ..command import OUTPUT, expand_options
from ..model_args import HeadDimOption, ModelArgs, RotaryDimOption, find, frequencies_only
from ..options import RecipeValues, check_place
from ..screen import ProgressScreen, Screen
from ..typer_classes import Command

app = typer.Typer(add_completion=False)

TABLE = ".csv"
EXAMPLES = """
ropeconv plot Qwen/Qwen3-8B --yarn 4
ropeconv plot meta-llama/Llama-2-7b-hf --yarn 16 --mixed 16 --linear 16 -o llama-2.svg
ropeconv plot --theta 500000 --original-context 8192 --llama3 8 -o llama-3.png
ropeconv plot ./Llama-2-7b-hf-yarn16 --dark -o baked.svg
ropeconv plot Qwen/Qwen3-8B --yarn 4 -o numbers/qwen3.csv
"""


@app.command("plot", cls=Command, epilog=EXAMPLES)
@expand_options
def plot_command(
    recipe: RecipeValues,
    screen: ProgressScreen,
    source: Annotated[
        str | None,
        typer.Argument(
            metavar="SOURCE", help="A model, as for `inspect`; without one, give --theta."
        ),
    ] = None,
    head_dim: HeadDimOption = None,
    rotary_dim: RotaryDimOption = None,
    out: Annotated[
        Path | None,
        typer.Option(
            "--out",
            "-o",
            help="Write a picture (.png or .svg) or the numbers (.csv).",
            rich_help_panel=OUTPUT,
            metavar="FILE",
            parser=expand_home,
        ),
    ] = None,
    dark: Annotated[
        bool, typer.Option("--dark", help="Draw for a dark background.", rich_help_panel=OUTPUT)
    ] = False,
) -> None:
    """Show the frequencies of one or several methods: a table, or a picture or a CSV file with -o.

    Without SOURCE, --theta is the base of the model and --original-context its trained length
    (10000 and 4096).
    """
    from ...formats.drafts import write_file
    from ...rope.forms import base_inv_freq
    from ...views.plot_style import checked, figure, write
    from ...views.schedule_plots import FARTHEST, lengths_of, numbers, pictures_of

    draws = out is not None and out.suffix.lower() != TABLE
    if dark and not draws:
        raise UsageError("--dark is for a picture; add -o plot.svg")
    if draws and out is not None:
        checked(out, ", the numbers like plot.csv, or print them with --json")
    if out is not None:
        check_place(out)
        frequencies_only(recipe)
    model = find(source, recipe, head_dim, rotary_dim)
    spec = model.spec
    schedules = model.schedules()
    recipes = model.recipes or (None,)
    before = base_inv_freq(spec.rope_theta, spec.rotary_dim)
    curves = {
        name: schedule.inv_freq
        for name, schedule in schedules.items()
        if model.recipes or spec.scaled
    }
    context = max(schedule.context for schedule in schedules.values())
    if out is not None and not draws:
        write_file(out, _table(schedules, model))
        screen.note(f"Wrote {out}")
    elif out is not None:
        panels = [picture.draw for picture in pictures_of(spec, curves, context)]
        write(figure(*panels, title=model.name, dark=dark), out)
        screen.note(f"Wrote {out}")
    if screen.as_json:
        reach = min(2 * context, FARTHEST)
        drawn = {
            name: numbers(before, curve, spec.unrotated, reach)
            for name, curve in {"before": before, **curves}.items()
        }
        screen.data(
            {
                "model": model.name,
                "picture": str(out) if draws else None,
                "lengths": lengths_of(spec, context),
                "schedules": {
                    name: (recipe.to_dict() if recipe else {}) | schedule.to_dict()
                    for recipe, (name, schedule) in zip(recipes, schedules.items(), strict=True)
                },
                "curves": drawn,
            }
        )
    elif out is None:
        for chosen, (name, schedule) in zip(recipes, schedules.items(), strict=True):
            _show(schedule, model, chosen, name, screen)


def _rows(schedule: Schedule, model: ModelArgs) -> Iterator[tuple[int, float, float, float]]:
    """Yield the pairs: number, frequency, wavelength in tokens, and by what the method divides the
    frequency.

    A pair that does not rotate has an infinite wavelength and divisor.
    """
    base = model.spec.unscaled() if model.spec.scaled else model.spec
    before = base.form.inv_freq(base.rotary_dim)
    for pair, (old, new) in enumerate(zip(before, schedule.inv_freq, strict=True)):
        if new:
            yield pair, float(new), math.tau / float(new), float(old) / float(new)
        else:
            yield pair, 0.0, math.inf, math.inf


def _table(schedules: Mapping[str, Schedule], model: ModelArgs) -> str:
    """The numbers as CSV, in full precision. With one schedule, --inv-freq reads its column
    again.
    """
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    several = len(schedules) > 1
    writer.writerow(
        [*(["schedule"] if several else []), "pair", "inv_freq", "wavelength", "divided_by"]
    )
    for name, schedule in schedules.items():
        for row in _rows(schedule, model):
            writer.writerow([*([name] if several else []), *row])
    return text.getvalue()


def _show(
    schedule: Schedule, model: ModelArgs, recipe: Recipe | None, name: str, screen: Screen
) -> None:
    """Prints a table of pairs: frequency, wavelength in tokens, and by what the method divides the
    frequency.
    """
    from ...runtimes.verdict import frequencies

    if recipe is not None:
        screen.note(recipe.method.slow_note)
    log_n = (
        f", log-n ({schedule.log_n.kind}) over {schedule.log_n.length:,} tokens"
        if schedule.log_n
        else ""
    )
    screen.say(f"{name}: {frequencies(schedule)}")
    screen.say(
        f"context {schedule.context:,}, attention_factor {schedule.attention_factor:.6g}{log_n}\n"
    )
    rows = []
    for pair, new, wavelength, divisor in _rows(schedule, model):
        words = (f"{wavelength:,.1f}", f"{divisor:.4f}") if new else ("-", "-")
        rows.append((str(pair), f"{new:.6e}", *words))
    screen.table("", ("pair", "inv_freq", "wavelength (tokens)", "divided by"), rows)
