"""`ropeconv plot`: the frequencies of methods, as a table or a picture."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ...errors import UsageError
from ...formats.files import expand_home
from ...options import OUTPUT, Writes
from ...verbs.given_model import find, frequencies_only
from ..command import expand_options
from ..model_options import HeadDimOption, RotaryDimOption
from ..options import RecipeValues, check_place
from ..screen import ProgressScreen, Screen
from ..typer_classes import Command

if TYPE_CHECKING:
    from ...rope.schedule import Schedule
    from ...verbs.plotting import SchedulePlot

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
        Writes(),
    ] = None,
    dark: Annotated[
        bool,
        typer.Option("--dark", help="Draw for a dark background.", rich_help_panel=OUTPUT),
        Writes(),
    ] = False,
) -> None:
    """Show the frequencies of one or several methods: a table, or a picture or a CSV file with -o.

    Without SOURCE, --theta is the base of the model and --original-context its trained length
    (10000 and 4096).
    """
    from ...verbs.plotting import SchedulePlot
    from ...views.plot_style import check_picture

    # the file is a CSV table if its name ends in .csv, else a picture; no file is a table on screen
    draws = out is not None and out.suffix.lower() != TABLE

    # refuse what cannot be written or shown
    if dark and not draws:
        raise UsageError("--dark is for a picture; add -o plot.svg")
    if out is not None:
        if draws:
            # the message for another ending: "... name the picture like plot.svg, the numbers ..."
            end_of_message = ", the numbers like plot.csv, or print them with --json"
            check_picture(out, end_of_message)
        check_place(out)
        frequencies_only(recipe)  # a file has frequencies, and no attention factor

    plot = SchedulePlot(find(source, recipe, head_dim, rotary_dim))
    if out is not None:
        plot.write(out, dark)
        screen.note(f"Wrote {out}")
    if screen.as_json:
        screen.data(plot.to_dict(out if draws else None))
    elif out is None:
        _show(plot, screen)


def _show(plot: SchedulePlot, screen: Screen) -> None:
    """Print a table of each schedule, after what is to know about its method."""
    recipes = plot.model.recipes or (None,)  # without a recipe there is the schedule of the model
    for recipe, (name, schedule) in zip(recipes, plot.schedules.items(), strict=True):
        if recipe is not None:
            screen.note(recipe.method.slow_note)
        _show_schedule(plot, name, schedule, screen)


def _show_schedule(plot: SchedulePlot, name: str, schedule: Schedule, screen: Screen) -> None:
    """Print a schedule in two lines, and a table of its dimension pairs."""
    from ...runtimes.verdict import frequencies

    screen.say(f"{name}: {frequencies(schedule)}")
    words = f"context {schedule.context:,}, attention_factor {schedule.attention_factor:.6g}"
    log_n = schedule.log_n
    if log_n:
        words += f", log-n ({log_n.kind}) over {log_n.length:,} tokens"
    screen.say(f"{words}\n")

    rows = []
    for row in plot.rows(schedule):
        if row.inv_freq:
            wavelength = f"{row.wavelength:,.1f}"
            divided_by = f"{row.divided_by:.4f}"
        else:  # the pair does not rotate
            wavelength = "-"
            divided_by = "-"
        rows.append((str(row.pair), f"{row.inv_freq:.6e}", wavelength, divided_by))
    screen.table("", ("pair", "inv_freq", "wavelength (tokens)", "divided by"), rows)
