"""`ropeconv restore`: brings the source of an output back as it was before the first `apply`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

import typer

from ...options import OutputPlace
from ...verbs.request import WriteOptions
from ..command import expand_options
from ..screen import ProgressScreen, Screen
from ..typer_classes import Command

if TYPE_CHECKING:
    from ...bake.output import Output
    from ...bake.restore import RestorePlan

app = typer.Typer(add_completion=False)

EXAMPLES = """
ropeconv restore ./Llama-2-7b-yarn16
ropeconv restore ./Qwen2.5-7B-Instruct-mixed4 -o ./Qwen2.5-7B-Instruct
ropeconv restore model-Q4_K_M.gguf --in-place
"""


@dataclass(frozen=True)
class RestoreOptions(WriteOptions, OutputPlace):
    """The options of `restore`."""


@app.command("restore", cls=Command, epilog=EXAMPLES)
@expand_options
def restore_command(
    baked: Annotated[
        str,
        typer.Argument(
            metavar="OUTPUT",
            help="A folder or GGUF file that ropeconv wrote, or its name on the Hub.",
        ),
    ],
    options: RestoreOptions,
    screen: ProgressScreen,
) -> None:
    """Undo: recreate the original model from an output.

    All files become those of the source again, byte for byte. Outputs with scaled, rounded weights
    are refused.
    """
    from ...verbs.restoring import plan_restore, write_restore

    dry_run = options.dry_run
    plan = plan_restore(baked, options.out, options.in_place, dry_run, screen)
    output = None
    if not dry_run:
        output = write_restore(plan, options.force, not options.no_fsync, screen)
    if screen.as_json:
        screen.data(plan.to_dict())
    elif screen.quiet:
        screen.copyable(str(plan.out))
    else:
        _show(plan, output, screen)


def _show(plan: RestorePlan, output: Output | None, screen: Screen) -> None:
    """Print the files that are restored, and notes on what could not be, or stays.

    Args:
        plan: The plan.
        output: The restored source; None for `--dry-run`.
        screen: Where it is printed.
    """
    rows = [(file.name, file.action, f"{file.size:,}") for file in plan.files]
    title = f"{plan.source.reference} -> {plan.out}"
    screen.table(title, ("file", "", "bytes"), rows, right=("bytes",))
    first_source = plan.first.described  # "Qwen/Qwen3-8B at commit 0123456"
    screen.say(f"The source was {first_source}.")
    if plan.skipped:
        screen.note(f"Not copied, because the source did not have them: {', '.join(plan.skipped)}")
    if plan.absent:
        screen.note(f"Missing, because `apply` did not copy them: {', '.join(plan.absent)}")
    if plan.kept:
        screen.note(f"Kept, because others added them later: {', '.join(plan.kept)}")
    if output is None:
        return
    if plan.in_place:
        screen.copyable(f"Restored {plan.out} in place.")
    else:
        screen.copyable(output.place)
