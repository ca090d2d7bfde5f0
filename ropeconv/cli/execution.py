"""Runs a validation with progress, notes and Ctrl-C, and gathers the commands that follow an
output.
"""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..errors import Interruption, StopRequest
from ..formats.kind import is_gguf
from .screen import Screen

if TYPE_CHECKING:
    from ..bake.apply import AppliedPlan
    from ..bake.findings import Options, Verification
    from ..bake.next_steps import NextSteps
    from ..bake.plan import Plan
    from ..validate.comparison import Comparison, Settings
    from ..validate.validation import Validation
    from ..views.plan import Outcome


def recovered(source: str, screen: Screen) -> None:
    """Undoes an interrupted change of a GGUF file, and says so."""
    from ..formats.gguf.inplace import recover

    if recover(Path(source)):
        screen.note(f"An interrupted change of {source} was undone first.")


def steps_after(
    plan: Plan,
    done: AppliedPlan | Outcome,
    path: Path,
    modelfile: Path | None = None,
    draft: Plan | None = None,
    against: str = "",
) -> NextSteps:
    """The commands that follow an output that was written.

    done: of the output at `path`. modelfile, draft: as in `run_commands`. against: as in
    `check_command`.
    """
    from ..bake.next_steps import NextSteps, check_command, run_commands
    from ..hub.training import train_command

    train = "" if plan.fine_tuning.works_untuned else train_command(plan, path)
    run = tuple(run_commands(plan, path, modelfile, draft))
    return NextSteps(train, run, check_command(plan, path, not done.uncomputed, against))


def run_validation(
    comparison: Comparison,
    settings: Settings,
    server: str,
    model: str,
    options: Options,
    screen: Screen,
) -> tuple[Validation, Verification]:
    """Compares the files of an output, then runs it in transformers, llama.cpp or a server, and
    records the result.

    server: its URL, or empty. model: which of its models, empty for the only one. Raises what
    `verify_output`, `validate_checkpoint`, `validate_gguf` and `validate_server` raise.
    """
    from ..engines.engine import Progress
    from ..engines.transformers.load import out_of_memory
    from ..validate.checkpoint import validate_checkpoint
    from ..validate.checks import check_frequencies
    from ..validate.gguf import check_gguf, validate_gguf
    from ..validate.server import validate_server

    gguf = not server and is_gguf(comparison.baked)
    if gguf:
        check_gguf(comparison, settings)
    else:
        settings.place()  # a device that does not exist is refused before any check
    files = compare_files(comparison, options, screen)
    if not (gguf or server):
        check = check_frequencies(comparison, settings.trust_remote_code)
        read_as = f", read as {check.read_as}," if check.read_as else ""
        screen.note(f"The frequencies{read_as} are right (within {check.max_ulp} ulp of float32).")
    long = bool(settings.length) and not (
        gguf or server
    )  # a part of a short run is not worth a comparison

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
        raise Interruption(
            f"interrupted; nothing was compared or recorded, and {comparison.baked} is unchanged:"
            " run the same command again"
        ) from None
    try:
        comparison.record(
            result.to_dict() | {"files": files.to_dict()}, result.runtime if server else ""
        )
    except OSError as problem:
        screen.note(f"The result is not stored beside {comparison.baked}: {problem.strerror}.")
    return result, files


def compare_files(comparison: Comparison, options: Options, screen: Screen) -> Verification:
    """Compares the files of an output with what its recipe and its source give."""
    from ..bake.verify import verify_output

    with screen.progress("Comparing", comparison.size) as advance:
        verification = verify_output(comparison, options, advance)
    for sentence in (verification.sentence, *verification.notes, *verification.unverified):
        screen.note(sentence if sentence.endswith(".") else f"Note: {sentence}.")
    return verification


@contextmanager
def stopping(
    screen: Screen, afterwards: str = "what has been run so far will be compared"
) -> Iterator[Callable[[], bool]]:
    """While it is entered, Ctrl-C makes the yielded function return True; a second Ctrl-C raises
    KeyboardInterrupt.
    """
    pressed: list[int] = []
    pending: list[int] = []

    def handler(number: int, frame: Any) -> None:
        pressed.append(number)
        pending.append(number)
        if len(pressed) > 1:
            raise StopRequest
        screen.note(f"Stopping: {afterwards}. Press again to give up.")

    def stopped() -> bool:
        return bool(pending and pending.pop())

    before = signal.signal(signal.SIGINT, handler)
    try:
        yield stopped
    finally:
        signal.signal(signal.SIGINT, before)
