"""Runs validations with progress bars; Ctrl-C ends a long one early, with the positions read so far."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from ..errors import Interrupted
from ..failures import Stopped
from .output import Output

if TYPE_CHECKING:
    from ..engines import Progress
    from ..validate.comparison import Comparison
    from ..validate.rule.validation import Validation
    from ..validate.settings import Settings
    from ..verify import Options, Verified

Run = Callable[["Progress"], "Validation"]


def run_validation(
    comparison: Comparison, settings: Settings, server: str, model: str, options: Options, output: Output
) -> tuple[Validation, Verified | None]:
    """Compares the files of an output, and then what runs it: transformers, llama.cpp, or a server.

    comparison: the output and its source. settings: how to run. server: the URL of a server, or empty. model: which of
    its models, empty for the only one. options: how files are compared. output: for progress and notes. The second
    result is None in the processes of torchrun that leave the files to the first one. Raises what `verify_output`,
    `validate_checkpoint`, `validate_gguf` and `validate_server` raise.
    """
    from ..validate.gguf import check_gguf

    gguf = comparison.baked.suffix == ".gguf"
    if server or not gguf:
        settings.place()  # a device that is not there is said before any check
    else:
        check_gguf(comparison, settings)
    files = compare_files(comparison, options, output)
    if server:
        return run_server(comparison, server, model, settings, output, files), files
    if gguf:
        return run_gguf(comparison, settings, output, files), files
    return run_checkpoint(comparison, settings, output, files), files


def compare_files(comparison: Comparison, options: Options, output: Output) -> Verified | None:
    """Compares the files of an output with what its recipe and its source give, which the first process does for all.

    comparison: the output and its source. options: how. output: for progress and notes.
    """
    from ..engines.transformers.distributed import is_main_process
    from ..verify import verify_output

    if not is_main_process():
        return None
    with output.progress("Comparing", comparison.size) as advance:
        found = verify_output(comparison, options, advance)
    for sentence in (found.sentence, *found.notes, *found.unverified):
        output.note(sentence if sentence.endswith(".") else f"Note: {sentence}.")
    return found


def run_checkpoint(comparison: Comparison, settings: Settings, output: Output, files: Verified | None) -> Validation:
    """Compares frequencies and logits of a checkpoint with the reference, and writes the result into the receipt.

    comparison: the output and its source. settings: how to run. output: for progress and notes. files: how they were
    compared.
    """
    from ..validate.checkpoint import validate_checkpoint
    from ..validate.checks.before_forward import check_before_forward

    compared = files is not None and not files.quick
    check = check_before_forward(comparison, settings.trust_remote_code, weights=not compared)
    read_as = f", read as {check.read_as}," if check.read_as else ""
    output.note(f"Frequencies are right{read_as} (within {check.max_ulp} ulp of float32).")
    stoppable = bool(settings.length)  # short runs are too short to be worth a part of them

    def run(progress: Progress) -> Validation:
        return validate_checkpoint(comparison, settings, progress)

    return _run(comparison, run, output, files, stoppable)


def run_gguf(comparison: Comparison, settings: Settings, output: Output, files: Verified | None) -> Validation:
    """Compares a GGUF file in llama.cpp with the reference, and writes the result beside the file.

    comparison, settings, output, files: as in `run_checkpoint`.
    """
    from ..validate.gguf import validate_gguf

    return _run(comparison, lambda progress: validate_gguf(comparison, settings, progress), output, files)


def run_server(
    comparison: Comparison, url: str, model: str, settings: Settings, output: Output, files: Verified | None
) -> Validation:
    """Compares a running server with the reference, and writes the result into the receipt.

    comparison, settings, output, files: as in `run_checkpoint`. url: of the server. model: which of its models, empty
    for the only one.
    """
    from ..validate.server import validate_server

    def run(progress: Progress) -> Validation:
        return validate_server(comparison, url, model, settings, progress)

    return _run(comparison, run, output, files, server=True)


def _run(
    comparison: Comparison,
    run: Run,
    output: Output,
    files: Verified | None,
    stoppable: bool = False,
    server: bool = False,
) -> Validation:
    """Runs a comparison and records its result.

    comparison: the output and its source. run: makes the result. output: for progress and notes. files: how they were
    compared, for the record. stoppable: whether Ctrl-C ends it early, with what has been read. server: whether it ran.
    """
    from ..engines import Progress
    from ..engines.transformers.device import out_of_memory
    from ..engines.transformers.distributed import any_rank, is_main_process

    interruptible = stopping(output) if stoppable else _never()
    try:
        with output.counting("Running") as (total, advance), interruptible as stopped:
            progress = Progress(output.note, total, advance, any_rank(stopped))
            result: Validation = out_of_memory(lambda: run(progress))
    except KeyboardInterrupt:
        raise Interrupted(
            f"interrupted; nothing was compared or recorded, and {comparison.baked} is as it was: run the same command "
            "again"
        ) from None
    if is_main_process():
        compared = {"files": files.to_dict()} if files is not None else {}
        comparison.record(result.to_dict() | compared, result.runtime if server else "")
    return result


@contextmanager
def _never() -> Iterator[Callable[[], bool]]:
    yield lambda: False


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
