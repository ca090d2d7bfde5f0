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
from .screen import Screen
from .units import Flags

if TYPE_CHECKING:
    from ..bake.findings import Options, Verification
    from ..bake.plan import Plan
    from ..engines.probe import Probe
    from ..validate.comparison import Comparison, Settings
    from ..validate.validation import Validation


def execute(
    plan: Plan, probe: Probe | None, flags: Flags, screen: Screen, title: str = "Writing", again: bool = False
) -> Outcome:
    """Writes the output of a plan, and validates it where that is asked for.

    again: take an output that an earlier run of the same command has written, as is done where outputs are published.
    With `flags.how` and without -o a folder is written to a temporary one and published from there.
    """
    from ..bake.checkpoint import CheckpointPlan

    if flags.how is not None and plan.target.out is None and isinstance(plan, CheckpointPlan):
        check, published = publish_staged(plan, probe, flags.how, screen, flags.checksum)
        return Outcome(check=check, published=published)
    again = (again or flags.how is not None) and not (flags.force or plan.target.in_place)
    if again and written_before(plan, screen):
        screen.note(f"{plan.out} is complete from an earlier run of this command.")
        done = Outcome(plan.out)
    else:
        done = _written(plan, probe, flags, screen, title)
    if flags.validate != "off" and plan.is_folder and done.path is not None:
        done.proof = _validated(plan, done.path, flags.validate, screen)
    return done


def _written(plan: Plan, probe: Probe | None, flags: Flags, screen: Screen, title: str) -> Outcome:
    from ..bake.apply import apply

    try:
        with screen.progress(title, plan.bytes) as advance:
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
    screen.note(done.reason and f"Not checked: {done.reason}.")
    return Outcome(done.path, done.check)


def _left(plan: Plan) -> str:
    """The message of an interrupted run: what remains on disk, and how to continue."""
    if plan.target.in_place:
        return f"interrupted in a change of {plan.out}; the same command undoes it first, and then starts again"
    return (
        f"interrupted; {plan.out} does not exist yet, and finished files are in a hidden folder beside it: the same "
        "command continues with them"
    )


def _validated(plan: Plan, path: Path, where: str, screen: Screen) -> Validation | None:
    """Validates an output. Returns None, after a note, where `auto` finds no GPU with enough memory."""
    from ..bake.findings import Options
    from ..engines.transformers.load import placed, stored_dtype
    from ..engines.transformers.memory import gpu_bytes
    from ..validate.comparison import Comparison, Settings

    settings, reference = Settings(device="cuda" if where == "auto" else where), plan.source.reference
    again = f"`ropeconv validate {path} --against {reference}` does it on the CPU"
    if where == "auto" and not gpu_bytes():
        screen.note(f"Not validated: there is no GPU; {again}.")
        return None
    comparison = Comparison.open(path, reference)
    if where == "auto":
        source = comparison.checkpoint
        if placed(source, settings.place(stored_dtype(source.config()))).layer_by_layer:
            screen.note(f"Not validated: the GPU is too small; {again}.")
            return None
    return run_validation(comparison, settings, "", "", Options(), screen)[0]


def recovered(source: str, screen: Screen) -> None:
    """Undoes an interrupted change of a GGUF file, and says so."""
    from ..formats.gguf.inplace import recover

    if recover(Path(source)):
        screen.note(f"An interrupted change of {source} was undone first.")


def run_validation(
    comparison: Comparison, settings: Settings, server: str, model: str, options: Options, screen: Screen
) -> tuple[Validation, Verification]:
    """Compares the files of an output, then runs it in transformers, llama.cpp or a server, and records the result.

    server: its URL, or empty. model: which of its models, empty for the only one. Raises what `verify_output`,
    `validate_checkpoint`, `validate_gguf` and `validate_server` raise.
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
    files = compare_files(comparison, options, screen)
    if not (gguf or server):
        _check_frequencies(comparison, settings, screen)
    long = bool(settings.length) and not (gguf or server)  # a part of a short run is not worth a comparison

    def run(progress: Progress) -> Validation:
        if server:
            return validate_server(comparison, server, model, settings, progress)
        return (validate_gguf if gguf else validate_checkpoint)(comparison, settings, progress)

    try:
        interruptible = stopping(screen) if long else nullcontext(lambda: False)
        with screen.counting("Running") as (total, advance), interruptible as stopped:
            progress = Progress(screen.note, total, advance, stopped)
            result: Validation = out_of_memory(lambda: run(progress))
    except KeyboardInterrupt:
        raise Interrupted(
            f"interrupted; nothing was compared or recorded, and {comparison.baked} is unchanged: run the same command "
            "again"
        ) from None
    comparison.record(result.to_dict() | {"files": files.to_dict()}, result.runtime if server else "")
    return result, files


def compare_files(comparison: Comparison, options: Options, screen: Screen) -> Verification:
    """Compares the files of an output with what its recipe and its source give."""
    from ..bake.verify import verify_output

    with screen.progress("Comparing", comparison.size) as advance:
        verification = verify_output(comparison, options, advance)
    for sentence in (verification.sentence, *verification.notes, *verification.unverified):
        screen.note(sentence if sentence.endswith(".") else f"Note: {sentence}.")
    return verification


def _check_frequencies(comparison: Comparison, settings: Settings, screen: Screen) -> None:
    from ..validate.checks import check_frequencies

    check = check_frequencies(comparison, settings.trust_remote_code)
    read_as = f", read as {check.read_as}," if check.read_as else ""
    screen.note(f"The frequencies{read_as} are right (within {check.max_ulp} ulp of float32).")


@contextmanager
def stopping(screen: Screen, what: str = "what has been run so far will be compared") -> Iterator[Callable[[], bool]]:
    """While it is entered, Ctrl-C makes the yielded function return True; a second Ctrl-C raises KeyboardInterrupt."""
    pressed: list[int] = []
    pending: list[int] = []

    def handler(number: int, frame: Any) -> None:
        pressed.append(number)
        pending.append(number)
        if len(pressed) > 1:
            raise Stopped
        screen.note(f"Stopping: {what}. Press again to give up.")

    def stopped() -> bool:
        return bool(pending and pending.pop())

    before = signal.signal(signal.SIGINT, handler)
    try:
        yield stopped
    finally:
        signal.signal(signal.SIGINT, before)
