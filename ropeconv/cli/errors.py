"""Turns failures into a sentence on stderr and an exit code."""

from __future__ import annotations

import os
import sys
import traceback
from collections.abc import Callable

import typer

from ..errors import RopeconvError
from ..extras import EXTRAS, missing
from .printable import printable
from .process import drop_output, interrupted, reader_gone

CTRL_C = 130
READER_GONE = 141
"""128 and SIGPIPE: the exit code of a program whose output nobody reads any more, such as before `head`."""
LONGEST = 1200
"""Characters of a message."""
INTERRUPTED = "interrupted; nothing took its final name or was recorded: the same command starts again"

# by class name, so that huggingface_hub is not imported to name its errors
ERRORS = {
    "MemoryError": "there is not enough memory for this: close other programs, or take a larger machine",
    "RecursionError": "the input is nested too deeply to be read: it is damaged or hostile, take another",
    "UnicodeEncodeError": "a name has characters that cannot be written here: set PYTHONUTF8=1, or rename it",
    "GatedRepoError": "the repository is gated: accept its terms on the Hub, then `hf auth login` or set HF_TOKEN",
    "RepositoryNotFoundError": "there is no such repository, or it is private: check the id, then `hf auth login`",
    "RevisionNotFoundError": "the repository has no such revision: check what stands behind the @",
    "EntryNotFoundError": "the repository lacks a file that its listing names: try again later",
    "LocalEntryNotFoundError": "a file is not cached and the Hub cannot be reached: go online, or unset HF_HUB_OFFLINE",
    "OfflineModeIsEnabled": "HF_HUB_OFFLINE is set, and this needs the Hub: unset it, or download the checkpoint once",
    "HfHubHTTPError": "the Hub answered with an error: try again later",
    "FileMetadataError": "the Hub tells no commit or hash of a file: check HF_ENDPOINT, or give a local folder",
    "HTTPError": "the Hub cannot be reached: check the connection, or give a local folder",
    "BrokenPipeError": "another process or server closed its connection too early: check it, and run again",
    "ConnectionError": "the Hub cannot be reached: check the connection, or give a local folder",
    "HFValidationError": "that is not a Hub id: write owner/name",
}
STATUSES = {
    401: "the Hub does not know this login: `hf auth login`, or set HF_TOKEN to a valid token",
    403: "this login may not do that on the Hub: take a token that may, or another repository",
    429: "the Hub has had too many requests: wait some minutes and run again",
}
"""What is said of answers with these statuses where the error itself has no sentence of its own."""

LATE = {name.partition(".")[0] for name in EXTRAS}


def run(app: Callable[..., object]) -> int:
    """Runs the app and returns its exit code.

    0 done, 1 a known failure, 2 usage, 3 a check failed, 130 interrupted (143 by SIGTERM), 141 nobody reads the output.
    """
    try:
        result = app(standalone_mode=False)
        sys.stdout.flush()
        if result == CTRL_C:  # typer makes an exit code of it
            return interrupted(_say(INTERRUPTED, CTRL_C))
        return result if isinstance(result, int) else 0
    except BaseException as problem:
        try:
            return _report(problem)
        except BrokenPipeError:
            drop_output()
            return READER_GONE


def _report(problem: BaseException) -> int:
    cause = (
        problem.__context__ if isinstance(problem, SystemExit) else problem
    )  # typer makes an exit code of it as well
    if isinstance(cause, BrokenPipeError):
        if reader_gone():
            raise cause
        problem = cause
    if isinstance(problem, (SystemExit, typer.Exit)):
        code = getattr(problem, "exit_code", getattr(problem, "code", 0))
        return code if isinstance(code, int) else 1
    if os.environ.get("ROPECONV_DEBUG") == "1":
        print(printable("".join(traceback.format_exception(problem))), file=sys.stderr, end="")
        return getattr(problem, "exit_code", 1)
    if isinstance(problem, (KeyboardInterrupt, typer.Abort)):
        return interrupted(_say(INTERRUPTED, CTRL_C))
    if isinstance(problem, RopeconvError):
        code = _say(str(problem), problem.exit_code)
        return interrupted(code) if code == CTRL_C else code
    if hasattr(problem, "format_message"):  # typer's own usage errors; its click is vendored and has no public name
        if not problem.format_message():  # no command is given, and the help was printed
            return 2
        return _say(problem.format_message().replace("Value error, ", ""), 2)
    names = [kind.__name__ for kind in type(problem).__mro__]
    status = getattr(getattr(problem, "response", None), "status_code", None)
    if names[0] == "HfHubHTTPError" and status in STATUSES:
        return _say(STATUSES[status], 1)
    for name in names:
        if name in ERRORS:
            return _say(ERRORS[name], 1)
    if isinstance(problem, ModuleNotFoundError) and (problem.name or "").partition(".")[0] in LATE:
        return _say(str(missing((problem.name or "").partition(".")[0])), 1)
    if isinstance(problem, OSError):
        return _say(
            f"{problem.strerror or problem}: {problem.filename or 'the output'}; check the path and its permissions", 1
        )
    return _say(
        f"unexpected {type(problem).__name__}: {problem}; set ROPECONV_DEBUG=1 for the traceback, and report it", 1
    )


def _say(message: str, code: int) -> int:
    text = " ".join(message.split())
    if len(text) > LONGEST:  # a value of a hostile input, whose repair stands at the end
        text = f"{text[: LONGEST // 2]} ... {text[-LONGEST // 2 :]}"
    print(f"ropeconv: {printable(text)}", file=sys.stderr)
    return code
