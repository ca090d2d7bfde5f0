"""`ropeconv validate`: compares logits of an output with those of a reference made from its source.

`validate_command` checks the options, runs `ropeconv.verbs.validation.run_validation`, and shows and
writes its result. Adapters and profiles are not run: `_validate_companion`.
"""

from __future__ import annotations

from collections.abc import Set
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ...errors import Interruption, UsageError
from ...options import ValidateRequest, copied
from ...rope.errors import RopeconvError
from ...rope.features import hook
from ...rope.lengths import parse_tokens
from ..command import expand_options, option_names, typed_options
from ..options import (
    DeviceMapOption,
    ExplainOption,
    PlotOption,
    ReportOption,
    TrustOption,
    check_places,
)
from ..screen import ProgressScreen, Screen
from ..typer_classes import Command

if TYPE_CHECKING:
    from ...inspection.receipts.companion import CompanionReceipt

app = typer.Typer(add_completion=False)

OF_GRAPHS = frozenset(
    {"baked", "--against", "--length", "--seed", "--explain", "--json", "--quiet", "-q"}
)
"""The parameters that have an effect on a compiled graph whose checkpoint is named."""

EXAMPLES = """
ropeconv validate ./Llama-2-7b-hf-yarn16
ropeconv validate ./Llama-2-7b-hf-yarn16 --against ./Llama-2-7b-hf --length 64k --text book.txt --report report.html
ropeconv validate model-Q4_K_M-yarn4.gguf --against model-Q4_K_M.gguf
ropeconv validate ./Llama-2-7b-hf-yarn16 --against ./Llama-2-7b-hf --server http://localhost:8000
"""


@app.command("validate", cls=Command, epilog=EXAMPLES)
@expand_options
def validate_command(
    ctx: typer.Context,
    baked: Annotated[
        Path,
        typer.Argument(metavar="BAKED", help="A folder or GGUF file that `ropeconv apply` wrote."),
    ],
    options: ValidateRequest,
    screen: ProgressScreen,
    device_map: DeviceMapOption = "",
    report: ReportOption = None,
    plot: PlotOption = None,
    trust_remote_code: TrustOption = False,
    explain: ExplainOption = False,
) -> None:
    """Check that a runtime computes the method: compare logits with the source, scaled at run time.

    Exit codes: 0 it does, 3 it does not (or the test is inconclusive), 130 stopped before the end.

    docs/troubleshooting.md leads from a symptom or a message of an engine to its cause.
    """
    from ...bake.findings import Options
    from ...engines.probe import Probe
    from ...formats.drafts import together
    from ...inspection.receipts.companion import read_companion
    from ...inspection.receipts.places import find_source, why_not_found
    from ...validate.comparison import Comparison, Settings
    from ...verbs.validation import name_mistake, refuse_ignored, run_validation
    from ...views.plot_style import write_pictures
    from ...views.reports import write_validation_report
    from ...views.results import show_validation
    from ...views.validation_plots import validation_pictures

    # an adapter, a graph or a set of profiles is compared with its receipt, and not run; a graph
    # whose checkpoint is named is run
    typed = typed_options(ctx)
    companion = read_companion(baked)
    if companion is not None and companion.companion == "graph" and options.against:
        _validate_graph(baked, companion, options, typed, screen, explain)
        return
    if companion is not None:
        _validate_companion(baked, companion, options.against, typed, screen)
        return

    # refuse options that have no effect, and find the source
    length = parse_tokens(options.length) if options.length else 0
    settings = copied(
        Settings,
        options,
        device_map=device_map,
        length=length,
        trust_remote_code=trust_remote_code,
    )
    refuse_ignored(option_names(typed), baked, settings, options.server)
    if not Probe.available():
        raise RopeconvError("validating needs torch and transformers; pip install ropeconv")
    check_places(report, plot)
    against = options.against or find_source(baked)
    if not against:
        raise UsageError(why_not_found(baked))

    comparison = Comparison.open(baked, against)
    checks = Options(quick=options.quick, edited=options.ignore_receipt, code=trust_remote_code)
    result, files = run_validation(
        comparison, settings, options.server, options.model, checks, screen
    )
    identified = None
    if not result.agrees:
        identified = name_mistake(comparison, options.server, options.model, settings, screen)

    # show the result, then write the files that were asked for
    if screen.as_json:
        document = result.to_dict() | {"files": files.to_dict()}
        if identified is not None:
            document["identified"] = identified.to_dict()
        screen.data(document)
    elif screen.quiet:
        screen.say(result.sentence)
    else:
        show_validation(result, f"{baked} against {against}, scaled at run time", screen, explain)
        if options.quick:
            screen.say("The weights were not compared (--quick).")
        if identified is not None:
            screen.say(identified.sentence)
    with together():
        if plot is not None:
            write_pictures(validation_pictures(result), plot)
        if report is not None:
            write_validation_report(result, baked, against, report)

    if not result.agrees:
        raise SystemExit(3)
    if result.partial:
        raise Interruption(
            "stopped before its end, and what was compared agrees; run the same command for the"
            " rest"
        )


def _validate_companion(
    folder: Path, receipt: CompanionReceipt, against: str, typed: Set[str], screen: Screen
) -> None:
    """Compare files that are not a whole model with their receipt, and print the result.

    These are an adapter, a compiled graph, or profiles: one model that is written for several
    lengths. No model is run. So options for running one, such as --device, are refused.

    Args:
        folder: The adapter or graph, or the folder of the profiles.
        receipt: Its receipt, which lists the files with their digests.
        against: The source of profiles; empty to look for it.
        typed: The names of the options that are on the command line.
        screen: Where the result is printed.
    """
    from ...bake.companion_check import check_companion
    from ...bake.set_check import check_set

    # the parameters that have an effect: the argument with the output, how the result is printed,
    # and for profiles their source
    has_effect = {"baked", "--json", "--quiet", "-q"}
    is_set = receipt.companion == "profiles"
    if is_set:
        has_effect.add("--against")
    without_effect = sorted(typed - has_effect)
    if without_effect:
        flag = without_effect[0]
        raise UsageError(
            f"{flag} has no effect here: the files of {folder} are compared with its receipt; leave"
            " it out"
        )
    if is_set:
        sentence = check_set(folder, receipt, against)
    else:
        sentence = check_companion(folder)
    if screen.as_json:
        screen.data({"agrees": True, "sentence": sentence})
    else:
        screen.say(sentence)


def _validate_graph(
    folder: Path,
    receipt: CompanionReceipt,
    options: ValidateRequest,
    typed: Set[str],
    screen: Screen,
    explain: bool,
) -> None:
    """Compare the logits of a graph with its checkpoint in transformers, and print the result.

    Args:
        folder: The folder of the graph.
        receipt: Its receipt.
        options: The values of the options.
        typed: The names of the options that are on the command line. Those that have no effect on
            a graph are refused.
        screen: Where the result is printed.
        explain: Print all columns.
    """
    from ...bake.companion_check import check_companion
    from ...engines.engine import Progress
    from ...validate.comparison import Settings
    from ...views.results import show_validation

    without_effect = sorted(typed - OF_GRAPHS)
    if without_effect:
        raise UsageError(f"{without_effect[0]} has no effect on a compiled graph; leave it out")
    # the files first, as they are compared without a checkpoint
    screen.note(check_companion(folder))
    length = parse_tokens(options.length) if options.length else 0
    settings = Settings(length=length, seed=options.seed, device="cpu")
    with screen.counting("Running") as (total, advance):
        progress = Progress(screen.note, total, advance)
        compare = hook("validate_graph")
        result = compare(folder, receipt, options.against, settings, progress)

    if screen.as_json:
        screen.data(result.to_dict())
    elif screen.quiet:
        screen.say(result.sentence)
    else:
        title = f"{folder} against {options.against}, scaled at run time"
        show_validation(result, title, screen, explain)
    if not result.agrees:
        raise SystemExit(3)
