"""The failures that a user can meet, under one root. Each message is one sentence that carries its own repair."""

from __future__ import annotations

from .rope.errors import RecipeError, RopeconvError

__all__ = ["BadSource", "Disagreement", "Interrupted", "RecipeError", "RopeconvError", "UnsupportedBake", "UsageError"]


class UsageError(RopeconvError):
    """The options contradict each other, or name something that does not exist. Exit code 2."""

    exit_code = 2


class BadSource(RopeconvError):
    """The checkpoint is damaged, hostile, incomplete, or not a checkpoint. Exit code 1."""


class UnsupportedBake(RopeconvError):
    """A target cannot express what was asked: names the knob, the target and the alternatives. Exit code 1."""

    def __init__(self, knob: str, target: str, reason: str, alternatives: str) -> None:
        super().__init__(f"{knob} cannot be baked for {target}: {reason}; {alternatives}")
        self.reason, self.alternatives = reason, alternatives


class Disagreement(RopeconvError):
    """A check ran and the runtime computes something else than the schedule. Exit code 3."""

    exit_code = 3


class Interrupted(RopeconvError):
    """A run was stopped with Ctrl-C. The message says what is left, and how to go on. Exit code 130."""

    exit_code = 130
