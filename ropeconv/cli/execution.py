"""Carries out one plan of `apply`: writes the output, has it checked, and validates it."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..errors import Interrupted, Stopped
from ..views.plan import Outcome
from .commands.push import publish_staged, written_before
from .output import Output
from .units import Flags

if TYPE_CHECKING:
    from ..bake.findings import Options, Verification
    from ..bake.plan import Plan
    from ..engines.probe import Probe
    from ..validate.comparison import Comparison, Settings
    from ..validate.validation import Validation


def execute(
    plan: Plan, probe: Probe | None, flags: Flags, output: Output, title: str = "Writing", again: bool = False
) -> Outcome:
    """Writes the output of a plan, and validates it where that is asked for.

    plan: what to write. probe: a running one, or None. flags: how. output: for progress and notes. title: of the
    progress. again: take an output that an earlier run of the same command has written, as is done where outputs are
    published. With `flags.how` and without -o a folder is written to a temporary one and published from there.
    """
    from ..bake.checkpoint import CheckpointPlan

    if flags.how is not None and plan.target.out is None and isinstance(plan, CheckpointPlan):
        check, published = publish_staged(plan, probe, flags.how, output, flags.checksum)
        return Outcome(check=check, published=published)
    again = (again or flags.how is not None) and not (flags.force or plan.target.in_place)
    if again and written_before(plan, output):
        output.note(f"{plan.out} is complete from an earlier run of this command.")
        done = Outcome(plan.out)
    else:
        done = _written(plan, probe, flags, output, title)
    if flags.validate != "off" and plan.is_folder and done.path is not None:
        done.proof = _validated(plan, done.path, flags.validate, output)
    return done


def _written(plan: Plan, probe: Probe | None, flags: Flags, output: Output, title: str) -> Outcome:
    from ..bake.apply import apply

    try:
        with output.progress(title, plan.bytes) as advance:
            done = apply(
                plan,
                link=flags.link and plan.is_folder,
                force=flags.force,
                checksum=flags.checksum and plan.is_folder,
                fsync=not flags.no_fsync,
                advance=advance,
                probe=probe,
            )
    except KeyboardInterrupt:
        raise Interrupted(_left(plan)) from None
    output.note(done.reason and f"Not checked: {done.reason}.")
    return Outcome(done.path, done.check)


def _left(plan: Plan) -> str:
    """The message of an interrupted run: what remains on disk, and how to continue."""
    if plan.target.in_place:
        return f"interrupted in a change of {plan.out}; the same command undoes it first, and then starts again"
    return (
        f"interrupted; {plan.out} does not exist yet, and finished files are in a hidden folder beside it: the same "
        "command continues with them"
    )


def _validated(plan: Plan, path: Path, where: str, output: Output) -> Validation | None:
    """Validates an output. Returns None, after a note, where `auto` finds no GPU with enough memory."""
    from ..bake.findings import Options
    from ..engines.transformers.load import placed, stored_dtype
    from ..engines.transformers.memory import gpu_bytes
    from ..validate.comparison import Comparison, Settings

    settings, reference = Settings(device="cuda" if where == "auto" else where), plan.source.reference
    again = f"`ropeconv validate {path} --against {reference}` does it on the CPU"
    if where == "auto" and not gpu_bytes():
        output.note(f"Not validated: there is no GPU; {again}.")
        return None
    comparison = Comparison.open(path, reference)
    if where == "auto":
        source = comparison.checkpoint
        if placed(source, settings.place(stored_dtype(source.config()))).layer_by_layer:
            output.note(f"Not validated: the GPU is too small; {again}.")
            return None
    return run_validation(comparison, settings, "", "", Options(), output)[0]


def recovered(source: str, output: Output) -> None:
    """Undoes an interrupted change of a GGUF file, and says so."""
    from ..formats.gguf.inplace import recover

    if recover(Path(source)):
        output.note(f"An interrupted change of {source} was undone first.")


def run_validation(
    comparison: Comparison, settings: Settings, server: str, model: str, options: Options, output: Output
) -> tuple[Validation, Verification]:
    """Compares the files of an output, then runs it in transformers, llama.cpp or a server, and records the result.

    comparison: the output and its source. settings: how to run. server: the URL of a server, or empty. model: which of
    its models, empty for the only one. options: how files are compared. output: for progress and notes. Raises what
    `verify_output`, `validate_checkpoint`, `validate_gguf` and `validate_server` raise.
    """
    from ..engines.engine import Progress
    from ..engines.transformers.load import out_of_memory
    from ..validate.checkpoint import validate_checkpoint
    from ..validate.gguf import check_gguf, validate_gguf
    from ..validate.server import validate_server

    gguf = not server and comparison.baked.suffix == ".gguf"
    if gguf:
        check_gguf(comparison, settings)
    else:
        settings.place()  # a device that does not exist is refused before any check
    files = compare_files(comparison, options, output)
    if not (gguf or server):
        _check_frequencies(comparison, settings, output)
    long = bool(settings.length) and not (gguf or server)  # a part of a short run is not worth a comparison

    def run(progress: Progress) -> Validation:
        if server:
            return validate_server(comparison, server, model, settings, progress)
        return (validate_gguf if gguf else validate_checkpoint)(comparison, settings, progress)

    try:
        interruptible = stopping(output) if long else nullcontext(lambda: False)
        with output.counting("Running") as (total, advance), interruptible as stopped:
            progress = Progress(output.note, total, advance, stopped)
            result: Validation = out_of_memory(lambda: run(progress))
    except KeyboardInterrupt:
        raise Interrupted(
            f"interrupted; nothing was compared or recorded, and {comparison.baked} is unchanged: run the same command "
            "again"
        ) from None
    comparison.record(result.to_dict() | {"files": files.to_dict()}, result.runtime if server else "")
    return result, files


def compare_files(comparison: Comparison, options: Options, output: Output) -> Verification:
    """Compares the files of an output with what its recipe and its source give.

    comparison: the output and its source. options: how. output: for progress and notes.
    """
    from ..bake.verify import verify_output

    with output.progress("Comparing", comparison.size) as advance:
        verification = verify_output(comparison, options, advance)
    for sentence in (verification.sentence, *verification.notes, *verification.unverified):
        output.note(sentence if sentence.endswith(".") else f"Note: {sentence}.")
    return verification


def _check_frequencies(comparison: Comparison, settings: Settings, output: Output) -> None:
    from ..validate.checks import check_frequencies

    check = check_frequencies(comparison, settings.trust_remote_code)
    read_as = f", read as {check.read_as}," if check.read_as else ""
    output.note(f"The frequencies{read_as} are right (within {check.max_ulp} ulp of float32).")


@contextmanager
def stopping(output: Output, what: str = "what has been run so far will be compared") -> Iterator[Callable[[], bool]]:
    """While it is entered, Ctrl-C makes the yielded function return True; a second Ctrl-C raises KeyboardInterrupt.

    output: for the note. what: is done then, in a phrase.
    """
    pressed: list[int] = []
    pending: list[int] = []

    def handler(number: int, frame: Any) -> None:
        pressed.append(number)
        pending.append(number)
        if len(pressed) > 1:
            raise Stopped
        output.note(f"Stopping: {what}. Press again to give up.")

    def stopped() -> bool:
        return bool(pending and pending.pop())

    before = signal.signal(signal.SIGINT, handler)
    try:
        yield stopped
    finally:
        signal.signal(signal.SIGINT, before)
