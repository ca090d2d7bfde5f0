"""`restore`: brings the source of an output back."""

from __future__ import annotations

import os
from pathlib import Path

from ..bake.output import Output
from ..bake.restore import RestorePlan, restore_plan
from ..bake.restore import restore as write_restored
from ..errors import Interruption, UsageError
from ..formats.files import expand_home
from ..keywords import StrPath
from ..models.open import open_source
from ..reporting import Reporter, SilentReporter
from .arguments import check_arguments, reference_of, refuse_options_of_plan, source_of
from .output import recover_file


@check_arguments
def restore(
    output: object,
    out: StrPath | None = None,
    *,
    in_place: bool = False,
    force: bool = False,
    fsync: bool = True,
    reporter: Reporter | None = None,
) -> Output:
    """Bring the source of an output back, byte for byte.

    Args:
        output: The result of `apply`, its path or its name on the Hub, or a plan of `restore_plan`.
        out: Where the source is written, by default `./NAME-restored`.
        in_place: Change the GGUF file itself.
        force: Replace an earlier output of ropeconv.
        fsync: Wait until everything is on the disk.
        reporter: Receives progress, and sentences for the user.

    Raises:
        UsageError: For something that is not an output, and for `out` or `in_place` with a plan.
        RopeconvError: Where the receipt does not say what the source had.
    """
    if reporter is None:
        reporter = SilentReporter()
    if isinstance(output, RestorePlan):
        # the plan has its place; only the options of writing are left
        decided = {"out": out, "in_place": in_place or None}
        refuse_options_of_plan("restore", decided, "restore_plan")
        plan = output
    else:
        plan = _plan(output, out, in_place, reporter)
    return write_restore(plan, force=force, fsync=fsync, reporter=reporter)


def plan_restore(
    reference: str, out: Path | None, in_place: bool, dry_run: bool, reporter: Reporter
) -> RestorePlan:
    """Plan what brings the source of an output back.

    Args:
        reference: The output.
        out: Where the source is written; None for `./NAME-restored`.
        in_place: Change the GGUF file itself.
        dry_run: Whether nothing is written, so that an interrupted change stays.
        reporter: Receives a note where such a change was undone.
    """
    if in_place and not dry_run:
        recover_file(reference, reporter)
    return restore_plan(open_source(reference), out, in_place)


def write_restore(plan: RestorePlan, force: bool, fsync: bool, reporter: Reporter) -> Output:
    """Restore the model from which an output was made, as planned.

    Args:
        plan: The plan, from `plan_restore`.
        force: Whether an earlier output of ropeconv at the same path is replaced.
        fsync: Whether to wait until all files are on the disk.
        reporter: Receives the progress.

    Returns:
        The restored model.

    Raises:
        Interruption: The user pressed Ctrl-C.
        UsageError: An option has no effect on a change in place.
        RopeconvError: The model cannot be written.
    """
    if plan.in_place and force:
        raise UsageError("--force does not go with --in-place; leave one out")
    if plan.in_place and not fsync:
        raise UsageError("--no-fsync does not go with --in-place; leave one out")
    try:
        with reporter.progress("Writing", plan.bytes) as advance:
            restored = write_restored(plan, force=force, fsync=fsync, advance=advance)
    except KeyboardInterrupt:
        raise Interruption(
            f"interrupted; run the same command again to restore {plan.out}"
        ) from None

    # here the plan goes the other way: its source is the output, which is read
    extended_model = plan.source.reference
    return Output(
        path=restored.path,
        plan=plan,
        against=extended_model,
        was_complete=restored.was_there,  # whether an earlier run had restored it already
    )


def _plan(output: object, out: StrPath | None, in_place: bool, reporter: Reporter) -> RestorePlan:
    """Plan what brings the source of an output back, from the arguments of Python."""
    place = None
    if out is not None:
        place = expand_home(os.fspath(out))
    if in_place:
        recover_file(reference_of("restore", output), reporter)
    return restore_plan(source_of("restore", output), place, in_place)
