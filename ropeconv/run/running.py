"""Runs the jobs of a plan through the journal: what is missing or failed, each unit after those that it needs."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import closing
from typing import Any

from ..failures import reason
from ..sources import hub_client
from .executors import Failure, Pool
from .journal import RunJournal, RunLine
from .tasks import TASKS, Tools
from .unit import Job, Unit

PATIENCE = 12
"""How often a request is sent again that the Hub is too busy for: over ten minutes, more than its window of five."""


class TaskWorker:
    """Runs the units of a job one after the other, until one fails. It is made in the process that runs them."""

    def __init__(self) -> None:
        self.tools = Tools()
        hub_client.patience = PATIENCE

    def __call__(self, job: Job) -> list[RunLine]:
        """The lines of the units that ran."""
        lines: list[RunLine] = []
        for unit in job.units:
            lines.append(self._line(unit))
            if lines[-1].failed:
                break
        return lines

    def _line(self, unit: Unit) -> RunLine:
        begun = time.perf_counter()
        failed, result = "", dict[str, Any]()
        try:
            result = TASKS[unit.task](unit, self.tools)
        except Exception as problem:
            failed = reason(problem)
        return RunLine.of(unit, time.perf_counter() - begun, failed, result)


def missing(jobs: Sequence[Job], journal: RunJournal) -> list[Job]:
    """What is to be run of jobs: without the units that have succeeded, and without jobs of which none is left."""
    left = [Job(_left(job, journal)) for job in jobs]
    return [job for job in left if job.units]


def _left(job: Job, journal: RunJournal) -> tuple[Unit, ...]:
    """The units of a job from the first that has not succeeded, with those that do what it does again."""
    for index, unit in enumerate(job.units):
        if journal.done(unit) is None:
            later = job.units[index:]
            # an output that was written anew is validated and published anew
            return later if unit.task == "apply" else tuple(one for one in later if journal.done(one) is None)
    return ()


def run_jobs(
    jobs: Sequence[Job],
    pool: Pool,
    journal: RunJournal,
    ended: Callable[[Job, list[RunLine]], None] = lambda job, lines: None,
    stopped: Callable[[], bool] = lambda: False,
) -> bool:
    """Runs jobs, and appends their units to the journal as they end. Returns whether all were run.

    jobs: as `missing` gives them. pool: of `TaskWorker`. journal: of the run. ended: called with each job and
    its lines. stopped: whether to end early, asked as jobs end; what runs then is dropped.
    """
    left = len(jobs)
    with closing(pool.run(jobs)) as results:
        while left and not stopped():
            index, found = next(results)
            job = jobs[index]
            if isinstance(found, Failure):
                found = [RunLine.of(job.units[0], 0.0, found.reason)]
            for line in found:
                journal.add(line)
            ended(job, found)
            left -= 1
    return left == 0


def states(job: Job, journal: RunJournal, problem: str = "") -> dict[str, tuple[str, str]]:
    """What became of each task of a job: "done", "failed" or "not run", with the seconds or the reason.

    job: with all its units. journal: of the run. problem: why its source cannot be had, or empty.
    """
    found, before = dict[str, tuple[str, str]](), problem
    for unit in job.units:
        line = journal.last.get(unit.key)
        if before:
            found[unit.task] = ("failed" if before is problem and not found else "not run", before)
        elif line is not None and line.failed:
            found[unit.task], before = ("failed", line.failed), f"{unit.task} failed"
        elif journal.done(unit) is None:
            found[unit.task] = ("not run", before := "the run was stopped before it")
        else:
            assert line is not None
            found[unit.task] = ("done", f"{line.seconds:,.1f} s")
    return found
