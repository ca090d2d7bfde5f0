"""The failures that a user can meet, all subclasses of RopeconvError. Each message is a sentence with the repair."""

from __future__ import annotations

from .environment import EXTRAS, missing
from .rope.errors import ImpossibleSize, RecipeError, RopeconvError, counted, shown

__all__ = [
    "TOO_MANY",
    "BadSource",
    "DamagedPackage",
    "Disagreement",
    "ImpossibleSize",
    "Interrupted",
    "RecipeError",
    "RopeconvError",
    "UnknownModelType",
    "UnsupportedBake",
    "UsageError",
    "counted",
    "shown",
]


TOO_MANY = "ropeconv reads no more, so report it if this is of a real model"
"""The repair of a file that is beyond a limit of ropeconv and may be in order."""


class UsageError(RopeconvError):
    """The options contradict each other, or name something that does not exist. Exit code 2."""

    exit_code = 2


class BadSource(RopeconvError):
    """The checkpoint is damaged, hostile, incomplete, or not a checkpoint. Exit code 1."""


class UnknownModelType(BadSource):
    """A config whose `model_type` no family has, and that is not refused for a reason either. Exit code 1."""


class DamagedPackage(RopeconvError):
    """A data file of ropeconv itself does not fit its schema. The message has the file and the field. Exit code 1."""


class UnsupportedBake(RopeconvError):
    """A target cannot express a part of the recipe. Exit code 1.

    The message is "KNOB cannot be baked for TARGET: REASON; ALTERNATIVES".
    """

    def __init__(self, knob: str, target: str, reason: str, alternatives: str) -> None:
        super().__init__(f"{knob} cannot be baked for {target}: {reason}; {alternatives}")
        self.reason, self.alternatives = reason, alternatives


class Disagreement(RopeconvError):
    """A check ran, and the runtime computes something else than the schedule. Exit code 3."""

    exit_code = 3


class NotFinite(RopeconvError):
    """A model gave NaN or infinite logits. Exit code 1."""


class Interrupted(RopeconvError):
    """A run was stopped with Ctrl-C. The message says what remains on disk, and how to go on. Exit code 130."""

    exit_code = 130


class Stopped(KeyboardInterrupt):
    """A signal asks a run to end.

    CPython remembers a plain KeyboardInterrupt that leaves an `exec` of a string, as libraries use them while they are
    imported, and `python -m` then kills itself with SIGINT in place of its exit code, also where it was caught:
    https://github.com/python/cpython/blob/3.11/Python/pythonrun.c (run_eval_code_obj). It looks for that class alone.
    """


# by class name, so that huggingface_hub is not imported to name its errors
ERRORS = {
    "MemoryError": "there is not enough memory for this: close other programs, or take a larger machine",
    "RecursionError": "the input is nested too deeply to be read: it is damaged or hostile, take another",
    "UnicodeEncodeError": "a name has characters that cannot be written here: set PYTHONUTF8=1, or rename it",
    "GatedRepoError": "the repository is gated: accept its terms on the Hub, then `hf auth login` or set HF_TOKEN",
    "RepositoryNotFoundError": "there is no such repository, or it is private: check the id, then `hf auth login`",
    "RevisionNotFoundError": "the repository has no such revision: check what stands behind the @",
    "EntryNotFoundError": "the repository lacks a file that its listing names: try again later",
    "LocalEntryNotFoundError": "cannot reach the Hub, and a file is not cached; go online, or unset HF_HUB_OFFLINE",
    "OfflineModeIsEnabled": "HF_HUB_OFFLINE is set, and this needs the Hub: unset it, or download the checkpoint once",
    "HfHubHTTPError": "the Hub answered with an error: try again later",
    "FileMetadataError": "the Hub tells no commit or hash of a file: check HF_ENDPOINT, or give a local folder",
    "HTTPError": "cannot reach the Hub; check your connection or HF_ENDPOINT, or give a local folder",
    "BrokenPipeError": "another process or server closed its connection too early: check it, and run again",
    "ConnectionError": "cannot reach the Hub; check your connection or HF_ENDPOINT, or give a local folder",
    "UncompletedJobError": "the time limit of the job on Slurm ended: give [executor] a longer timeout",
    "HFValidationError": "that is not a Hub id: write owner/name",
}
STATUSES = {
    401: "the Hub does not know this login: `hf auth login`, or set HF_TOKEN to a valid token",
    403: "this login may not do that on the Hub: take a token that may, or another repository",
    429: "the Hub has had too many requests: wait some minutes and run again",
}
"""What is said of answers with these statuses where the error itself has no sentence of its own."""

LATE = {name.partition(".")[0] for name in EXTRAS}


def sentence(problem: BaseException) -> str:
    """What a failure means for the user, with the repair; empty for one that nobody expected."""
    if isinstance(problem, RopeconvError):
        return str(problem)
    names = [kind.__name__ for kind in type(problem).__mro__]
    status = getattr(getattr(problem, "response", None), "status_code", None)
    if names[0] == "HfHubHTTPError" and status in STATUSES:
        return STATUSES[status]
    for name in names:
        if name in ERRORS:
            return ERRORS[name]
    if isinstance(problem, ModuleNotFoundError) and (problem.name or "").partition(".")[0] in LATE:
        return str(missing((problem.name or "").partition(".")[0]))
    if isinstance(problem, OSError):
        where = problem.filename or "the output"
        return f"{problem.strerror or problem}: {where}; check the path and its permissions"
    return ""


def reason(problem: BaseException) -> str:
    """The sentence on a failure, also on one that nobody expected."""
    return sentence(problem) or f"unexpected {type(problem).__name__}: {problem}"
