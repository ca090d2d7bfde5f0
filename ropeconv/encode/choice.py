"""What choosing an encoding yields, for every kind of output."""

from __future__ import annotations

from dataclasses import dataclass

from ..runtimes import Runtime
from ..runtimes.verdict import Verdict


@dataclass(frozen=True)
class Choice:
    """A chosen encoding: its name and a verdict per runtime."""

    encoding: str
    verdicts: tuple[Verdict, ...]

    def word(self, runtime: Runtime) -> str:
        """The verdict word of one runtime."""
        return next(verdict.word for verdict in self.verdicts if verdict.runtime == runtime.key)
