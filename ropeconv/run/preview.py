"""What a plan would do: every output with its bytes, what is published, and how long it takes as far as is known."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from statistics import median
from typing import Any

from ..errors import RopeconvError, UsageError
from ..evaluate.estimate import duration
from ..failures import reason
from ..formats.copying import human
from .journal import RunLine
from .plan_file import RunPlan
from .sources import Named
from .tasks.evaluation import evaluation_of
from .unit import Job, Unit


@dataclass(frozen=True)
class Planned:
    """A job before it is run.

    job: what is left of it. bytes: of its output, 0 where it has none or that is not known. encoding: of it. problem:
    why it cannot be planned, or empty. publishes: the repository, or empty.
    """

    job: Job
    bytes: int = 0
    encoding: str = ""
    problem: str = ""
    publishes: str = ""

    def to_dict(self) -> dict[str, Any]:
        """JSON-ready data."""
        first = self.job.units[0]
        return {
            "source": first.source, "recipes": [one.name for one in first.recipes],
            "target": first.target and first.target.name, "tasks": [unit.task for unit in self.job.units],
            "out": first.out, "bytes": self.bytes, "encoding": self.encoding or None, "push": self.publishes or None,
            "problem": self.problem or None,
        }  # fmt: skip


def planned(job: Job, problem: str = "") -> Planned:
    """A job with the plan of its output. Nothing is written. problem: why its source cannot be had, or empty."""
    last, first = job.units[-1], job.units[0]
    publishes = last.settings["to"] if last.task == "push" else ""
    if problem or first.target is None:
        return Planned(job, problem=problem, publishes=publishes)
    try:
        plan = first.plan()
    except Exception as failure:
        return Planned(job, problem=reason(failure), publishes=publishes)
    return Planned(job, plan.bytes, plan.result.encoding, publishes=publishes)


def check_bytes(plan: RunPlan, found: Sequence[Planned]) -> None:
    """Raises UsageError where outputs have more bytes than the plan allows. found: all jobs."""
    total, most = kept_bytes(found), plan.most_bytes
    if most is not None and total > most:
        raise UsageError(
            f"the outputs have {human(total)}, and limits.bytes is {plan.limits.bytes}; raise it, or leave apply out "
            "of tasks to publish without keeping them"
        )


def kept_bytes(found: Sequence[Planned]) -> int:
    """The bytes of outputs that stay on this disk."""
    return sum(one.bytes for one in found if one.job.units[0].task == "apply")


@dataclass(frozen=True)
class Costs:
    """What units of each task take.

    seconds: the median of a unit in the journal, by task. timed: the name of the source of which short sequences were
    timed for eval, or empty.
    """

    seconds: dict[str, float]
    timed: str = ""

    @classmethod
    def of(cls, lines: Sequence[RunLine]) -> Costs:
        """The costs of units that have succeeded."""
        tasks = {line.task for line in lines}
        done = {task: [line.seconds for line in lines if line.task == task and not line.failed] for task in tasks}
        return cls({task: median(seconds) for task, seconds in done.items() if seconds})

    def with_eval(self, units: Sequence[Unit]) -> Costs:
        """The same with the time of eval, where the journal has none: the first model that loads is timed here."""
        for unit in units:
            if unit.task == "eval" and "eval" not in self.seconds:
                with suppress(RopeconvError), evaluation_of(unit) as found:
                    return Costs({**self.seconds, "eval": found.estimate().seconds}, unit.name)
        return self

    def sentences(self, units: Sequence[Unit], at_once: int) -> list[str]:
        """How long units take, and of which that is not known. at_once: how many run at a time, 0 where unknown."""
        counts: dict[str, int] = {}
        for unit in units:
            counts[unit.task] = counts.get(unit.task, 0) + 1
        known = {task: count for task, count in counts.items() if task in self.seconds}
        total = sum(self.seconds[task] * count for task, count in known.items())
        found = []
        if known:
            each = ", ".join(f"{count:,} {task} of {self.seconds[task]:,.1f} s" for task, count in known.items())
            spread = f", {duration(total / at_once)} with {at_once} at a time" if at_once > 1 else ""
            how = f" (eval by short sequences of {self.timed})" if self.timed else ""
            found.append(f"By the median of what has run{how}: {each}; {duration(total)} in all{spread}.")
        unknown = [f"{count:,} {task}" for task, count in counts.items() if task not in known]
        if unknown:
            found.append(f"Not known before the first has run: how long {' and '.join(unknown)} take.")
        return found


def problems_of(sources: Sequence[Named]) -> dict[str, str]:
    """Why sources cannot be had, by reference."""
    return {one.reference: one.problem for one in sources if one.problem}
