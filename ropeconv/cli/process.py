"""The process of the command line: its standard streams, its signals and its exit code.

`prepare` is called first and `run` then. `run` prints each failure as one sentence and returns the
exit code; all functions below it have a part in that.
"""

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

from ..environment import redact_logs
from ..errors import StopRequest, reason, sentence
from ..rope.errors import RopeconvError
from .screen import printable

CTRL_C = 130
"""128 and SIGINT: the exit code of a program that Ctrl-C ends."""
READER_GONE = 141
"""128 and SIGPIPE: the exit code of a program whose reader has gone, such as before `head`."""
LONGEST = 1200
"""Characters of a message."""
INTERRUPTED = (
    "interrupted; nothing took its final name or was recorded: the same command starts again"
)

_received: list[int] = []
"""The signals, apart from SIGINT, that asked this process to end."""


def prepare() -> None:
    """Make standard streams safe to write to, and let SIGTERM and SIGHUP end a run as Ctrl-C does.

    A stream that is closed is opened on /dev/null, so that no file of the run takes its number.
    Characters that an encoding lacks are written as escapes, and secrets are left out of logs.
    """
    redact_logs()
    # `ropeconv apply ... 2>&-` starts without file 2. The next file that is opened would get that
    # number, and messages would be written into it. os.open takes the lowest free number too.
    for number in (0, 1, 2):
        try:
            os.fstat(number)
        except OSError:
            os.set_inheritable(os.open(os.devnull, os.O_RDWR), True)

    # Python sets them to None where the file was closed when it started
    sys.stdin = sys.stdin or os.fdopen(0, encoding="utf-8", closefd=False)
    sys.stdout = sys.stdout or os.fdopen(1, "w", encoding="utf-8", closefd=False)
    sys.stderr = sys.stderr or os.fdopen(2, "w", encoding="utf-8", closefd=False)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")

    # a signal that the caller ignores, as nohup does with SIGHUP, stays ignored
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, _stop)
    for ending in (signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(ending) is signal.SIG_DFL:
            signal.signal(ending, _stop)


def _stop(number: int, frame: FrameType | None) -> None:
    """Handle a signal that asks the run to end."""
    if number != signal.SIGINT:
        _received.append(number)
        signal.signal(number, signal.SIG_DFL)  # a second one ends it at once
    raise StopRequest


def run(app: Callable[..., object]) -> int:
    """Run the app and return its exit code.

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
        except BrokenPipeError:  # `ropeconv inspect ... | head` has read enough
            _drop_output()
            return READER_GONE


def _report(problem: BaseException) -> int:
    """Print why a command ended, if it failed, and return the exit code of the process.

    Args:
        problem: The exception that the command raised.

    Raises:
        BrokenPipeError: The program that reads the output, such as `head`, has ended. The caller
            returns the exit code for this case.
    """
    # `ropeconv inspect ... | head`: nobody reads a message
    if isinstance(problem, BrokenPipeError) and reader_gone():
        raise problem

    # not a failure: the command chose its exit code
    if isinstance(problem, typer.Exit):
        sys.stdout.flush()
        return problem.exit_code
    if isinstance(problem, SystemExit):
        sys.stdout.flush()
        return _code_of_exit(problem.code)

    # with ROPECONV_DEBUG=1, a traceback in place of a message
    was_printed = print_traceback(problem)
    if was_printed:
        return getattr(problem, "exit_code", 1)

    if isinstance(problem, KeyboardInterrupt):
        message = INTERRUPTED
        code = CTRL_C
    elif isinstance(problem, typer.TyperException):
        message = _with_help(problem)
        code = 2
    else:
        message, code = explain_failure(problem)
    complain(message)

    # `_received` has the signals other than Ctrl-C that asked the process to end, such as SIGTERM.
    # Shells expect 128 plus the number of the signal.
    if code == CTRL_C and _received:
        first_signal = _received[0]
        return 128 + first_signal
    return code


def _code_of_exit(code: object) -> int:
    """Return the exit code of `sys.exit(code)`, which takes any object."""
    if isinstance(code, int):
        return code
    # Python exits with 0 for None and with 1 for a text
    return 0 if code is None else 1


def reader_gone() -> bool:
    """Whether the reader of stdout or stderr has gone. False for streams that are not files of the
    system.
    """
    watch = select.poll()
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError, ValueError):
            watch.register(stream.fileno(), 0)
    return any(event & (select.POLLERR | select.POLLHUP) for _, event in watch.poll(0))


def _drop_output() -> None:
    """Send what is still to be written to /dev/null, after the reader of a pipe has gone."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except OSError:
            os.dup2(nowhere, stream.fileno())
    os.close(nowhere)


def print_traceback(problem: BaseException) -> bool:
    """Print the traceback of a failure if ROPECONV_DEBUG=1 asks for it, and return whether it
    does.
    """
    if os.environ.get("ROPECONV_DEBUG") != "1":
        return False
    text = "".join(traceback.format_exception(problem))
    print(printable(text), file=sys.stderr, end="")
    return True


def explain_failure(problem: BaseException) -> tuple[str, int]:
    """Return the sentence on a failure of a command, and its exit code."""
    if isinstance(problem, RopeconvError):
        return str(problem), problem.exit_code
    message = reason(problem)
    if not sentence(problem):  # it is unexpected
        message += "; set ROPECONV_DEBUG=1 for the traceback, and report it"
    return message, 1


def _with_help(problem: typer.TyperException) -> str:
    """Return the message of a usage error of Typer, in clearer words.

    A wrong value is named. A superfluous argument gets the command that shows the help. A missing
    option or argument gets its help.
    """
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

    parameter = getattr(problem, "param", None)
    help = getattr(parameter, "help", None)
    if help and re.fullmatch(r"Missing \w+ '[^']+'\.", message):
        return f"{message[:-1]}: {help}"
    return message


def complain(message: str) -> None:
    """Print a failure on stderr, on one line of limited length."""
    text = " ".join(message.split())
    if len(text) > LONGEST:  # a value of a hostile input, whose repair stands at the end
        half = LONGEST // 2
        text = f"{text[:half]} ... {text[-half:]}"
    print(f"ropeconv: {printable(text)}", file=sys.stderr)
