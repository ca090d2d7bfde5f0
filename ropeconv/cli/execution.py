"""Carries out one plan of `apply`: writes the output, has it checked, and validates it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from ..errors import Interrupted, UsageError
from ..hub.publish_options import PublishOptions
from ..views.outcome import Outcome
from .choices import Device
from .output import Output
from .publishing import publish_staged, written_before

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ..bake import Plan
    from ..engines.probe import Probe
    from ..validate.rule.validation import Validation
    from .units import Unit


@dataclass(frozen=True)
class Flags:
    """How `apply` writes outputs, and what it does besides.

    how: of publishing, None where nothing is published. Others: the options of their names; fsync: no --no-fsync.
    """

    how: PublishOptions | None
    family: str = ""
    dry_run: bool = False
    force: bool = False
    link: bool = False
    checksum: bool = False
    fsync: bool = True
    explain: bool = False
    validate: Device = "off"
    ollama: bool = False


def check_flags(units: Sequence[Unit], flags: Flags) -> None:
    """Raises UsageError for options that have no effect on any of the outputs."""
    folder, gguf = not all(unit.to_gguf for unit in units), any(unit.to_gguf for unit in units)
    if flags.validate != "off" and not folder:
        raise UsageError("--validate is for checkpoints; run `ropeconv validate` on the GGUF file afterwards")
    if flags.checksum and not folder:
        raise UsageError("--checksum goes with a folder as output, whose receipt lists files; leave it out")
    given = {"--link": flags.link, "--push": flags.how, "--force": flags.force, "--no-fsync": not flags.fsync}
    flag = next((name for name, value in given.items() if value), "")
    if units[0].given["in_place"] and flag:
        raise UsageError(f"{flag} does not go with --in-place; leave one out")
    if flags.link and not folder:
        raise UsageError("--link goes with a folder as output, whose unchanged files it links; leave it out")
    if flags.ollama and not gguf:
        raise UsageError("--ollama goes with a GGUF file as output; add --to gguf, or leave it out")
    if flags.how and flags.validate != "off" and units[0].given["out"] is None:
        raise UsageError("--push with --validate needs -o, so that there is something to validate; add it")


def execute(
    plan: Plan, probe: Probe | None, flags: Flags, output: Output, title: str = "Writing", again: bool = False
) -> Outcome:
    """Writes the output of a plan, and validates it where that is asked for.

    plan: what to write. probe: a running one, or None. flags: how. output: for progress and notes. title: of the
    progress. again: take an output that an earlier run of the same command has written, as is done where outputs are
    published. With `flags.how` and without -o a folder is written to a temporary one and published from there.
    """
    from ..bake import CheckpointPlan

    if flags.how is not None and plan.target.out is None and isinstance(plan, CheckpointPlan):
        check, published = publish_staged(plan, probe, flags.how, output, flags.checksum)
        return Outcome(check=check, published=published)
    again = (again or flags.how is not None) and not (flags.force or plan.target.in_place)
    if again and written_before(plan, output):
        output.note(f"{plan.out} is there from an earlier run of this command, and is taken as it is.")
        done = Outcome(plan.out)
    else:
        done = _written(plan, probe, flags, output, title)
    if flags.validate != "off" and plan.is_folder and done.path is not None:
        done.proof = _validated(plan, done.path, flags.validate, output)
    return done


def _written(plan: Plan, probe: Probe | None, flags: Flags, output: Output, title: str) -> Outcome:
    from ..bake import apply

    try:
        with output.progress(title, plan.bytes) as advance:
            done = apply(
                plan,
                link=flags.link and plan.is_folder,
                force=flags.force,
                checksum=flags.checksum and plan.is_folder,
                fsync=flags.fsync,
                advance=advance,
                probe=probe,
            )
    except KeyboardInterrupt:
        raise Interrupted(_left(plan)) from None
    output.note(done.reason and f"Not checked: {done.reason}.")
    return Outcome(done.path, done.check)


def _left(plan: Plan) -> str:
    """The message of an interrupted run: what remains on disk, and how to go on."""
    if plan.target.in_place:
        return f"interrupted in a change of {plan.out}; the same command undoes it first, and then starts again"
    return (
        f"interrupted; {plan.out} is not there yet, and finished files are kept in a hidden folder beside it: the same "
        "command goes on from them"
    )


def _validated(plan: Plan, path: Path, where: str, output: Output) -> Validation | None:
    """Validates an output. Returns None, after a note, where `auto` finds no GPU with enough memory."""
    from ..engines.transformers.device import free_gpu_bytes
    from ..validate.comparison import Comparison
    from ..validate.settings import Settings
    from ..verify import Options
    from .running import compare_files, run_checkpoint

    if where == "auto":
        free = free_gpu_bytes()
        if free < 1.2 * plan.bytes:
            reason = "no GPU is here" if not free else "the GPU is too small"
            again = f"`ropeconv validate {path} --against {plan.source.reference}` does it on the CPU"
            output.note(f"Not validated: {reason}; {again}.")
            return None
    comparison = Comparison.open(path, plan.source.reference)
    settings = Settings(device="cuda" if where == "auto" else where)
    settings.place()
    return run_checkpoint(comparison, settings, output, compare_files(comparison, Options(), output))


def recovered(source: str, output: Output) -> None:
    """Undoes an interrupted change of a GGUF file, and says so."""
    from ..formats.gguf.inplace import recover

    if recover(Path(source)):
        output.note(f"An interrupted change of {source} was undone first.")
