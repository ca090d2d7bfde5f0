"""The failures that a user can meet, all subclasses of RopeconvError. Each message is a sentence with the repair."""

from __future__ import annotations

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
