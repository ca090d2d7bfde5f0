"""The tables of a run, before and after it, and the report.

- `RunTable`: a line for each job, with what its tasks did.
- `write_run_report`: one HTML page with the table, the failures, and pictures of evaluations.
- `JobPreview` and `Costs`: what a dry run says about each job, and about the time.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median

from ropeconv.bake.modelfile import modelfile_of
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

from .jobs import TASKS_OF_OUTPUT, Job, RunJournal, RunLine, Unit
from .plan_file import RunPlan
from .runner import states
from .tasks import evaluation_of

TASKS = (*TASKS_OF_OUTPUT, "eval")


@dataclass(frozen=True)
class RunRow:
    """An output, or an evaluation."""

    source: str
    """The name of the source."""

    recipe: str
    """The name of the recipe; empty for an evaluation."""

    target: str
    """The name of the target; empty for an evaluation."""

    outcomes: dict[str, tuple[str, str]]
    """State and words by task, as `states` gives them."""

    results: dict[str, JsonObject]
    """The results of the tasks that have succeeded."""

    @property
    def reason(self) -> str:
        """Why the first task that is not done is not; empty where all are."""
        for state, words in self.outcomes.values():
            if state != "done":
                return words
        return ""

    def to_dict(self) -> JsonObject:
        """Return the row as JSON-ready data."""
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
    """A line for every job."""

    columns: tuple[str, ...]
    """The tasks of the plan."""

    rows: tuple[RunRow, ...]
    """The jobs in the order of the plan."""

    @property
    def counts(self) -> Counter[str]:
        """How many units are done, failed and not run."""
        counts = Counter[str]()
        for row in self.rows:
            for state, _ in row.outcomes.values():
                counts[state] += 1
        return counts

    @property
    def reasons(self) -> dict[str, list[str]]:
        """The names of lines by the reason why they failed, or were not run."""
        reasons: dict[str, list[str]] = {}
        for row in self.rows:
            if not row.reason:
                continue
            words = [word for word in (row.source, row.recipe, row.target) if word]
            reasons.setdefault(row.reason, []).append(" ".join(words))
        return reasons

    def cells(self, row: RunRow) -> tuple[str, ...]:
        """Return the cells of a line: source, recipe, target, and each task.

        A task that is done has its seconds, and another one the word for its state.
        """
        recipe = row.recipe
        if not recipe and "eval" in row.outcomes:
            recipe = "all rows"
        cells = [row.source, recipe, row.target]
        for task in self.columns:
            state, seconds = row.outcomes.get(task, ("", ""))
            cells.append(seconds if state == "done" else state)
        return tuple(cells)

    @property
    def sentence(self) -> str:
        """How many units are done, failed and not run, in words."""
        counts = self.counts
        done = counted(counts["done"], "unit is", "units are")
        return f"{done} done, {counts['failed']:,} failed, {counts['not run']:,} not run."

    def summary(self) -> dict[str, str]:
        """Return what is shown, by name."""
        reasons = [f"{', '.join(lines)}: {reason}" for reason, lines in self.reasons.items()]
        return {"sentence": self.sentence, "reasons": "\n".join(reasons)}

    def shown_tables(self) -> list[SummaryTable]:
        """Return a table with a line for every job."""
        columns = ("source", "recipe", "target", *self.columns)
        return [SummaryTable("rows", columns, [self.cells(row) for row in self.rows])]

    def records(self) -> list[JsonObject]:
        """Return a row for every job: the state of each task, and why the first is not done.

        Such as {"source": "llama", "recipe": "yarn:4", "target": None, "apply": "done",
        "validate": "failed", "reason": "..."}.
        """
        records = []
        for row in self.rows:
            record: JsonObject = {
                "source": row.source,
                "recipe": row.recipe or None,
                "target": row.target or None,
            }
            for task in self.columns:
                state, _ = row.outcomes.get(task, ("", ""))
                record[task] = state or None
            record["reason"] = row.reason or None
            records.append(record)
        return records

    def to_dict(self) -> JsonObject:
        """Return the table as JSON-ready data."""
        counts = self.counts
        return {
            "done": counts["done"],
            "failed": counts["failed"],
            "not_run": counts["not run"],
            "rows": [row.to_dict() for row in self.rows],
        }


def make_table(plan: RunPlan, jobs: Sequence[Job], journal: RunJournal) -> RunTable:
    """Return the table of a run."""
    columns = tuple(task for task in TASKS if task in plan.tasks)
    return RunTable(columns, tuple(_make_row(job, journal) for job in jobs))


def _make_row(job: Job, journal: RunJournal) -> RunRow:
    """Return the line of a job in the table: what became of each of its tasks.

    A job is the tasks of one output, such as apply and validate. Each is a unit: the task with its
    source, recipe and target. The journal has a line for each unit that has ended.
    """
    results = {}  # by task, what the journal says about it
    for unit in job:
        line = journal.lines.get(unit.key)
        if line is not None and not line.failed:
            results[unit.task] = line.result

    # all units have the same source, recipe and target; an evaluation has all recipes, and is named
    # by its source alone
    first = job[0]
    recipe = ""
    target = ""
    if first.target is not None:
        recipe = first.recipes[0].name
        target = first.target.name
    return RunRow(
        source=first.source.name,
        recipe=recipe,
        target=target,
        outcomes=states(job, journal),
        results=results,
    )


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
        evaluated=_evaluations(table),
        facts=facts,
    )
    write_file(path, page)


def _evaluations(table: RunTable) -> list[dict[str, object]]:
    """Return the evaluations for the template, with pictures where matplotlib is installed."""
    sections: list[dict[str, object]] = []
    for number, row in enumerate(table.rows):
        if "eval" not in row.results:
            continue
        state, _ = row.outcomes["eval"]
        if state != "done":
            continue
        try:
            result = read_result(Path(row.results["eval"]["path"]))
        except RopeconvError:  # someone removed or changed the file since
            continue

        pictures = []
        if installed("matplotlib"):
            # the names of pictures must be unique in the page
            pictures = drawn(evaluation_pictures(result), f"eval-{number}")
        section = {
            "name": row.source,
            "result": result,
            "tables": tables(result),
            "pictures": pictures,
        }
        sections.append(section)
    return sections


@dataclass(frozen=True)
class JobPreview:
    """A job before it is run."""

    job: Job
    """The units that are left of it."""

    bytes: int = 0
    """The size of its output; 0 where it has none, or that is not known."""

    encoding: str = ""
    """The encoding of its output."""

    problem: str = ""
    """Why it cannot be planned, or empty."""

    @property
    def publishes(self) -> str:
        """The repository that it publishes, or empty."""
        last = self.job[-1]
        return last.settings["to"] if last.task == "push" else ""

    def to_dict(self) -> JsonObject:
        """Return the preview as JSON-ready data."""
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


def preview_job(job: Job) -> JobPreview:
    """Return a job with the plan of its output. Nothing is written."""
    first = job[0]
    if first.source.problem or first.target is None:
        return JobPreview(job, problem=first.source.problem)
    try:
        plan = first.plan()
        if first.task == "apply" and plan.is_for_ollama:
            modelfile_of(plan)  # raises for a model that Ollama cannot run
    except Exception as failure:
        return JobPreview(job, problem=reason(failure))
    return JobPreview(job, plan.bytes, plan.result.encoding)


def check_bytes(plan: RunPlan, previews: Sequence[JobPreview]) -> None:
    """Refuse outputs with more bytes than the plan allows.

    Args:
        plan: The plan file, with its limits.
        previews: Those of all jobs.

    Raises:
        UsageError: They have more.
    """
    total = kept_bytes(previews)
    most = plan.most_bytes
    if most is not None and total > most:
        raise UsageError(
            f"the outputs have {human(total)}, and limits.bytes is {plan.limits.bytes}; raise it,"
            " or leave apply out of tasks to publish without keeping them"
        )


def kept_bytes(previews: Sequence[JobPreview]) -> int:
    """Return the bytes of outputs that stay on this disk."""
    return sum(preview.bytes for preview in previews if preview.job[0].task == "apply")


@dataclass(frozen=True)
class Costs:
    """The time that units take."""

    seconds: dict[str, float]
    """The median seconds of a unit, by task."""

    timed: str = ""
    """The source whose short sequences were timed for eval, or empty."""

    @classmethod
    def of(cls, lines: Sequence[RunLine]) -> Costs:
        """Return the costs of units that have succeeded."""
        by_task: dict[str, list[float]] = {}
        for line in lines:
            if not line.failed:
                by_task.setdefault(line.task, []).append(line.seconds)
        return cls({task: median(seconds) for task, seconds in by_task.items()})

    def with_eval(self, units: Sequence[Unit]) -> Costs:
        """Return the costs, completed by the time of an evaluation where none has finished yet.

        Then a few sequences are timed here, with the first model that loads.

        Args:
            units: The units that will run, each a task such as apply or eval on one model.
        """
        if "eval" in self.seconds:
            return self
        for unit in units:
            if unit.task != "eval":
                continue
            try:
                with evaluation_of(unit) as evaluation:
                    seconds = evaluation.estimate().seconds
            except RopeconvError:  # the run will say why
                continue
            return Costs({**self.seconds, "eval": seconds}, timed=unit.source.name)
        return self

    def sentences(self, units: Sequence[Unit], at_once: int) -> list[str]:
        """Return sentences on the time that units take.

        Args:
            units: The units, each a task such as apply on one model.
            at_once: How many run at a time; 0 where that is not known.
        """
        known_tasks = []
        unknown_tasks = []
        total = 0.0
        for task, count in Counter(unit.task for unit in units).items():
            if task in self.seconds:
                known_tasks.append(f"{count:,} {task} of {self.seconds[task]:,.1f} s")
                total += self.seconds[task] * count
            else:
                unknown_tasks.append(f"{count:,} {task}")

        # "By the median of finished units: 12 apply of 3.4 s, 2 validate of 60.2 s; 3 min in all,
        # 81 s with 2 at a time."
        sentences = []
        if known_tasks:
            in_parallel = ""
            if at_once > 1:
                in_parallel = f", {format_duration(total / at_once)} with {at_once} at a time"
            basis = f" (eval by short sequences of {self.timed})" if self.timed else ""
            sentences.append(
                f"By the median of finished units{basis}: {', '.join(known_tasks)};"
                f" {format_duration(total)} in all{in_parallel}."
            )
        if unknown_tasks:
            tasks = " and ".join(unknown_tasks)
            sentences.append(f"No time estimate yet for {tasks}: the first one has not run.")
        return sentences
