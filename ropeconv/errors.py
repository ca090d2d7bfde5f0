"""The failures a user can meet. Each message is one sentence that carries its own repair."""

from __future__ import annotations


class RopeconvError(Exception):
    """A known failure: printed as a sentence, without a traceback. Exit code 1."""

    exit_code = 1


class UsageError(RopeconvError):
    """The command line or the recipe asks for something that cannot be asked. Exit code 2."""

    exit_code = 2


class BadSource(RopeconvError):
    """The checkpoint is damaged, hostile, incomplete, or not a checkpoint."""


class UnsupportedBake(RopeconvError):
    """A target cannot express what was asked: names the knob, the target and the alternatives."""

    def __init__(self, knob: str, target: str, because: str, alternatives: str) -> None:
        super().__init__(f"{knob} cannot be baked for {target}: {because}; {alternatives}")
        self.because, self.alternatives = because, alternatives


class Disagreement(RopeconvError):
    """A check ran and the runtime computes something else than the schedule. Exit code 3."""

    exit_code = 3
