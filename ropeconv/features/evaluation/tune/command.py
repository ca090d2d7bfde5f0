"""`ropeconv tune`: frequencies found by measurement on the user's text, as a recipe."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ropeconv.cli.command import expand_options, typed_options
from ropeconv.cli.options import (
    DeviceMapOption,
    DryRunOption,
    FamilyOption,
    PlotOption,
    TrustOption,
    check_places,
)
from ropeconv.cli.screen import ProgressScreen
from ropeconv.cli.typer_classes import Command
from ropeconv.errors import Interruption, UsageError
from ropeconv.formats.files import expand_home
from ropeconv.options import OUTPUT, DeviceOptions, Writes, copied

from ..command import refuse_field, sort_words, texts_of
from ..options import TextOptions, TuneOptions

if TYPE_CHECKING:
    from .result import TuningResult

app = typer.Typer(add_completion=False)

EXAMPLES = """
ropeconv tune HuggingFaceTB/SmolLM2-135M-Instruct --text 'books/*.txt' --context 10k --windows 6 --steps 20 --dry-run
ropeconv tune ./model --text 'books/*.txt' --context 32k --budget 2h -o tuned.json --plot tuned.svg
ropeconv apply ./model --recipe tuned.json
"""


@app.command("tune", cls=Command, epilog=EXAMPLES)
@expand_options
def tune_command(
    ctx: typer.Context,
    model: Annotated[
        str, typer.Argument(metavar="SOURCE", help="A checkpoint: a folder, or an id on the Hub.")
    ],
    options: TuneOptions,
    reading: TextOptions,
    running: DeviceOptions,
    screen: ProgressScreen,
    more: Annotated[
        list[str] | None, typer.Argument(metavar="FILE", help="More files of --text.")
    ] = None,
    device_map: DeviceMapOption = "",
    out: Annotated[
        Path | None,
        typer.Option(
            "--out",
            "-o",
            help="Write the recipe with its evidence, for --recipe.",
            rich_help_panel=OUTPUT,
            metavar="FILE",
            parser=expand_home,
        ),
        Writes(),
    ] = None,
    plot: PlotOption = None,
    family: FamilyOption = "",
    trust_remote_code: TrustOption = False,
    dry_run: DryRunOption = False,
) -> None:
    """Search for frequencies that beat the built-in methods on your text, and write them as a
    recipe.

    Held-out text decides: if nothing is significantly better, the recipe is the best built-in
    method. Exit codes: 0 done, 130 stopped (the first Ctrl-C ends the search and keeps the best
    frequencies).
    """
    from msgspec import to_builtins

    from ropeconv.engines.engine import Progress
    from ropeconv.engines.transformers.load import advice_on_memory

    from ..evaluation import parse_duration
    from .tuning import SearchSettings, open_tuning
    from .views import show_tuned

    # everything that can be refused without a model is refused before one is loaded
    refuse_field(typed_options(ctx), reading)
    check_places(report=None, plot=plot, out=out)
    words, names = sort_words([model, *(more or ())], reading)
    model = words[0]
    if len(words) > 1:
        raise UsageError(f"{words[1]!r} is not a text file; name one model and its --text")
    settings = copied(SearchSettings, options)
    settings.check()
    files = texts_of(names, reading)
    budget = 0.0
    if reading.budget:
        budget = parse_duration(reading.budget)

    # the cost is known where it is asked for, and a dry run searches nothing
    cost = None
    tuned = None
    afterwards = "the best schedule so far will be measured on held-out text"
    try:
        with (
            screen.counting("Searching", "steps") as (total, advance),
            screen.stopping(afterwards) as stopped,
        ):
            progress = Progress(note=screen.note, total=total, advance=advance, stopped=stopped)
            with open_tuning(
                model,
                files,
                settings,
                progress,
                reading.journal,
                fresh=reading.fresh,
                keep=not dry_run,
                device=running.device,
                dtype=running.dtype,
                device_map=device_map,
                family=family,
                trust_remote_code=trust_remote_code,
            ) as tuning:
                if budget or dry_run:
                    with advice_on_memory():
                        cost = tuning.estimate()
                    cost.check(budget, settings.steps)
                if cost is not None and not dry_run:
                    screen.note(cost.sentence)
                if not dry_run:
                    with advice_on_memory():
                        tuned = tuning.run()
    except KeyboardInterrupt:
        raise Interruption(
            "interrupted; no recipe was written, and the same command continues"
        ) from None

    if tuned is None:
        assert cost is not None
        if screen.as_json:
            screen.data(cost.to_dict())
        else:
            screen.say(cost.sentence)
        return

    _write(tuned, out, plot)
    if screen.as_json:
        screen.data(to_builtins(tuned))
    else:
        show_tuned(tuned, out, screen)


def _write(tuned: TuningResult, out: Path | None, plot: Path | None) -> None:
    """Write the files that --out and --plot name."""
    from ropeconv.formats.drafts import together

    from .plots import write_plot
    from .result import write_tuned

    with together():  # an error in one of them leaves both unwritten
        if out is not None:
            write_tuned(tuned, out)
        if plot is not None:
            write_plot(tuned, plot)
