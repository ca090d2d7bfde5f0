"""What choosing an encoding yields, for every kind of output."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from ..errors import UnsupportedBake
from ..families import Family
from ..rope.schedule import Schedule
from ..runtimes import Runtime
from ..runtimes.verdict import Verdict


@dataclass(frozen=True)
class Considered:
    """An encoding that could have been used: whether it was, and why or why not."""

    encoding: str
    taken: bool
    because: str

    def to_dict(self) -> dict[str, Any]:
        """JSON-ready."""
        return {"encoding": self.encoding, "taken": self.taken, "because": self.because}


@dataclass(frozen=True)
class Choice:
    """A chosen encoding: its name, a verdict per runtime, and what else was considered."""

    encoding: str
    verdicts: tuple[Verdict, ...]
    considered: tuple[Considered, ...] = ()

    def word(self, runtime: Runtime) -> str:
        """The verdict word of one runtime."""
        return next(verdict.word for verdict in self.verdicts if verdict.runtime == runtime.key)

    def reach(self) -> int:
        """In how many runtimes it is exact."""
        return sum(verdict.word == "exact" for verdict in self.verdicts)


def refuse_amplitude(schedule: Schedule, family: Family) -> None:
    """Raises UnsupportedBake for an amplitude in a family that normalises behind the rotation."""
    if schedule.attention_factor != 1:
        raise UnsupportedBake(
            f"attention_factor {schedule.attention_factor:g}",
            family.name,
            "it normalises queries and keys after the rotation, which cancels any amplitude",
            "pass --attention-factor 1",
        )
