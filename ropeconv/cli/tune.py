"""`ropeconv tune`: frequencies found by measurement on the user's text, as a recipe."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import msgspec
import typer

from ..errors import Interrupted
from .command import OUTPUT, needs
from .eval_options import NEEDS_DATASET, DatasetOption, FieldOption, FreshOption, JournalOption, SeedOption, TextOption
from .options import FamilyOption, JsonOption, QuietOption
from .output import Output
from .running import stopping
from .running_options import DeviceMapOption, DeviceOption, DtypeOption, PlotOption, TrustOption, check_places
from .tune_options import (
    AttentionFactorOption,
    CheckpointArgument,
    ContextOption,
    HeldWindowsOption,
    InsideOption,
    NeedlesOption,
    RegulariseOption,
    StartOption,
    StepsOption,
    TargetsOption,
    WindowsOption,
)

if TYPE_CHECKING:
    from ..tune import Tuned

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
    from ..engines import Progress
    from ..engines.transformers.device import out_of_memory
    from ..tune import Wanted
    from ..tune.opening import tune_texts
    from ..tune.passes import Place
    from ..tune.result import write_tuned
    from ..views.tuning import show_tuned
    from .texts import texts_of

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
        from ..tune.plot import write_plot

        write_plot(found, plot)
    if as_json:
        output.data(msgspec.to_builtins(found))
    else:
        show_tuned(found, out, output)
