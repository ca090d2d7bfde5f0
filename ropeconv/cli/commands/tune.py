"""`ropeconv tune`: frequencies found by measurement on the user's text, as a recipe."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import msgspec
import typer

from ...errors import Interrupted
from ...options import DeviceOptions, TuneOptions, copied
from ..command import OUTPUT, needs, typed_group
from ..eval_options import NEEDS_DATASET, DatasetOption, FieldOption, FreshOption, JournalOption, TextOption
from ..options import FamilyOption, JsonOption, QuietOption
from ..output import Output
from ..output_options import DeviceMapOption, PlotOption, TrustOption, check_places

if TYPE_CHECKING:
    from ...evaluate.tune.result import TuningResult

CheckpointArgument = Annotated[
    str, typer.Argument(metavar="SOURCE", show_default=False, help="A checkpoint: a folder, or an id on the Hub.")
]
EXAMPLES = """Examples:

ropeconv tune Qwen/Qwen3-8B --text 'books/*.txt' --context 128k -o tuned.json

ropeconv tune ./model --text 'books/*.txt' --context 32k --needles 0.5 -o tuned.json --plot tuned.svg

ropeconv apply ./model --recipe tuned.json
"""


@needs(field=NEEDS_DATASET)
@typed_group("options", TuneOptions)
@typed_group("running", DeviceOptions)
def tune_command(
    model: CheckpointArgument,
    options: TuneOptions,
    running: DeviceOptions,
    text: TextOption = None,
    dataset: DatasetOption = "",
    field: FieldOption = "text",
    device_map: DeviceMapOption = "",
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
    """Search for frequencies that beat the built-in methods on your text, and write them as a recipe.

    Held-out text decides: if nothing is significantly better, the recipe is the best built-in method.
    Exit codes: 0 done, 130 stopped (the first Ctrl-C ends the search and keeps the best frequencies).
    """
    from ...engines.engine import Progress
    from ...engines.transformers.load import out_of_memory
    from ...evaluate.tune.result import write_tuned
    from ...evaluate.tune.tuning import SearchSettings, tune_texts
    from ...views.results import show_tuned
    from ..eval_options import texts_of
    from ..execution import stopping

    output = Output(as_json, quiet)
    check_places(None, plot, out)
    wanted = copied(SearchSettings, options)
    wanted.check()
    files = texts_of(text or [], dataset, field)
    what = "the best schedule so far will be measured on held-out text"
    try:
        with output.counting("Searching", "steps") as (total, advance), stopping(output, what) as stopped:
            progress = Progress(output.note, total, advance, stopped)
            how: dict[str, Any] = {
                "device": running.device, "dtype": running.dtype, "device_map": device_map, "family": family,
                "trust_remote_code": trust_remote_code,
            }  # fmt: skip
            found: TuningResult = out_of_memory(
                lambda: tune_texts(model, files, wanted, progress, journal, fresh, **how)
            )
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
