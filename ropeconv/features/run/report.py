"""The report of a run: one HTML page with the table, what failed, and the pictures of all
evaluations.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from statistics import median

from ropeconv.environment import installed
from ropeconv.errors import UsageError, reason
from ropeconv.features.evaluation.plots import evaluation_pictures
from ropeconv.features.evaluation.result import read_result, tables
from ropeconv.formats.disk import human
from ropeconv.formats.drafts import write_file
from ropeconv.formats.jsontext import JsonObject
from ropeconv.formats.package_data import render
from ropeconv.rope.errors import RopeconvError, counted
from ropeconv.rope.lengths import format_duration
from ropeconv.rope.summary import SummaryTable, TableSummary
from ropeconv.views.plot_style import drawn
from ropeconv.views.reports import origin

from .jobs import CHAIN, Job, RunJournal, RunLine, Unit
from .plan_file import RunPlan
from .runner import states
from .tasks import evaluation_of

TASKS = (*CHAIN, "eval")


@dataclass(frozen=True)
class RunRow:
    """An output, or an evaluation.

    source: its name. recipe, target: of an output; empty for an evaluation. outcomes: by task, as
    `states` gives them. results: of tasks.
    """

    source: str
    recipe: str
    target: str
    outcomes: dict[str, tuple[str, str]]
    results: dict[str, JsonObject]

    @property
    def reason(self) -> str:
        """Why the first task that is not done is not; empty where all are."""
        return next((words for state, words in self.outcomes.values() if state != "done"), "")

    def to_dict(self) -> JsonObject:
        """JSON-ready data."""
        return {
            "source": self.source,
            "recipe": self.recipe or None,
            "target": self.target or None,
            "tasks": {task: state for task, (state, _) in self.outcomes.items()},
            "reason": self.reason or None,
            "results": self.results,
        }


@dataclass(frozen=True)
class RunTable(TableSummary):
    """A line for every job. columns: tasks of the plan. rows: in the order of the plan."""

    columns: tuple[str, ...]
    rows: tuple[RunRow, ...]

    @property
    def counts(self) -> Counter[str]:
        """How many units are done, failed and not run."""
        return Counter(state for row in self.rows for state, _ in row.outcomes.values())

    @property
    def reasons(self) -> dict[str, list[str]]:
        """Lines by the reason why they failed, or were not run."""
        reasons: dict[str, list[str]] = {}
        for row in self.rows:
            if row.reason:
                name = " ".join(filter(None, (row.source, row.recipe, row.target)))
                reasons.setdefault(row.reason, []).append(name)
        return reasons

    def cells(self, row: RunRow) -> tuple[str, ...]:
        """The cells of a line: source, recipe, target, and a word or the seconds for each task."""
        outcomes = (row.outcomes.get(task, ("", "")) for task in self.columns)
        words = [seconds if state == "done" else state for state, seconds in outcomes]
        return (
            row.source,
            row.recipe or ("all rows" if "eval" in row.outcomes else ""),
            row.target,
            *words,
        )

    @property
    def sentence(self) -> str:
        """How many units are done, failed and not run, in words."""
        counts = self.counts
        done = counted(counts["done"], "unit is", "units are")
        return f"{done} done, {counts['failed']:,} failed, {counts['not run']:,} not run."

    def summary(self) -> dict[str, str]:
        """The values that are shown, by name."""
        reasons = [f"{', '.join(lines)}: {reason}" for reason, lines in self.reasons.items()]
        return {"sentence": self.sentence, "reasons": "\n".join(reasons)}

    def shown_tables(self) -> list[SummaryTable]:
        """A table with a line for every job."""
        columns = ("source", "recipe", "target", *self.columns)
        return [SummaryTable("rows", columns, [self.cells(row) for row in self.rows])]

    def records(self) -> list[JsonObject]:
        """A row for every job: the state of each task, and why the first one is not done."""
        rows = []
        for row in self.rows:
            states = {task: row.outcomes.get(task, ("", ""))[0] or None for task in self.columns}
            names = {
                "source": row.source,
                "recipe": row.recipe or None,
                "target": row.target or None,
            }
            rows.append(names | states | {"reason": row.reason or None})
        return rows

    def to_dict(self) -> JsonObject:
        """JSON-ready data."""
        counts = self.counts
        numbers = {name.replace(" ", "_"): counts[name] for name in ("done", "failed", "not run")}
        return {**numbers, "rows": [row.to_dict() for row in self.rows]}


def table_of(plan: RunPlan, jobs: Sequence[Job], journal: RunJournal) -> RunTable:
    """The table of a run."""
    rows = []
    for job in jobs:
        first = job[0]
        lines = {unit.task: journal.lines[unit.key] for unit in job if unit.key in journal.lines}
        rows.append(
            RunRow(
                first.source.name,
                first.recipes[0].name if first.target is not None else "",
                first.target.name if first.target is not None else "",
                states(job, journal),
                {task: line.result for task, line in lines.items() if not line.failed},
            )
        )
    return RunTable(tuple(task for task in TASKS if task in plan.tasks), tuple(rows))


def write_run_report(table: RunTable, plan: Path, path: Path) -> None:
    """Write the report of a run as a page.

    Args:
        table: The result of the run.
        plan: The file of its plan.
        path: The page.

    Raises:
        OSError: Where the page cannot be written.
    """
    counts = table.counts
    facts = {
        "Plan": plan.name,
        "Done": f"{counts['done']:,}",
        "Failed": f"{counts['failed']:,}",
        "Not run": f"{counts['not run']:,}",
    }
    facts |= origin()

    lines = []
    published = []
    for row in table.rows:
        lines.append((table.cells(row), row.reason))
        if "push" in row.results:
            published.append(row.results["push"]["url"])
    page = render(
        "run.html.jinja",
        plan=plan.stem,
        columns=("source", "recipe", "target", *table.columns),
        lines=lines,
        reasons=table.reasons,
        published=published,
        evaluated=_evaluated(table),
        facts=facts,
    )
    write_file(path, page)


def _evaluated(table: RunTable) -> list[dict[str, object]]:
    """The evaluations for the template, with pictures where matplotlib is installed."""
    sections: list[dict[str, object]] = []
    for number, row in enumerate(table.rows):
        if "eval" not in row.results or row.outcomes["eval"][0] != "done":
            continue
        try:
            result = read_result(Path(row.results["eval"]["path"]))
        except RopeconvError:
            continue
        pictures = []
        if installed("matplotlib"):
            pictures = drawn(evaluation_pictures(result), f"eval-{number}")
        sections.append(
            {"name": row.source, "result": result, "tables": tables(result), "pictures": pictures}
        )
    return sections


@dataclass(frozen=True)
class JobPreview:
    """A job before it is run.

    job: what is left of it. bytes: of its output, 0 where it has none or that is not known.
    encoding: of it. problem: why it cannot be planned, or empty.
    """

    job: Job
    bytes: int = 0
    encoding: str = ""
    problem: str = ""

    @property
    def publishes(self) -> str:
        """The repository that it publishes, or empty."""
        last = self.job[-1]
        return last.settings["to"] if last.task == "push" else ""

    def to_dict(self) -> JsonObject:
        """JSON-ready data."""
        first = self.job[0]
        return {
            "source": first.source.reference,
            "recipes": [recipe.name for recipe in first.recipes],
            "target": first.target and first.target.name,
            "tasks": [unit.task for unit in self.job],
            "out": first.out,
            "bytes": self.bytes,
            "encoding": self.encoding or None,
            "push": self.publishes or None,
            "problem": self.problem or None,
        }


def planned(job: Job) -> JobPreview:
    """A job with the plan of its output. Nothing is written."""
    first = job[0]
    if first.source.problem or first.target is None:
        return JobPreview(job, problem=first.source.problem)
    try:
        plan = first.plan()
    except Exception as failure:
        return JobPreview(job, problem=reason(failure))
    return JobPreview(job, plan.bytes, plan.result.encoding)


def check_bytes(plan: RunPlan, previews: Sequence[JobPreview]) -> None:
    """Raises UsageError where outputs have more bytes than the plan allows. previews: of all
    jobs.
    """
    total = kept_bytes(previews)
    most = plan.most_bytes
    if most is not None and total > most:
        raise UsageError(
            f"the outputs have {human(total)}, and limits.bytes is {plan.limits.bytes}; raise it,"
            " or leave apply out of tasks to publish without keeping them"
        )


def kept_bytes(previews: Sequence[JobPreview]) -> int:
    """The bytes of outputs that stay on this disk."""
    return sum(preview.bytes for preview in previews if preview.job[0].task == "apply")


@dataclass(frozen=True)
class Costs:
    """The median seconds of units by task. timed: the source of which short sequences were timed
    for eval, or empty.
    """

    seconds: dict[str, float]
    timed: str = ""

    @classmethod
    def of(cls, lines: Sequence[RunLine]) -> Costs:
        """The costs of units that have succeeded."""
        tasks = {line.task for line in lines}
        done = {
            task: [line.seconds for line in lines if line.task == task and not line.failed]
            for task in tasks
        }
        return cls({task: median(seconds) for task, seconds in done.items() if seconds})

    def with_eval(self, units: Sequence[Unit]) -> Costs:
        """The same with the time of eval, where the journal has none: the first model that loads is
        timed here.
        """
        for unit in units:
            if unit.task == "eval" and "eval" not in self.seconds:
                with suppress(RopeconvError), evaluation_of(unit) as evaluation:
                    return Costs(
                        {**self.seconds, "eval": evaluation.estimate().seconds}, unit.source.name
                    )
        return self

    def sentences(self, units: Sequence[Unit], at_once: int) -> list[str]:
        """Return sentences on the time that units take.

        Args:
            units: The units.
            at_once: How many run at a time; 0 where that is not known.
        """
        counts = Counter(unit.task for unit in units)
        known = {task: count for task, count in counts.items() if task in self.seconds}
        total = sum(self.seconds[task] * count for task, count in known.items())

        sentences = []
        if known:
            parts = []
            for task, count in known.items():
                parts.append(f"{count:,} {task} of {self.seconds[task]:,.1f} s")
            each = ", ".join(parts)
            spread = ""
            if at_once > 1:
                spread = f", {format_duration(total / at_once)} with {at_once} at a time"
            basis = f" (eval by short sequences of {self.timed})" if self.timed else ""
            sentences.append(
                f"By the median of finished units{basis}: {each}; {format_duration(total)} in"
                f" all{spread}."
            )

        unknown = [f"{count:,} {task}" for task, count in counts.items() if task not in known]
        if unknown:
            tasks = " and ".join(unknown)
            sentences.append(f"No time estimate yet for {tasks}: the first one has not run.")
        return sentences
