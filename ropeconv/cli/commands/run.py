"""`ropeconv run`: many sources, recipes, targets and tasks from a file, with a journal."""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ...errors import Interruption
from ...options import option
from ...rope.errors import RopeconvError, counted
from ..command import RUNNING, expand_options
from ..options import DryRunOption
from ..screen import ProgressScreen, Screen
from ..typer_classes import Command

if TYPE_CHECKING:
    from ...run.executors.executor import Executor
    from ...run.jobs import Job, RunJournal, RunLine
    from ...run.plan_file import RunPlan
    from ...run.report import JobPreview, RunTable

app = typer.Typer(add_completion=False)

EXAMPLES = """
ropeconv run plan.toml --dry-run
ropeconv run plan.toml
ropeconv run plan.toml --on 4
ropeconv run plan.toml --verify
ropeconv run plan.toml --on ray://head:10001
A plan.toml, with all keys in docs/running.md:
sources = ["Qwen/Qwen3-8B", "./models/*"]
recipes = ["yarn:4"]
tasks = ["apply", "validate"]
targets = [{}, {name = "q8", to = "gguf", outtype = "q8_0"}]
"""


@dataclass(frozen=True)
class RunFlags:
    """The options of `run`."""

    on: str = option(
        "",
        "local, a number of processes, ray, auto, ray://HOST:PORT, slurm.",
        RUNNING,
        metavar="WHERE",
    )
    fresh: bool = option(False, "Begin a new journal; the one there gets another name.", RUNNING)
    verify: bool = option(
        False, "Compare outputs that are done, byte by byte, with what their sources give.", RUNNING
    )


@app.command("run", cls=Command, epilog=EXAMPLES)
@expand_options
def run_command(
    plan: Annotated[
        Path,
        typer.Argument(metavar="PLAN.toml", help="Sources, recipes, targets, tasks and limits."),
    ],
    flags: RunFlags,
    screen: ProgressScreen,
    dry_run: DryRunOption = False,
) -> None:
    """Run apply, validate, eval and push for many models, as a plan file says (docs/running.md).

    After an interruption the same command continues where it stopped, and tries failed units again.

    Exit codes: 0 done, 1 a unit failed (or would, with --dry-run), 2 wrong usage, 130 stopped
    before the end.
    """
    from ...models import hub as hub_client
    from ...run.executors import executor_of
    from ...run.jobs import jobs_of, named_sources
    from ...run.plan_file import read_plan
    from ...run.runner import GRACE, PATIENCE

    hub_client.patience = PATIENCE
    parsed = read_plan(plan)
    folder = plan.resolve().parent
    out = folder / (parsed.out or plan.stem)
    without_gpus = 1 if {"eval", "validate"} & {*parsed.tasks} else 4
    place = flags.on or parsed.executor.on
    executor = executor_of(place, parsed.executor, parsed.limits.jobs, without_gpus, out / "slurm")
    executor.longest = lambda job: GRACE + parsed.limits.unit_seconds * len(job)
    jobs = jobs_of(parsed, named_sources(parsed.sources, folder), folder, out)
    journal = out / "journal.jsonl"
    if dry_run:
        if _show_plan(parsed, jobs, journal, flags, executor, screen):
            raise RopeconvError(f"a unit would fail; change {plan} as its reason says")
        return
    _run(plan, parsed, jobs, journal, flags, executor, screen)


def _show_plan(
    plan: RunPlan, jobs: list[Job], place: Path, flags: RunFlags, executor: Executor, screen: Screen
) -> bool:
    """Prints what would be run, written and published, and returns whether a unit would fail."""
    from ...formats.disk import human
    from ...run.executors.local import Local
    from ...run.jobs import RunJournal
    from ...run.report import Costs, check_bytes, kept_bytes, planned
    from ...run.runner import missing

    lines = []
    remaining = jobs
    if place.exists():
        with RunJournal(place) as journal:
            _verify(jobs, journal, flags.verify and not flags.fresh, screen)
            lines = list(journal.lines.values())
            remaining = jobs if flags.fresh else missing(jobs, journal)
    previews = [planned(job) for job in remaining]
    failing = any(preview.problem for preview in previews)
    costs = Costs.of(lines)
    units = [unit for job in remaining for unit in job]
    if isinstance(executor, Local):
        costs = costs.with_eval(units)
    done = sum(len(job) for job in jobs) - len(units)
    sentences = costs.sentences(units, executor.at_once)
    if screen.as_json:
        document = {
            "units": len(units),
            "done": done,
            "bytes": kept_bytes(previews),
            "time": sentences,
        }
        screen.data(document | {"jobs": [preview.to_dict() for preview in previews]})
        return failing
    columns = ("source", "recipe", "target", "tasks", "bytes", "repository")
    screen.table(
        "",
        columns,
        [_planned_row(preview) for preview in previews],
        optional=("target",),
        right=("bytes",),
    )
    for preview in previews:
        if preview.problem:
            words = (preview.job[0].task, *_planned_row(preview)[:3])
            screen.say(f"{' '.join(filter(None, words))} would fail: {preview.problem}")
    repositories = sum(bool(preview.publishes) for preview in previews)
    sources = len({job[0].source.name for job in jobs})
    screen.say(
        f"{counted(len(units), 'unit')} of {counted(sources, 'source')} to run, {done:,} in the"
        f" journal; outputs have {human(kept_bytes(previews))},"
        f" {counted(repositories, 'repository is', 'repositories are')} published."
    )
    for sentence in sentences:
        screen.say(sentence)
    check_bytes(plan, previews)
    return failing


def _planned_row(preview: JobPreview) -> tuple[str, ...]:
    first = preview.job[0]
    tasks = ", ".join(unit.task for unit in preview.job)
    recipe = ", ".join(recipe.name for recipe in first.recipes)
    size = f"{preview.bytes:,}" if preview.bytes else ""
    return (
        first.source.name,
        recipe,
        first.target.name if first.target else "",
        tasks,
        size,
        preview.publishes,
    )


def _run(
    path: Path,
    plan: RunPlan,
    jobs: list[Job],
    place: Path,
    flags: RunFlags,
    executor: Executor,
    screen: Screen,
) -> None:
    """Runs a plan, and prints its results. path: of the plan. place: of the journal."""
    from ...run.jobs import RunJournal
    from ...run.report import check_bytes, planned, table_of, write_run_report
    from ...run.runner import missing

    with RunJournal(place, flags.fresh) as journal:
        _verify(jobs, journal, flags.verify, screen)
        remaining = [job for job in missing(jobs, journal) if not job[0].source.problem]
        if plan.most_bytes is not None:
            check_bytes(plan, [planned(job) for job in remaining])
        complete = _run_left(remaining, plan, journal, executor, screen)
        table = table_of(plan, jobs, journal)
    report = place.with_name("report.html")
    write_run_report(table, path, report)
    _show(table, report, screen)
    if not complete:
        raise Interruption("stopped before its end; the same command continues")
    if failed := table.counts["failed"]:
        raise RopeconvError(
            f"{counted(failed, 'unit')} failed; see {report}, and give the same command again"
        )


def _verify(jobs: list[Job], journal: RunJournal, verify: bool, screen: Screen) -> None:
    """Prints the notes of the journal, and compares the bytes of finished outputs if `verify` is
    set.
    """
    for sentence in journal.notes:
        screen.note(sentence)
    done = (
        [unit for job in jobs for unit in job if unit.task == "apply" and journal.done(unit)]
        if verify
        else []
    )
    if done:
        with screen.counting("Verifying", "outputs") as (total, advance):
            total(len(done))
            for unit in done:
                journal.verify(unit)
                advance(1)


def _run_left(
    left: list[Job], plan: RunPlan, journal: RunJournal, executor: Executor, screen: Screen
) -> bool:
    """Runs jobs with a progress bar; Ctrl-C and limits.hours stop them. Returns whether all were
    run.
    """
    from functools import partial

    from ...run.runner import TaskWorker, TimeLimit, run_jobs, time_limit

    if not left:
        return True
    seconds = (plan.limits.hours or 0) * 3600
    end = time.monotonic() + seconds
    try:
        with (
            time_limit(seconds),
            screen.counting("Running", "units") as (total, advance),
            executor.pool(
                partial(TaskWorker, plan.limits.unit_seconds), plan.limits.retries
            ) as pool,
        ):
            total(sum(len(job) for job in left))

            def ended(job: Job, lines: list[RunLine]) -> None:
                advance(len(job))
                for line in lines:
                    screen.note(
                        line.failed and f"{line.task} of {line.source} failed: {line.failed}"
                    )

            return run_jobs(
                left, pool, journal, ended, lambda: bool(seconds) and time.monotonic() > end
            )
    except (KeyboardInterrupt, TimeLimit):
        return False


def _show(table: RunTable, report: Path, screen: Screen) -> None:
    if screen.as_json:
        screen.data({**table.to_dict(), "report": str(report)})
        return
    columns = ("source", "recipe", "target", *table.columns)
    screen.table(
        "",
        columns,
        [table.cells(row) for row in table.rows],
        optional=("target",),
        right=table.columns,
    )
    for reason, names in table.reasons.items():
        screen.say(
            f"{', '.join(names[:3])}{f' and {len(names) - 3} more' if len(names) > 3 else ''}:"
            f" {reason}"
        )
    for row in table.rows:
        for name, words in row.results.get("eval", {}).get("rows", {}).items():
            screen.say(f"{row.source} {name}: {words}")
    counts = table.counts
    screen.say(
        f"{counts['done']:,} done, {counts['failed']:,} failed, {counts['not run']:,} not run."
    )
    screen.copyable(f"Wrote {report}")
