"""`run`: many sources, recipes, targets and tasks from a plan file, with a journal.

`open_run` reads the plan file and finds its sources, and `execute_run` runs what is missing.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from ropeconv.errors import Interruption
from ropeconv.keywords import StrPath
from ropeconv.models import hub as hub_client
from ropeconv.reporting import Reporter, SilentReporter
from ropeconv.rope.errors import RopeconvError, counted
from ropeconv.verbs.arguments import check_arguments

from .executors import executor_of
from .executors.executor import Executor
from .jobs import Job, RunJournal, RunLine, jobs_of, named_sources
from .plan_file import RunPlan, read_plan
from .report import RunTable, check_bytes, make_table, preview_job, write_run_report
from .runner import GRACE, PATIENCE, TaskWorker, TimeLimit, missing_jobs, run_jobs, time_limit


@dataclass(frozen=True)
class OpenRun:
    """A plan file with its jobs, and where they run."""

    path: Path
    """The plan file."""

    plan: RunPlan
    jobs: list[Job]

    journal: Path
    """The file of units that have ended."""

    executor: Executor

    @property
    def report(self) -> Path:
        """The page with the results."""
        return self.journal.with_name("report.html")


def open_run(path: Path, on: str = "") -> OpenRun:
    """Read a plan file, and find its sources.

    Args:
        path: The plan file. Relative paths in it start at its folder.
        on: The executor of the jobs (`--on`), such as "slurm"; empty for the one in the plan file.

    Raises:
        UsageError: The plan is wrong, or the executor does not exist.
    """
    # a run takes hours, so from now on this process waits longer for a busy Hub
    hub_client.patience = PATIENCE

    plan = read_plan(path)
    folder = path.resolve().parent
    out = folder / (plan.out or path.stem)
    place = on or plan.executor.on
    executor = _open_executor(plan, place, slurm_folder=out / "slurm")
    sources = named_sources(plan.sources, folder, out)
    jobs = jobs_of(plan, sources, folder, out)
    return OpenRun(
        path=path, plan=plan, jobs=jobs, journal=out / "journal.jsonl", executor=executor
    )


def _open_executor(plan: RunPlan, place: str, slurm_folder: Path) -> Executor:
    """Return the executor of a plan: the processes or the cluster that its jobs run on.

    Args:
        plan: The plan file.
        place: Where its jobs run: local, a number of processes, ray, slurm, ...
        slurm_folder: The folder for what Slurm's jobs leave.
    """
    # How many jobs run at a time without GPUs. Running a model takes all cores and much memory;
    # writing an output takes neither.
    runs_models = "eval" in plan.tasks or "validate" in plan.tasks
    jobs_without_gpus = 1 if runs_models else 4
    executor = executor_of(
        place,
        plan.executor,
        at_once=plan.limits.jobs,
        without_gpus=jobs_without_gpus,
        folder=slurm_folder,
    )
    # A worker ends a unit itself when its time is over. It cannot if it hangs in compiled code:
    # then the process is killed a little later.
    seconds_per_unit = plan.limits.unit_seconds
    executor.longest = lambda job: GRACE + seconds_per_unit * len(job)
    return executor


@check_arguments
def run(
    plan: StrPath,
    *,
    on: str | int = "",
    fresh: bool = False,
    verify: bool = False,
    reporter: Reporter | None = None,
) -> RunTable:
    """Run apply, validate, eval and push for many models, as a plan file says.

    Args:
        plan: The path of the plan file, `plan.toml`.
        on: Where: local, a number of processes, ray, auto, ray://HOST:PORT or slurm.
        fresh: Begin a new journal; the one there gets another name.
        verify: Compare outputs that are done, byte by byte, with what their sources give.
        reporter: Receives progress, and sentences for the user.

    Returns:
        A row for each job, with its results or the reason why it failed.

    Raises:
        UsageError: For a plan that is wrong.
        Interruption: Where it was stopped; the same call continues.
    """
    opened = open_run(Path(plan), str(on))
    table, complete = execute_run(opened, fresh, verify, reporter or SilentReporter())
    if not complete:
        raise Interruption("stopped before its end; the same command continues")
    return table


def execute_run(
    opened: OpenRun, fresh: bool, verify: bool, reporter: Reporter
) -> tuple[RunTable, bool]:
    """Run the jobs of a plan file that its journal does not have as done, and write the report.

    Parameters are those of `run`.

    Returns:
        The table of results, and whether all jobs were run.
    """
    with RunJournal(opened.journal, fresh) as journal:
        report_and_verify_done(opened.jobs, journal, verify, reporter)
        missing = missing_jobs(opened.jobs, journal)
        remaining = [job for job in missing if not job[0].source.problem]
        if opened.plan.most_bytes is not None:  # previews take a while, and only this needs them
            check_bytes(opened.plan, [preview_job(job) for job in remaining])

        # also after Ctrl-C, the report shows what was done
        complete = _run_jobs(remaining, opened, journal, reporter)
        table = make_table(opened.plan, opened.jobs, journal)
    write_run_report(table, opened.path, opened.report)
    return table, complete


def report_and_verify_done(
    jobs: list[Job], journal: RunJournal, verify_bytes: bool, reporter: Reporter
) -> None:
    """Report the notes of the journal, and compare the bytes of finished outputs if asked to.

    Args:
        jobs: All jobs.
        journal: The journal of the run. An output with other bytes is not done any more.
        verify_bytes: Whether to compare the outputs, as --verify asks.
        reporter: Receives the notes, and progress.
    """
    for sentence in journal.notes:
        reporter.note(sentence)
    if not verify_bytes:
        return
    finished = []
    for job in jobs:
        for unit in job:
            if unit.task == "apply" and journal.done(unit):
                finished.append(unit)
    if not finished:
        return
    with reporter.counting("Verifying", "outputs") as (total, advance):
        total(len(finished))
        for unit in finished:
            journal.verify(unit)
            advance(1)


def check_done(table: RunTable, report: Path) -> None:
    """Refuse a table in which a unit has failed.

    Args:
        table: The table of the run.
        report: The page that says why.

    Raises:
        RopeconvError: A unit has failed.
    """
    failed = table.counts["failed"]
    if failed:
        raise RopeconvError(
            f"{counted(failed, 'unit')} failed; see {report}, and give the same command again"
        )


def _run_jobs(
    remaining: list[Job], opened: OpenRun, journal: RunJournal, reporter: Reporter
) -> bool:
    """Run jobs, until Ctrl-C or limits.hours stop them, and return whether all were run.

    Args:
        remaining: The jobs that are not done.
        opened: The plan with its limits, and where it runs.
        journal: The journal, which gets a line for each unit.
        reporter: Receives progress, and a sentence for each unit that fails.
    """
    if not remaining:
        return True

    # The hours of the plan end in two ways. A timer interrupts even the wait for a result
    # (time_limit). Some systems have no such timer; there the clock is read between two results
    # (is_late).
    limits = opened.plan.limits
    seconds = (limits.hours or 0) * 3600  # 0 for no limit
    end = time.monotonic() + seconds
    make_worker = partial(TaskWorker, limits.unit_seconds)
    try:
        with (
            time_limit(seconds),
            reporter.counting("Running", "units") as (total, advance),
            opened.executor.pool(make_worker, limits.retries) as pool,
        ):
            total(sum(len(job) for job in remaining))

            def show_ended(job: Job, lines: list[RunLine]) -> None:
                """Advance the progress by a job, and say which of its units failed."""
                advance(len(job))
                for line in lines:
                    if line.failed:
                        reporter.note(f"{line.task} of {line.source} failed: {line.failed}")

            def is_late() -> bool:
                """Return whether the hours of the plan are over."""
                return seconds > 0 and time.monotonic() > end

            return run_jobs(remaining, pool, journal, ended=show_ended, stopped=is_late)
    except (KeyboardInterrupt, TimeLimit):
        return False
