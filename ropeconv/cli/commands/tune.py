"""`ropeconv tune`: frequencies found by measurement on the user's text, as a recipe."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import msgspec
import typer

from ...errors import Interrupted
from ..command import LENGTH, MODEL, OUTPUT, RUNNING, needs
from ..eval_options import NEEDS_DATASET, DatasetOption, FieldOption, FreshOption, JournalOption, SeedOption, TextOption
from ..options import FamilyOption, JsonOption, QuietOption
from ..output import Output
from ..output_options import DeviceMapOption, DeviceOption, DtypeOption, PlotOption, TrustOption, check_places

if TYPE_CHECKING:
    from ...evaluate.tune.result import Tuned

CheckpointArgument = Annotated[
    str, typer.Argument(metavar="SOURCE", show_default=False, help="A checkpoint: a folder, or an id on the Hub.")
]
ContextOption = Annotated[
    str, typer.Option("--context", metavar="TOKENS", rich_help_panel=LENGTH, help="The context to reach.")
]
StartOption = Annotated[
    str,
    typer.Option(
        "--start", metavar="METHOD", rich_help_panel=MODEL, show_default=False,
        help="The formula to begin with (default: the one that loses least).",
    ),
]  # fmt: skip
AttentionFactorOption = Annotated[
    float | None,
    typer.Option(
        "--attention-factor", metavar="A", rich_help_panel=LENGTH, show_default=False,
        help="Keep cos and sin times A, instead of tuning that too.",
    ),
]  # fmt: skip
InsideOption = Annotated[
    float,
    typer.Option(
        "--inside", metavar="WEIGHT", rich_help_panel=RUNNING,
        help="Weight of the loss inside the trained context, beside that beyond it.",
    ),
]  # fmt: skip
NeedlesOption = Annotated[
    float,
    typer.Option(
        "--needles", metavar="WEIGHT", rich_help_panel=RUNNING,
        help="Weight of the loss of a number hidden in each window.",
    ),
]  # fmt: skip
RegulariseOption = Annotated[
    float,
    typer.Option(
        "--regularise", metavar="WEIGHT", rich_help_panel=RUNNING,
        help="Weight of the squared distance of log divisors to the formula.",
    ),
]  # fmt: skip
WindowsOption = Annotated[
    int, typer.Option("--windows", min=2, metavar="N", rich_help_panel=RUNNING, help="Windows that the search reads.")
]
HeldWindowsOption = Annotated[
    int,
    typer.Option(
        "--held-windows", min=0, metavar="N", rich_help_panel=RUNNING, show_default=False,
        help="Windows of held-out text (default: as many).",
    ),
]  # fmt: skip
TargetsOption = Annotated[
    int,
    typer.Option(
        "--targets", min=1, metavar="N", rich_help_panel=RUNNING,
        help="Tokens predicted in a window, inside the trained context and beyond it alike.",
    ),
]  # fmt: skip
StepsOption = Annotated[
    int, typer.Option("--steps", min=1, metavar="N", rich_help_panel=RUNNING, help="Most steps of the search.")
]


EXAMPLES = """Examples:

ropeconv tune Qwen/Qwen3-8B --text 'books/*.txt' --context 128k -o tuned.json

ropeconv tune ./model --text 'books/*.txt' --context 32k --needles 0.5 -o tuned.json --plot tuned.svg

ropeconv apply ./model --recipe tuned.json
"""


@needs(field=NEEDS_DATASET)
def tune_command(
    model: CheckpointArgument,
    context: ContextOption,
    text: TextOption = None,
    dataset: DatasetOption = "",
    field: FieldOption = "text",
    start: StartOption = "",
    attention_factor: AttentionFactorOption = None,
    inside: InsideOption = 0.3,
    needles: NeedlesOption = 0.0,
    regularise: RegulariseOption = 0.0,
    windows: WindowsOption = 16,
    held_windows: HeldWindowsOption = 0,
    targets: TargetsOption = 256,
    steps: StepsOption = 60,
    device: DeviceOption = "auto",
    dtype: DtypeOption = "auto",
    device_map: DeviceMapOption = "",
    seed: SeedOption = 0,
    out: Annotated[
        Path | None,
        typer.Option(
            "-o",
            "--out",
            metavar="FILE",
            help="Write the recipe with its evidence, for --recipe.",
            rich_help_panel=OUTPUT,
        ),
    ] = None,
    plot: PlotOption = None,
    journal: JournalOption = None,
    fresh: FreshOption = False,
    family: FamilyOption = "",
    trust_remote_code: TrustOption = False,
    as_json: JsonOption = False,
    quiet: QuietOption = False,
) -> None:
    """Look for frequencies that lose less on your text than every formula does, and write them as a recipe.

    A part of the text is held out of the search and decides: where nothing better by three standard errors is found,
    the recipe is the best formula. Exit codes: 0 done, 130 stopped twice (the first Ctrl-C ends the search with its
    best).
    """
    from ...engines.engine import Progress
    from ...engines.transformers.load import out_of_memory
    from ...evaluate.tune.result import write_tuned
    from ...evaluate.tune.scorer import Place
    from ...evaluate.tune.tuning import Wanted, tune_texts
    from ...views.results import show_tuned
    from ..eval_options import texts_of
    from ..execution import stopping

    output = Output(as_json, quiet)
    check_places(None, plot, out)
    wanted = Wanted(
        context, start, attention_factor, windows, held_windows, targets, inside, needles, steps, regularise,
        seed,
    )  # fmt: skip
    wanted.check()
    files = texts_of(text or [], dataset, field)
    what = "the best schedule so far will be measured on held-out text"
    try:
        with output.counting("Searching", "steps") as (total, advance), stopping(output, what) as stopped:
            progress = Progress(output.note, total, advance, stopped)
            options: dict[str, Any] = {
                "device": device, "dtype": dtype, "device_map": device_map, "family": family,
                "trust_remote_code": trust_remote_code,
            }  # fmt: skip
            kept = Place(journal, fresh)
            found: Tuned = out_of_memory(lambda: tune_texts(model, files, wanted, progress, kept, **options))
    except KeyboardInterrupt:
        raise Interrupted("interrupted; no recipe was written, and the same command goes on where it was") from None
    if out is not None:
        write_tuned(found, out)
    if plot is not None:
        from ...views.validation_plots import write_plot

        write_plot(found, plot)
    if as_json:
        output.data(msgspec.to_builtins(found))
    else:
        show_tuned(found, out, output)
