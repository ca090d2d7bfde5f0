"""What choosing an encoding yields, for every kind of output."""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from typing import Any

from ..errors import UnsupportedBake
from ..families import Family
from ..rope.log_n import EXACT, Staircase
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
    """A chosen encoding: its name, a verdict per runtime, and what else was considered.

    notes: what to tell people. steps: what stands for the schedule's log-n, and deviation: how far that is from the
    formula.
    """

    encoding: str
    verdicts: tuple[Verdict, ...]
    considered: tuple[Considered, ...] = ()
    notes: tuple[str, ...] = ()
    steps: Staircase | None = None
    deviation: float = 0.0

    def steps_to_dict(self) -> dict[str, Any] | None:
        """The steps and their deviation, JSON-ready."""
        return None if self.steps is None else asdict(self.steps) | {"deviation": self.deviation}

    def word(self, runtime: Runtime) -> str:
        """The verdict word of one runtime."""
        return next(verdict.word for verdict in self.verdicts if verdict.runtime == runtime.key)

    def reach(self) -> int:
        """In how many runtimes it is exact."""
        return sum(verdict.word == "exact" for verdict in self.verdicts)


def worded(verdict: Verdict, deviation: float) -> Verdict:
    """A verdict on log-n in steps: approximate where it would be exact but for their distance from the formula."""
    if verdict.word not in ("exact", "rounded") or deviation <= EXACT:
        return verdict
    because = "; ".join(filter(None, [f"log-n in steps, up to {deviation:.1%} off", verdict.because]))
    return replace(verdict, word="approximate", because=because)


def refuse_approximate(choice: Choice, schedule: Schedule, otherwise: str) -> None:
    """Raises UnsupportedBake for a choice that is only near the schedule."""
    if choice.deviation > EXACT:
        raise UnsupportedBake(
            f"--log-n {schedule.log_n.kind if schedule.log_n else ''}",
            choice.encoding,
            f"it comes within {choice.deviation:.1%} of the formula only",
            f"pass --allow-approximate to take that, or {otherwise}",
        )


def refuse_amplitude(schedule: Schedule, family: Family) -> None:
    """Raises UnsupportedBake for an amplitude in a family that normalises behind the rotation."""
    if schedule.attention_factor != 1:
        raise UnsupportedBake(
            f"attention_factor {schedule.attention_factor:g}",
            family.name,
            "it normalises queries and keys after the rotation, which cancels any amplitude",
            "pass --attention-factor 1",
        )
