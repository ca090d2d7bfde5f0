"""The process of the command line: its standard streams and its signals."""

import io
import os
import re
import select
import signal
import sys
import traceback
from collections.abc import Callable
from contextlib import suppress
from types import FrameType

import typer

from ..errors import StopRequest, reason, sentence
from ..rope.errors import RopeconvError
from .screen import printable

_received: list[int] = []


def prepare() -> None:
    """Makes standard streams safe to write to, and lets SIGTERM and SIGHUP end a run as Ctrl-C
    does.

    A stream that is closed is opened on /dev/null, so that no file of the run takes its number.
    Characters that an encoding lacks are written as escapes.
    """
    for number in (0, 1, 2):
        try:
            os.fstat(number)
        except OSError:
            os.set_inheritable(os.open(os.devnull, os.O_RDWR), True)
    sys.stdin = sys.stdin or os.fdopen(0, encoding="utf-8", closefd=False)
    sys.stdout = sys.stdout or os.fdopen(1, "w", encoding="utf-8", closefd=False)
    sys.stderr = sys.stderr or os.fdopen(2, "w", encoding="utf-8", closefd=False)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, _stop)
    for ending in (signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(ending) is signal.SIG_DFL:
            signal.signal(ending, _stop)


def interrupted(ctrl_c: int) -> int:
    """The exit code of an interrupted run: 128 and the signal. ctrl_c: the one where no signal
    came.
    """
    return 128 + _received[0] if _received else ctrl_c


def reader_gone() -> bool:
    """Whether the reader of stdout or stderr has gone. False for streams that are not files of the
    system.
    """
    watch = select.poll()
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError, ValueError):
            watch.register(stream.fileno(), 0)
    return any(event & (select.POLLERR | select.POLLHUP) for _, event in watch.poll(0))


def drop_output() -> None:
    """Sends what is still to be written to /dev/null, after the reader of a pipe has gone."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except OSError:
            os.dup2(nowhere, stream.fileno())
    os.close(nowhere)


def _stop(number: int, frame: FrameType | None) -> None:
    if number != signal.SIGINT:
        _received.append(number)
        signal.signal(number, signal.SIG_DFL)  # a second one ends it at once
    raise StopRequest


CTRL_C = 130
READER_GONE = 141
"""128 and SIGPIPE: the exit code of a program whose reader has gone, such as before `head`."""
LONGEST = 1200
"""Characters of a message."""
INTERRUPTED = (
    "interrupted; nothing took its final name or was recorded: the same command starts again"
)


def run(app: Callable[..., object]) -> int:
    """Runs the app and returns its exit code.

    0 done, 1 a known failure, 2 usage, 3 a check failed, 130 interrupted (143 by SIGTERM), 141 the
    reader has gone.
    """
    try:
        app()
        sys.stdout.flush()
        return 0
    except BaseException as problem:
        try:
            return _report(problem)
        except BrokenPipeError:
            drop_output()
            return READER_GONE


def _report(problem: BaseException) -> int:
    """Print the failure of a command, and return its exit code."""
    if isinstance(problem, BrokenPipeError) and reader_gone():
        raise problem
    if isinstance(problem, (SystemExit, typer.Exit)):
        code = problem.exit_code if isinstance(problem, typer.Exit) else problem.code
        sys.stdout.flush()
        # sys.exit() takes any object; Python exits with 0 for None and with 1 for a text
        return code if isinstance(code, int) else int(code is not None)

    if traced(problem):
        return getattr(problem, "exit_code", 1)
    if isinstance(problem, KeyboardInterrupt):
        message = INTERRUPTED
        code = CTRL_C
    elif isinstance(problem, typer.TyperException):
        message = _with_help(problem)
        code = 2
    else:
        message, code = explained(problem)
    complain(message)
    if code == CTRL_C:
        return interrupted(code)
    return code


def traced(problem: BaseException) -> bool:
    """Prints the traceback of a failure where ROPECONV_DEBUG=1 asks for it, and returns whether it
    does.
    """
    if os.environ.get("ROPECONV_DEBUG") != "1":
        return False
    print(printable("".join(traceback.format_exception(problem))), file=sys.stderr, end="")
    return True


def explained(problem: BaseException) -> tuple[str, int]:
    """The sentence on a failure of a command, and its exit code."""
    if isinstance(problem, RopeconvError):
        return str(problem), problem.exit_code
    repair = "" if sentence(problem) else "; set ROPECONV_DEBUG=1 for the traceback, and report it"
    return f"{reason(problem)}{repair}", 1


def _with_help(problem: typer.TyperException) -> str:
    """A usage error with the help of the option or argument that is missing."""
    message = problem.format_message()
    errors = getattr(problem.__cause__, "errors", None)
    if errors is not None:
        # pydantic says "Input should be greater than or equal to 1", or "Value error, 'onnx' is not
        # one of ..."
        typed = errors()[0]["input"]
        message = message.replace("Input should", f"{typed!r} should")
        message = message.replace("Value error, ", "")

    context = getattr(problem, "ctx", None)
    if context is not None and message.startswith("Got unexpected"):
        return f"{message}; `{context.command_path} --help` shows what it accepts"

    help = getattr(getattr(problem, "param", None), "help", None)
    if help and re.fullmatch(r"Missing \w+ '[^']+'\.", message):
        return f"{message[:-1]}: {help}"
    return message


def complain(message: str) -> None:
    """Prints a failure on stderr, on one line of limited length."""
    text = " ".join(message.split())
    if len(text) > LONGEST:  # a value of a hostile input, whose repair stands at the end
        text = f"{text[: LONGEST // 2]} ... {text[-LONGEST // 2 :]}"
    print(f"ropeconv: {printable(text)}", file=sys.stderr)
