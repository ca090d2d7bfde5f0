"""What choosing an encoding yields, for every kind of output."""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from typing import Any

from ..errors import UnsupportedBake
from ..families import Family
from ..rope.log_n import EXACT, QueryScaling
from ..rope.schedule import Schedule
from ..runtimes import Runtime
from ..runtimes.verdict import Verdict


@dataclass(frozen=True)
class Considered:
    """An encoding that could have been used: whether it was, and why or why not."""

    encoding: str
    selected: bool
    reason: str

    def to_dict(self) -> dict[str, Any]:
        """JSON-ready."""
        return {"encoding": self.encoding, "selected": self.selected, "reason": self.reason}


@dataclass(frozen=True)
class EncodeResult:
    """A schedule as an encoding writes it: the encoding's name, a verdict per runtime, and what else was considered.

    notes: what to tell people. log_n_approximation: the scaling of queries that stands for the schedule's log-n, and
    deviation: how far it is from the formula.
    """

    encoding: str
    verdicts: tuple[Verdict, ...]
    considered: tuple[Considered, ...] = ()
    notes: tuple[str, ...] = ()
    log_n_approximation: QueryScaling | None = None
    deviation: float = 0.0

    def log_n_approximation_to_dict(self) -> dict[str, Any] | None:
        """The scaling that stands for log-n, with its deviation, JSON-ready."""
        found = self.log_n_approximation
        return None if found is None else asdict(found) | {"deviation": self.deviation}

    def status_of(self, runtime: Runtime) -> str:
        """The status of one runtime's verdict."""
        return next(verdict.status for verdict in self.verdicts if verdict.runtime == runtime.key)

    def exact_count(self) -> int:
        """In how many runtimes it is exact."""
        return sum(verdict.status == "exact" for verdict in self.verdicts)


def with_deviation(verdict: Verdict, deviation: float) -> Verdict:
    """A verdict on log-n in steps: approximate where it would be exact but for their distance from the formula."""
    if verdict.status not in ("exact", "rounded") or deviation <= EXACT:
        return verdict
    reason = "; ".join(filter(None, [f"log-n in steps, up to {deviation:.1%} off", verdict.reason]))
    return replace(verdict, status="approximate", reason=reason)


def refuse_approximate(result: EncodeResult, schedule: Schedule, otherwise: str) -> None:
    """Raises UnsupportedBake for a result that is only near the schedule."""
    if result.deviation > EXACT:
        raise UnsupportedBake(
            f"--log-n {schedule.log_n.kind if schedule.log_n else ''}",
            result.encoding,
            f"it comes within {result.deviation:.1%} of the formula only",
            f"pass --allow-approximate to take that, or {otherwise}",
        )


def refuse_attention_factor(schedule: Schedule, family: Family) -> None:
    """Raises UnsupportedBake for an attention factor in a family that normalises behind the rotation."""
    if schedule.attention_factor != 1:
        raise UnsupportedBake(
            f"attention_factor {schedule.attention_factor:g}",
            family.name,
            "it normalises queries and keys after the rotation, which cancels any attention factor",
            "pass --attention-factor 1",
        )
