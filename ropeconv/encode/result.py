"""EncodeResult, the output of an encoding for every format, and checks of it."""

from __future__ import annotations

from dataclasses import dataclass, replace

from ..errors import UnsupportedBake
from ..rope.log_n import EXACT, QueryScaling
from ..rope.schedule import Schedule
from ..runtimes.rules import GOOD
from ..runtimes.verdict import Verdict
from ..runtimes.versions import VersionRange


@dataclass(frozen=True)
class Considered:
    """An encoding that "auto" looked at: whether it was selected, and the reason."""

    encoding: str
    selected: bool
    reason: str


@dataclass(frozen=True)
class EncodeResult:
    """A schedule as an encoding writes it.

    encoding: its name. verdicts: one per runtime. considered: the encodings that "auto" looked at. notes: sentences for
    the user. log_n_approximation: the query scaling written in place of the schedule's log-n, None where the formula
    itself is written or there is no log-n. deviation: of that approximation from the formula, relative.
    """

    encoding: str
    verdicts: tuple[Verdict, ...]
    considered: tuple[Considered, ...] = ()
    notes: tuple[str, ...] = ()
    log_n_approximation: QueryScaling | None = None
    deviation: float = 0.0

    def status_of(self, runtime: VersionRange) -> str:
        """The status of the verdict of one runtime."""
        return self.verdict_of(runtime).status

    def verdict_of(self, runtime: VersionRange) -> Verdict:
        """The verdict about the last version of a row of the table of runtimes."""
        return next(verdict for verdict in reversed(self.verdicts) if verdict.covers(runtime))

    def exact_count(self) -> int:
        """Number of verdicts with status "exact"."""
        return sum(verdict.status == "exact" for verdict in self.verdicts)

    @property
    def exact_share(self) -> str:
        """For display: in how many runtimes it is exact, of those that have the model and were looked at."""
        known = sum(verdict.status not in ("unsupported", "unknown") for verdict in self.verdicts)
        return f"exact in {self.exact_count()} of {known} runtimes"


def with_deviation(verdict: Verdict, deviation: float) -> Verdict:
    """The verdict on a log-n approximation: "approximate" in place of "exact" and "rounded" where it is not negligible.

    deviation: of the approximation from log-n, relative; up to 1e-3 the verdict stays.
    """
    if verdict.status not in GOOD or deviation <= EXACT:
        return verdict
    reason = "; ".join(filter(None, [f"log-n in steps, up to {deviation:.1%} off", verdict.reason]))
    return replace(verdict, status="approximate", reason=reason)


def refuse_approximate(result: EncodeResult, schedule: Schedule, otherwise: str) -> None:
    """Raises UnsupportedBake for a log-n approximation that is not negligibly near log-n.

    otherwise: the alternative to `--allow-approximate`, for the message.
    """
    if result.deviation > EXACT:
        raise UnsupportedBake(
            f"--log-n {schedule.log_n.kind if schedule.log_n else ''}",
            result.encoding,
            f"it comes within {result.deviation:.1%} of the formula only",
            f"pass --allow-approximate to take that, or {otherwise}",
        )


def refuse_attention_factor(schedule: Schedule, name: str, reason: str = "") -> None:
    """Raises UnsupportedBake for an attention factor in a family or architecture that can have none.

    name: of that. reason: why; by default its norms after the rotation.
    """
    if schedule.attention_factor != 1:
        raise UnsupportedBake(
            f"attention_factor {schedule.attention_factor:g}",
            name,
            reason or "it normalises queries and keys after the rotation, which cancels any attention factor",
            "pass --attention-factor 1",
        )
