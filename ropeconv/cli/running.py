"""Runs validations with progress bars; Ctrl-C ends a long one early, with the positions read so far."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from ..errors import Interrupted
from .output import Output

if TYPE_CHECKING:
    from ..engines import Progress
    from ..validate.comparison import Comparison
    from ..validate.rule.validation import Validation
    from ..validate.settings import Settings

Run = Callable[["Progress"], "Validation"]


def run_validation(
    comparison: Comparison, settings: Settings, server: str, model: str, ignore_receipt: bool, output: Output
) -> Validation:
    """The comparison that an output needs: a folder in transformers, a GGUF file in llama.cpp, or a running server.

    comparison: the output and its source. settings: how to run. server: the URL of a server, or empty. model: which of
    its models, empty for the only one. ignore_receipt: do not compare a folder's files with the receipt. output: for
    progress and notes. Raises what `validate_checkpoint`, `validate_gguf` and `validate_server` raise.
    """
    if server:
        return run_server(comparison, server, model, settings, output)
    if comparison.baked.suffix == ".gguf":
        return run_gguf(comparison, settings, output)
    return run_checkpoint(comparison, settings, output, ignore_receipt)


def run_checkpoint(
    comparison: Comparison, settings: Settings, output: Output, ignore_receipt: bool = False
) -> Validation:
    """Checks a checkpoint, compares its logits with the reference, and writes the result into the receipt.

    comparison: the output and its source. settings: how to run. output: for progress and notes. ignore_receipt: do not
    compare the files with the receipt.
    """
    from ..validate.checkpoint import validate_checkpoint
    from ..validate.checks.before_forward import check_before_forward

    settings.place()  # a device that is not there is said before any check
    check = check_before_forward(comparison, ignore_receipt, settings.trust_remote_code)
    output.note(f"Files and frequencies are right (within {check.max_ulp} ulp of float32).")
    stoppable = bool(settings.length)  # short runs are too short to be worth a part of them
    return _run(comparison, lambda progress: validate_checkpoint(comparison, settings, progress), output, stoppable)


def run_gguf(comparison: Comparison, settings: Settings, output: Output) -> Validation:
    """Compares a GGUF file in llama.cpp with the reference, and writes the result beside the file."""
    from ..validate.gguf import validate_gguf

    return _run(comparison, lambda progress: validate_gguf(comparison, settings, progress), output)


def run_server(comparison: Comparison, url: str, model: str, settings: Settings, output: Output) -> Validation:
    """Compares a running server with the reference, and writes the result into the receipt.

    comparison: the output and its source. url: of the server. model: which of its models, empty for the only one.
    settings: how to run. output: for progress and notes.
    """
    from ..validate.server import validate_server

    settings.place()

    def run(progress: Progress) -> Validation:
        return validate_server(comparison, url, model, settings, progress)

    return _run(comparison, run, output, server=True)


def _run(comparison: Comparison, run: Run, output: Output, stoppable: bool = False, server: bool = False) -> Validation:
    """Runs a comparison and records its result. stoppable: whether Ctrl-C ends it early, with what has been read."""
    from ..engines import Progress
    from ..engines.transformers.device import out_of_memory
    from ..engines.transformers.distributed import any_rank, is_main_process

    stopping = _stopping(output) if stoppable else _never()
    try:
        with output.counting("Running") as (total, advance), stopping as stopped:
            progress = Progress(output.note, total, advance, any_rank(stopped))
            result: Validation = out_of_memory(lambda: run(progress))
    except KeyboardInterrupt:
        raise Interrupted(
            f"interrupted; nothing was compared or recorded, and {comparison.baked} is as it was: run the same command "
            "again"
        ) from None
    if is_main_process():
        comparison.record(result.to_dict(), result.runtime if server else "")
    return result


@contextmanager
def _never() -> Iterator[Callable[[], bool]]:
    yield lambda: False


@contextmanager
def _stopping(output: Output) -> Iterator[Callable[[], bool]]:
    """While it is entered, Ctrl-C makes the yielded function return True; a second Ctrl-C raises KeyboardInterrupt."""
    pressed: list[int] = []
    pending: list[int] = []

    def handler(number: int, frame: Any) -> None:
        pressed.append(number)
        pending.append(number)
        if len(pressed) > 1:
            raise KeyboardInterrupt
        output.note("Stopping: what has been run so far will be compared. Press again to give up.")

    def stopped() -> bool:
        return bool(pending and pending.pop())

    before = signal.signal(signal.SIGINT, handler)
    try:
        yield stopped
    finally:
        signal.signal(signal.SIGINT, before)
