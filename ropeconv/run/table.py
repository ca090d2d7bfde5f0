"""What became of a plan: a line for every output and evaluation."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from .jobs import CHAIN
from .journal import RunJournal
from .plan_file import RunPlan
from .running import states
from .sources import Named
from .unit import Job

TASKS = (*CHAIN, "eval")


@dataclass(frozen=True)
class RunRow:
    """An output, or an evaluation.

    source: its name. recipe, target: of an output; empty for an evaluation. states: by task, "done", "failed" or "not
    run". seconds: of those that are done, by task. reason: why the first failed one did, or empty. results: of tasks.
    """

    source: str
    recipe: str
    target: str
    states: dict[str, str]
    seconds: dict[str, str]
    reason: str
    results: dict[str, dict[str, Any]]

    def to_dict(self) -> dict[str, Any]:
        """JSON-ready data."""
        return {
            "source": self.source, "recipe": self.recipe or None, "target": self.target or None,
            "tasks": self.states, "reason": self.reason or None, "results": self.results,
        }  # fmt: skip


@dataclass(frozen=True)
class RunTable:
    """A line for every job. columns: tasks of the plan. rows: in the order of the plan."""

    columns: tuple[str, ...]
    rows: tuple[RunRow, ...]

    @property
    def counts(self) -> Counter[str]:
        """How many units are done, failed and not run."""
        return Counter(state for row in self.rows for state in row.states.values())

    @property
    def reasons(self) -> dict[str, list[str]]:
        """Lines by the reason why they failed, or were not run."""
        found: dict[str, list[str]] = {}
        for row in self.rows:
            if row.reason:
                name = " ".join(filter(None, (row.source, row.recipe, row.target)))
                found.setdefault(row.reason, []).append(name)
        return found

    def cells(self, row: RunRow) -> tuple[str, ...]:
        """The cells of a line: source, recipe, target, and a word or the seconds for each task."""
        words = [row.seconds.get(task) or row.states.get(task, "") for task in self.columns]
        return (row.source, row.recipe or ("all rows" if "eval" in row.states else ""), row.target, *words)

    def to_dict(self) -> dict[str, Any]:
        """JSON-ready data."""
        counts = self.counts
        numbers = {name.replace(" ", "_"): counts[name] for name in ("done", "failed", "not run")}
        return {**numbers, "rows": [row.to_dict() for row in self.rows]}


def table_of(plan: RunPlan, jobs: Sequence[Job], sources: Sequence[Named], journal: RunJournal) -> RunTable:
    """The table of a run. plan, jobs, sources: as they were made. journal: of the run."""
    problems = {one.reference: one.problem for one in sources}
    rows = []
    for job in jobs:
        first = job.units[0]
        found = states(job, journal, problems.get(first.source, ""))
        lines = {unit.task: journal.lines[unit.key] for unit in job.units if unit.key in journal.lines}
        reason = next((words for state, words in found.values() if state != "done"), "")
        rows.append(
            RunRow(
                first.name,
                first.recipes[0].name if first.target is not None else "",
                first.target.name if first.target is not None else "",
                {task: state for task, (state, _) in found.items()},
                {task: words for task, (state, words) in found.items() if state == "done"},
                reason,
                {task: line.result for task, line in lines.items() if not line.failed},
            )
        )
    return RunTable(tuple(task for task in TASKS if task in plan.tasks), tuple(rows))
