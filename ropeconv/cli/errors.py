"""Turns failures into a sentence on stderr and an exit code."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable

import typer

from ..errors import RopeconvError

CTRL_C = 130
LONGEST = 1200
"""Characters of a message."""
INTERRUPTED = "interrupted; nothing took its final name or was recorded: the same command starts again"

# by class name, so that huggingface_hub is not imported to name its errors
HUB_ERRORS = {
    "GatedRepoError": "the repository is gated: accept its terms on the Hub, then `hf auth login` or set HF_TOKEN",
    "RepositoryNotFoundError": "there is no such repository, or it is private: check the id, then `hf auth login`",
    "RevisionNotFoundError": "the repository has no such revision: check what stands behind the @",
    "EntryNotFoundError": "the repository lacks a file that its listing names: try again later",
    "LocalEntryNotFoundError": "a file is not cached and the Hub cannot be reached: go online, or unset HF_HUB_OFFLINE",
    "OfflineModeIsEnabled": "HF_HUB_OFFLINE is set, and this needs the Hub: unset it, or download the checkpoint once",
    "HfHubHTTPError": "the Hub answered with an error: try again later",
    "HTTPError": "the Hub cannot be reached: check the connection, or give a local folder",
    "ConnectionError": "the Hub cannot be reached: check the connection, or give a local folder",
    "HFValidationError": "that is not a Hub id: write owner/name",
}


def run(app: Callable[..., object]) -> int:
    """Runs the app and returns its exit code: 0 done, 1 a known failure, 2 usage, 3 a check failed, 130 interrupted."""
    try:
        result = app(standalone_mode=False)
        if result == CTRL_C:  # typer makes an exit code of it
            return _say(INTERRUPTED, CTRL_C)
        return result if isinstance(result, int) else 0
    except BaseException as problem:
        if os.environ.get("ROPECONV_DEBUG") == "1":
            raise
        return _report(problem)


def _report(problem: BaseException) -> int:
    if isinstance(problem, (SystemExit, typer.Exit)):
        code = getattr(problem, "exit_code", getattr(problem, "code", 0))
        return code if isinstance(code, int) else 1
    if isinstance(problem, (KeyboardInterrupt, typer.Abort)):
        return _say(INTERRUPTED, CTRL_C)
    if isinstance(problem, RopeconvError):
        return _say(str(problem), problem.exit_code)
    if hasattr(problem, "format_message"):  # typer's own usage errors; its click is vendored and has no public name
        return _say(problem.format_message().replace("Value error, ", ""), 2)
    for kind in type(problem).__mro__:
        if kind.__name__ in HUB_ERRORS:
            return _say(HUB_ERRORS[kind.__name__], 1)
    if isinstance(problem, OSError):
        return _say(
            f"{problem.strerror or problem}: {problem.filename or 'the file'}; check the path and its permissions", 1
        )
    return _say(
        f"unexpected {type(problem).__name__}: {problem}; set ROPECONV_DEBUG=1 for the traceback, and report it", 1
    )


def _say(message: str, code: int) -> int:
    text = " ".join(message.split())
    if len(text) > LONGEST:  # a value of a hostile input, whose repair stands at the end
        text = f"{text[: LONGEST // 2]} ... {text[-LONGEST // 2 :]}"
    print(f"ropeconv: {text}", file=sys.stderr)
    return code
