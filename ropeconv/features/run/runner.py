"""Run the jobs of a plan through the journal: what is missing or failed.

`run_jobs` is the loop, `TaskWorker` runs a job in its own process, and `missing_jobs` and `states`
read the journal.
"""

import signal
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager

from ropeconv.engines.probe import Probe, SharedProbe
from ropeconv.errors import reason
from ropeconv.formats.jsontext import JsonObject
from ropeconv.models import hub as hub_client
from ropeconv.rope.lengths import format_duration

from .executors.executor import Failure, Pool
from .jobs import Job, RunJournal, RunLine, Unit
from .tasks import TASKS

PATIENCE = 12
"""How often a request is sent again that the Hub is too busy for.

That takes over ten minutes, and the Hub counts requests in windows of five.
"""
GRACE = 60.0
"""Seconds beyond the limits of its units after which the process of a job is killed."""
AGAIN = 60.0
"""Seconds after which a limit of time is raised again, where a library has caught it."""


class TimeLimit(BaseException):
    """The end of a time limit, which no library catches as an Exception."""


@contextmanager
def time_limit(seconds: float) -> Iterator[None]:
    """Raise TimeLimit in code that runs longer, as Ctrl-C raises KeyboardInterrupt.

    It has no effect outside the main thread, on systems without timers, and in compiled code that
    never returns.

    Args:
        seconds: The limit; 0 for none.
    """
    # Python runs handlers of signals in the main thread only; Windows has no setitimer
    in_main_thread = threading.current_thread() is threading.main_thread()
    has_timers = hasattr(signal, "setitimer")
    if not seconds or not in_main_thread or not has_timers:
        yield
        return

    def end(*_: object) -> None:
        raise TimeLimit

    old_handler = signal.signal(signal.SIGALRM, end)
    signal.setitimer(signal.ITIMER_REAL, seconds, AGAIN)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, old_handler)


class TaskWorker:
    """Runs the units of a job one after the other, until one fails.

    It is made in the process that runs them.
    """

    def __init__(self, limit: float = 0.0) -> None:
        """Start the probe of this process; `limit` is in seconds for each unit, 0 for none."""
        self.limit = limit
        self.probe = SharedProbe() if Probe.available() else None
        hub_client.patience = PATIENCE

    def __call__(self, job: Job) -> list[RunLine]:
        """Run a job, and return the lines of the units that ran."""
        lines: list[RunLine] = []
        for unit in job:
            line = self._run(unit)
            lines.append(line)
            if line.failed:
                break
        return lines

    def _run(self, unit: Unit) -> RunLine:
        """Run a unit (a task such as apply on one model), and return its line for the journal.

        Where the unit fails, the line has the reason.
        """
        begun = time.perf_counter()
        failed = ""
        result = JsonObject()
        run_task = TASKS[unit.task]
        try:
            with time_limit(self.limit):
                result = run_task(unit, self.probe)
        except TimeLimit:
            if self.probe is not None:
                self.probe = SharedProbe()  # the old one may be in the middle of an answer
            limit = format_duration(self.limit)
            failed = (
                f"it took longer than {limit} and was stopped; raise unit_timeout in [limits] if it"
                " needs more"
            )
        except Exception as problem:  # one failure of many units must not end the others
            failed = reason(problem)
        seconds = time.perf_counter() - begun
        return RunLine.of(unit, seconds, failed, result)


def missing_jobs(jobs: Sequence[Job], journal: RunJournal) -> list[Job]:
    """Return jobs without the units that have succeeded, and without jobs that are complete."""
    remaining = []
    for job in jobs:
        left = _missing_units(job, journal)
        if left:
            remaining.append(left)
    return remaining


def _missing_units(job: Job, journal: RunJournal) -> Job:
    """Return the units of a job that have not succeeded, and all after a missing `apply`."""
    for index, unit in enumerate(job):
        if journal.done(unit) is not None:
            continue
        later = job[index:]
        if unit.task == "apply":
            # an output that is written anew is validated and published anew
            return later
        return tuple(other for other in later if journal.done(other) is None)
    return ()


def run_jobs(
    jobs: Sequence[Job],
    pool: Pool,
    journal: RunJournal,
    ended: Callable[[Job, list[RunLine]], None] | None = None,
    stopped: Callable[[], bool] | None = None,
) -> bool:
    """Run jobs, and append their units to the journal as they end.

    Args:
        jobs: The jobs, each the tasks of one output.
        pool: Runs jobs on workers, and yields the index and result of each as it ends.
        journal: Gets a line for each task that has ended.
        ended: Is called with each job and its lines.
        stopped: Whether to end early, asked as jobs end; jobs that run then are dropped.

    Returns:
        Whether all were run.
    """
    with closing(pool(jobs)) as results:
        for _ in jobs:  # a result for each, in the order in which they end
            # before the pool is asked for a result, since that starts the next job
            if stopped is not None and stopped():
                return False
            index, result = next(results)
            job = jobs[index]
            lines: list[RunLine]
            if isinstance(result, Failure):  # the worker ended, so none of its units has a line
                lines = [RunLine.of(job[0], 0.0, result.reason)]
            else:
                lines = result

            for line in lines:
                journal.add(line)
            if ended is not None:
                ended(job, lines)
    return True


def states(job: Job, journal: RunJournal) -> dict[str, tuple[str, str]]:
    """Return the state of each task of a whole job, with the seconds or the reason.

    Such as {"apply": ("done", "3.4 s"), "validate": ("not run", "the run was stopped before it")}.
    States are "done", "failed" and "not run". The tasks after one that is not done are not run.

    Args:
        job: The units of the job in their order, each a task such as apply or validate.
        journal: The lines of units that have ended.
    """
    # a source that cannot be opened counts as a failure of the first task
    first, *later_units = job
    cannot_open = first.source.problem
    if cannot_open:
        outcomes = {first.task: ("failed", cannot_open)}
        for unit in later_units:
            outcomes[unit.task] = ("not run", cannot_open)
        return outcomes

    outcomes = {}
    obstacle = ""  # why the remaining tasks are not run
    for unit in job:
        line = journal.lines.get(unit.key)
        if obstacle:
            outcomes[unit.task] = ("not run", obstacle)
        elif line is not None and line.failed:
            outcomes[unit.task] = ("failed", line.failed)
            obstacle = f"{unit.task} failed"
        elif line is None or journal.done(unit) is None:  # no line, or its output is gone
            obstacle = "the run was stopped before it"
            outcomes[unit.task] = ("not run", obstacle)
        else:
            outcomes[unit.task] = ("done", f"{line.seconds:,.1f} s")
    return outcomes
