"""`ropeconv restore`: brings the source of an output back, as it was before the first bake."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ...errors import Interrupted, UsageError
from ..command import OUTPUT
from ..options import DryRunOption, ForceOption, JsonOption, NoFsyncOption, QuietOption
from ..output import Output

if TYPE_CHECKING:
    from ...bake.restore import RestorePlan

EXAMPLES = """Examples:

ropeconv restore ./Llama-2-7b-yarn16

ropeconv restore ./Qwen2.5-7B-Instruct-mixed4 -o ./Qwen2.5-7B-Instruct

ropeconv restore model-Q4_K_M.gguf --in-place
"""


def restore_command(
    baked: Annotated[
        str, typer.Argument(metavar="OUTPUT", help="A folder or GGUF file that ropeconv wrote, or its name on the Hub.")
    ],
    out: Annotated[
        Path | None,
        typer.Option(
            "--out", "-o", metavar="PATH", help="Folder or GGUF file (default: here, named after the source).",
            rich_help_panel=OUTPUT, show_default=False,
        ),
    ] = None,
    in_place: Annotated[
        bool,
        typer.Option(
            "--in-place", help="Restore the GGUF file itself instead of a copy.", rich_help_panel=OUTPUT
        ),
    ] = False,
    allow_hard_links: Annotated[
        bool,
        typer.Option(
            "--allow-hard-links", help="With --in-place: also change a file that has other hard links.",
            rich_help_panel=OUTPUT,
        ),
    ] = False,
    dry_run: DryRunOption = False,
    force: ForceOption = False,
    no_fsync: NoFsyncOption = False,
    as_json: JsonOption = False,
    quiet: QuietOption = False,
) -> None:  # fmt: skip
    """Undo: recreate the original model from an output.

    All files become those of the source again, byte for byte. Outputs with scaled, rounded weights are refused.
    """
    from ...bake.restore import restore, restore_plan
    from ...models.open import open_source
    from ..execution import recovered

    output = Output(as_json, quiet)
    if allow_hard_links and not in_place:
        raise UsageError("--allow-hard-links goes with --in-place; leave it out, or add that")
    if in_place and not dry_run:
        recovered(baked, output)
    plan = restore_plan(open_source(baked), out, in_place)
    if not dry_run:
        try:
            with output.progress("Writing", plan.bytes) as advance:
                restore(plan, force=force, fsync=not no_fsync, allow_hard_links=allow_hard_links, advance=advance)
        except KeyboardInterrupt:
            raise Interrupted(f"interrupted; the same command brings {plan.out} back") from None
    if as_json:
        output.data(plan.to_dict())
    elif quiet:
        output.copyable(str(plan.out))
    else:
        _show(plan, dry_run, output)


def _show(plan: RestorePlan, dry_run: bool, output: Output) -> None:
    rows = [(file.name, file.action, f"{file.size:,}") for file in plan.files]
    output.table(f"{plan.source.reference} -> {plan.out}", ("file", "", "bytes"), rows, right=("bytes",))
    output.say(f"The source was {plan.first.described}.")
    if plan.skipped:
        output.note(f"Not copied, because the source did not have them: {', '.join(plan.skipped)}")
    if plan.absent:
        output.note(f"Missing, because `apply` did not copy them: {', '.join(plan.absent)}")
    if not dry_run:
        output.copyable(f"Restored {plan.out} in place." if plan.in_place else f"Wrote {plan.out}")
