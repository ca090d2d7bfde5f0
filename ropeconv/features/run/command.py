"""`ropeconv run`: many sources, recipes, targets and tasks from a file, with a journal.

`running.py` has what the command and `ropeconv.run` share; here are the options and the screens.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ropeconv.cli.command import expand_options
from ropeconv.cli.options import DryRunOption
from ropeconv.cli.screen import ProgressScreen, Screen
from ropeconv.cli.typer_classes import Command
from ropeconv.errors import Interruption
from ropeconv.options import RUNNING, option
from ropeconv.rope.errors import RopeconvError, counted

if TYPE_CHECKING:
    from .jobs import Job, RunLine, Unit
    from .report import JobPreview, RunTable
    from .running import OpenRun

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
    fresh: bool = option(
        False, "Begin a new journal; the one there gets another name.", RUNNING, writes=True
    )
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
    from .running import check_done, execute_run, open_run

    opened = open_run(plan, flags.on)
    if dry_run:
        would_fail = _show_plan(opened, flags, screen)
        if would_fail:
            raise RopeconvError(f"a unit would fail; change {plan} as its reason says")
        return
    table, complete = execute_run(opened, flags.fresh, flags.verify, screen)
    _show_table(table, opened.report, screen)
    if not complete:
        raise Interruption("stopped before its end; the same command continues")
    check_done(table, opened.report)


def _show_plan(opened: OpenRun, flags: RunFlags, screen: Screen) -> bool:
    """Print what would be run, written and published, and return whether a unit would fail.

    A job is a few units, such as apply and validate, on one source.

    Args:
        opened: The plan file with its jobs.
        flags: The options of the command.
        screen: Where it is printed.
    """
    from .report import check_bytes, kept_bytes, preview_job

    # what is left to run, planned but not written
    remaining, finished_lines = _remaining_jobs(opened, flags, screen)
    previews = [preview_job(job) for job in remaining]
    units: list[Unit] = []
    for job in remaining:
        units += job
    all_units = sum(len(job) for job in opened.jobs)
    finished_units = all_units - len(units)
    time_sentences = _estimate_time(opened, units, finished_lines)

    if screen.as_json:
        document = {
            "units": len(units),
            "done": finished_units,
            "bytes": kept_bytes(previews),
            "time": time_sentences,
            "jobs": [preview.to_dict() for preview in previews],
        }
        screen.data(document)
    else:
        _show_previews(opened, previews, finished_units, screen)
        for sentence in time_sentences:
            screen.say(sentence)
        check_bytes(opened.plan, previews)
    return any(preview.problem for preview in previews)


def _remaining_jobs(
    opened: OpenRun, flags: RunFlags, screen: Screen
) -> tuple[list[Job], list[RunLine]]:
    """Return the jobs that are not done, and the lines of the journal about those that are.

    Args:
        opened: The plan file with its jobs.
        flags: Whether a new journal is begun, and whether finished outputs are compared.
        screen: Shows the progress of that.
    """
    from .jobs import RunJournal
    from .runner import missing_jobs
    from .running import report_and_verify_done

    # opening a journal would make its file, and --dry-run writes nothing
    if not opened.journal.exists():
        return opened.jobs, []
    with RunJournal(opened.journal) as journal:
        verify_bytes = flags.verify and not flags.fresh
        report_and_verify_done(opened.jobs, journal, verify_bytes, screen)
        lines = list(journal.lines.values())
        if flags.fresh:  # all jobs are run again, but their times of the last run are known
            return opened.jobs, lines
        return missing_jobs(opened.jobs, journal), lines


def _estimate_time(opened: OpenRun, units: list[Unit], lines: list[RunLine]) -> list[str]:
    """Return sentences on the time that units will take, by the times in the journal."""
    from .executors.local import Local
    from .report import Costs

    costs = Costs.of(lines)
    if isinstance(opened.executor, Local):  # a few sequences timed here say nothing about Slurm
        costs = costs.with_eval(units)
    return costs.sentences(units, opened.executor.at_once)


def _show_previews(opened: OpenRun, previews: list[JobPreview], done: int, screen: Screen) -> None:
    """Print what a run would do: a row for each job, and how much is left.

    A job makes one output. It has a unit for each task, such as apply, validate and push.

    Args:
        opened: The plan file with its jobs.
        previews: The jobs that are left, with the plans of their outputs.
        done: The number of units that earlier runs have finished, by the journal.
        screen: Where the rows are printed.
    """
    from ropeconv.formats.disk import human

    from .report import kept_bytes

    columns = ("source", "recipe", "target", "tasks", "bytes", "repository")
    rows = [_preview_row(preview) for preview in previews]
    screen.table("", columns, rows, optional=("target",), right=("bytes",))

    # "apply me/llama yarn:4 gguf would fail: ..."
    for preview, row in zip(previews, rows, strict=True):
        if preview.problem:
            first_task = preview.job[0].task
            source, recipe, target, *_ = row  # the first columns of the table
            words = (first_task, source, recipe, target)
            job_name = " ".join(word for word in words if word)
            screen.say(f"{job_name} would fail: {preview.problem}")

    # "12 units of 4 sources to run, 3 in the journal; outputs have 60 GB, 4 repositories are
    # published."
    unit_count = sum(len(preview.job) for preview in previews)
    units = counted(unit_count, "unit")
    source_names = {job[0].source.name for job in opened.jobs}
    sources = counted(len(source_names), "source")
    published = sum(bool(preview.publishes) for preview in previews)
    repositories = counted(published, "repository is", "repositories are")
    size = human(kept_bytes(previews))
    screen.say(
        f"{units} of {sources} to run, {done:,} in the journal; outputs have"
        f" {size}, {repositories} published."
    )


def _preview_row(preview: JobPreview) -> tuple[str, ...]:
    """Return the row of a job: source, recipe, target, tasks, bytes and repository."""
    first = preview.job[0]
    recipe = ", ".join(recipe.name for recipe in first.recipes)
    target = first.target.name if first.target else ""
    tasks = ", ".join(unit.task for unit in preview.job)
    size = f"{preview.bytes:,}" if preview.bytes else ""
    return first.source.name, recipe, target, tasks, size, preview.publishes


def _show_table(table: RunTable, report: Path, screen: Screen) -> None:
    """Print what each job did, why units failed, and where the report is."""
    if screen.as_json:
        screen.data({**table.to_dict(), "report": str(report)})
        return

    columns = ("source", "recipe", "target", *table.columns)
    rows = [table.cells(row) for row in table.rows]
    screen.table("", columns, rows, optional=("target",), right=table.columns)
    # one sentence for all jobs that failed for the same reason, with the names of three of them
    for reason, names in table.reasons.items():
        listed = ", ".join(names[:3])
        if len(names) > 3:
            listed += f" and {len(names) - 3} more"
        screen.say(f"{listed}: {reason}")
    # the main number of each evaluated method: "me/llama yarn:4: +0.02 nats ± 0.01"
    for row in table.rows:
        evaluation = row.results.get("eval", {})
        for name, words in evaluation.get("rows", {}).items():
            screen.say(f"{row.source} {name}: {words}")

    counts = table.counts
    screen.say(
        f"{counts['done']:,} done, {counts['failed']:,} failed, {counts['not run']:,} not run."
    )
    screen.copyable(f"Wrote {report}")
