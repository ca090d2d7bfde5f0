"""Errors for users, all subclasses of RopeconvError, and the messages about errors of libraries.

Each message says what is wrong and how to fix it. `sentence` returns that of any error.
"""

from .environment import EXTRAS, missing
from .rope.errors import RopeconvError

TOO_MANY = "ropeconv reads no more, so report it if this is of a real model"
"""The advice for a file that exceeds a limit of ropeconv and may be intact."""


class UsageError(RopeconvError):
    """The options contradict each other, or name something that does not exist. Exit code 2."""

    exit_code = 2


class BadSource(RopeconvError):
    """The checkpoint is damaged, hostile, incomplete, or not a checkpoint. Exit code 1."""


class UnknownModelType(BadSource):
    """A config with an unknown `model_type`. Exit code 1."""


class DamagedPackage(RopeconvError):
    """A data file of ropeconv does not match its schema. The message has the file and the field.
    Exit code 1.
    """


class UnsupportedBake(RopeconvError):
    """A target cannot express a part of the recipe. Exit code 1.

    The message is "KNOB cannot be baked for TARGET: REASON; ALTERNATIVES".
    """

    def __init__(self, knob: str, target: str, reason: str, alternatives: str) -> None:
        super().__init__(f"{knob} cannot be baked for {target}: {reason}; {alternatives}")
        self.reason = reason
        self.alternatives = alternatives


class Disagreement(RopeconvError):
    """A check ran, and the runtime does not compute the schedule. Exit code 3."""

    exit_code = 3


class NotFinite(RopeconvError):
    """A model gave NaN or infinite logits. Exit code 1."""


class Interruption(RopeconvError):
    """A run was stopped with Ctrl-C. The message says what remains on disk, and how to continue.
    Exit code 130.
    """

    exit_code = 130


class StopRequest(KeyboardInterrupt):
    """A signal asks a run to end.

    If a plain KeyboardInterrupt leaves an `exec` of a string, as in imports of libraries, CPython
    remembers it, and `python -m` kills itself with SIGINT in place of its exit code, even if it was
    caught. It tests for exactly that class:
    https://github.com/python/cpython/blob/3.11/Python/pythonrun.c (run_eval_code_obj).
    """


# by class name, so that huggingface_hub is not imported to name its errors. The first class that is
# here counts, of the error's own and then those above it
ERRORS = {
    "MemoryError": "there is not enough memory: close other programs, or use a larger machine",
    "RecursionError": "the input is nested too deeply: it is damaged or hostile, use another file",
    "UnicodeEncodeError": (
        "a name has characters that this terminal cannot print: set PYTHONUTF8=1, or rename it"
    ),
    "GatedRepoError": (
        "the repository is gated: accept its terms on the Hub, then `hf auth login` or set HF_TOKEN"
    ),
    "RepositoryNotFoundError": (
        "the repository does not exist, or it is private: check the id, then `hf auth login`"
    ),
    "RevisionNotFoundError": (
        "the repository does not have this revision: check the name after the @"
    ),
    "EntryNotFoundError": (
        "the repository has no such file, although its list names it: try again later"
    ),
    "LocalEntryNotFoundError": (
        "cannot reach the Hub, and a file is not cached; go online, or unset HF_HUB_OFFLINE"
    ),
    "OfflineModeIsEnabled": (
        "HF_HUB_OFFLINE is set, and this needs the Hub: unset it, or download the checkpoint once"
    ),
    "HfHubHTTPError": "the Hub answered with an error: try again later",
    "FileMetadataError": (
        "the Hub gave no commit or hash for a file: check HF_ENDPOINT, or give a local folder"
    ),
    "HTTPError": (
        "cannot reach the Hub; check your connection or HF_ENDPOINT, or give a local folder"
    ),
    "BrokenPipeError": (
        "another process or server closed its connection too early: check it, and run again"
    ),
    "ConnectionError": (
        "cannot reach the Hub; check your connection or HF_ENDPOINT, or give a local folder"
    ),
    "UncompletedJobError": (
        "the time limit of the job on Slurm ended: give [executor] a longer timeout"
    ),
    "HFValidationError": "this is not a Hub id: write owner/name",
}
STATUSES = {
    401: "the Hub does not know this login: `hf auth login`, or set HF_TOKEN to a valid token",
    403: (
        "this login has no permission for that on the Hub: use another token, or another repository"
    ),
    429: "the Hub received too many requests: wait some minutes and run again",
}
"""Messages for answers with these statuses, if the error has no message in `ERRORS`."""

LATE = {name.partition(".")[0] for name in EXTRAS}
"""Packages that may be missing without a mistake of the user."""


def sentence(problem: BaseException) -> str:
    """Return the message about a failure, with its fix; empty for an unexpected one."""
    if isinstance(problem, RopeconvError):
        return str(problem)

    # an answer of the Hub, by its status: 401, 429, ...
    response = getattr(problem, "response", None)
    status = getattr(response, "status_code", None)
    if type(problem).__name__ == "HfHubHTTPError" and status in STATUSES:
        return STATUSES[status]

    # Exceptions of libraries are known by the names of their classes: importing huggingface_hub or
    # torch for `except` would slow down every command. The most derived class says the most.
    for kind in type(problem).__mro__:
        if kind.__name__ in ERRORS:
            return ERRORS[kind.__name__]

    if isinstance(problem, ModuleNotFoundError):
        package, _, _ = (problem.name or "").partition(".")
        if package in LATE:
            return str(missing(package))
    if isinstance(problem, OSError):
        reason = problem.strerror or problem
        place = problem.filename or "the output"
        return f"{reason}: {place}; check the path, its permissions and the free space"
    return ""


def reason(problem: BaseException) -> str:
    """Return the message about a failure, also about an unexpected one."""
    return sentence(problem) or f"unexpected {type(problem).__name__}: {problem}"
