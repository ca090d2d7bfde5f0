"""Slurm: every item is a job of an array.

submitit submits the jobs and reads their results (https://github.com/facebookincubator/submitit).
`Slurm` is the class to read first; `Queue` finds out which jobs have ended.
"""

from __future__ import annotations

import os
import pickle
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from ropeconv.environment import require
from ropeconv.errors import UsageError
from ropeconv.features.evaluation.evaluation import parse_duration
from ropeconv.rope.errors import RopeconvError

from ..plan_file import TIME_UNITS
from .executor import Executor, Factory, Pool, Results, call, worker_lost

if TYPE_CHECKING:
    from submitit import Executor as SubmititExecutor
    from submitit import Job

SECONDS_BETWEEN_QUESTIONS = 20.0
"""Seconds between two questions to Slurm.

A result has as long to be seen here after its job has left the queue.
"""
MOST_JOBS_OF_ARRAY = 1_000
"""Jobs of an array: Slurm's MaxArraySize is 1,001 by default."""
SECONDS_BETWEEN_LOOKS = 2.0
"""Seconds between two looks for results."""
NEVER = {
    "PartitionTimeLimit": "a shorter timeout",
    "AssocMaxWallDurationPerJobLimit": "a shorter timeout",
    "QOSMaxWallDurationPerJobLimit": "a shorter timeout",
    "PartitionNodeLimit": "another partition in [executor.slurm]",
    "BadConstraints": "fewer cpus and gpus, or other parameters in [executor.slurm]",
    "InvalidAccount": "another account in [executor.slurm]",
    "InvalidQOS": "another qos in [executor.slurm]",
}
"""Why jobs wait for ever, and what [executor] needs.

The reasons are those of https://slurm.schedmd.com/job_reason_codes.html.
"""


class Queue:
    """The queue of Slurm, which says what jobs have ended.

    A job without a result has ended where two looks, one after the other, miss it in the queue.

    submitit asks `sacct`, which knows of no job where accounting is off (the default), and asks
    every ten minutes in long runs. `squeue` always knows: https://slurm.schedmd.com/squeue.html.
    """

    def __init__(self) -> None:
        """Begin without an answer of Slurm; `squeue` is asked every SECONDS_BETWEEN_QUESTIONS."""
        self.next_question = time.monotonic() + SECONDS_BETWEEN_QUESTIONS
        self.missing = set[str]()  # the ids of jobs that were not in the last answer

    def ended(self, jobs: Mapping[int, Job]) -> list[int]:
        """Return the numbers of jobs that have ended, with a result or without.

        Args:
            jobs: The jobs of submitit, by number.

        Raises:
            RopeconvError: One of them will never start.
        """
        left_queue = self._gone(jobs)

        # NFS caches what a folder has; a change of its mode, even to the same one, makes the client
        # ask the server again (submitit does the same in Job.done)
        for folder in {job.paths.folder for job in jobs.values()}:
            with suppress(OSError):
                folder.chmod(folder.stat().st_mode)

        ended = []
        for number, job in jobs.items():
            has_result = job.paths.result_pickle.exists()
            if has_result or job.job_id in left_queue:
                ended.append(number)
        return ended

    def _gone(self, jobs: Mapping[int, Job]) -> set[str]:
        """Return the ids of jobs that have left the queue of Slurm.

        `squeue` lists the queue, and is only run again after some seconds; until then the result is
        empty. A job counts as gone when two lists, one after the other, do not have it: a new job
        may not be listed yet, and a finished one gets time to write its result.

        Raises:
            RopeconvError: Slurm never starts one of them.
        """
        is_due = time.monotonic() >= self.next_question
        if not is_due:
            return set()
        self.next_question = time.monotonic() + SECONDS_BETWEEN_QUESTIONS
        queue = queued_jobs()  # such as {"12_3": "Resources"}: why each job waits
        if queue is None:
            return set()

        # some reasons to wait do not go away, such as a time limit above that of the partition
        job_ids = {job.job_id for job in jobs.values()}
        for job_id in job_ids:
            why = queue.get(job_id, "")
            if why in NEVER:
                raise RopeconvError(
                    f"Slurm never starts the jobs ({why}); give [executor] {NEVER[why]}"
                )

        missing_before = self.missing
        self.missing = job_ids - queue.keys()
        return self.missing & missing_before

    def cancel(self, jobs: Sequence[Job]) -> None:
        """End jobs of submitit."""
        if not jobs:
            return
        identifiers = sorted(job.job_id for job in jobs)
        subprocess.run(["scancel", *identifiers], capture_output=True, check=False)


def queued_jobs() -> dict[str, str] | None:
    """Return why the jobs of this user wait, by their names.

    The names are as `12` or `12_3`. Jobs that run have a reason too, `None` in Slurm's words.

    Returns:
        The reasons; None where Slurm does not answer.
    """
    # a line is "12_3 Resources": the number of the job (with that in its array), and the reason
    command = ["squeue", f"--user={os.getuid()}", "--noheader", "--array", "--format=%i %r"]
    answer = subprocess.run(command, capture_output=True, text=True, check=False)
    if answer.returncode != 0:
        return None
    reasons = {}
    for line in answer.stdout.splitlines():
        name, _, why = line.partition(" ")
        reasons[name] = why.strip()
    return reasons


class Slurm(Executor):
    """A Slurm cluster whose nodes see the same files."""

    def __init__(
        self,
        folder: Path,
        at_once: int = 0,
        cpus: float = 1,
        gpus: float = 0,
        parameters: Mapping[str, object] | None = None,
        timeout: str = "2h",
    ) -> None:
        """Describe the jobs; nothing is submitted yet.

        Args:
            folder: The folder of logs and results.
            at_once: Jobs that run at a time; 0 for as many as Slurm lets.
            cpus: The CPUs of each job.
            gpus: The GPUs of each job.
            parameters: Further parameters of submitit's `AutoExecutor.update_parameters`, without
                the prefix `slurm_`: {"partition": "gpu"} for `slurm_partition="gpu"`.
            timeout: The time limit of each job, such as "2h".

        Raises:
            UsageError: The timeout is not a time.
            RopeconvError: submitit is not installed.
        """
        require("submitit", "running on Slurm")
        self.folder = folder
        self.at_once = at_once
        self.parameters: dict[str, object] = {
            "cpus_per_task": max(1, round(cpus)),
            "gpus_per_node": round(gpus),
            "timeout_min": minutes(timeout),
        }
        self.parameters |= parameters or {}

    @contextmanager
    def pool(self, factory: Factory, retries: int = 2) -> Iterator[Pool]:
        """Yield a function that runs items as jobs of Slurm.

        Args:
            factory: Makes the worker that runs items, once in each job.
            retries: How often an item is submitted again after its job was killed.

        Raises:
            UsageError: submitit does not have a parameter in the plan file.
            RopeconvError: This machine has no Slurm.
        """
        import submitit

        try:
            executor = submitit.AutoExecutor(folder=self.folder, cluster="slurm")
            parameters = self._submitit_parameters(executor)  # {"slurm_partition": "gpu", ...}
            executor.update_parameters(**parameters)
        except (NameError, TypeError) as problem:  # NameError: submitit's, for an unknown parameter
            raise UsageError(
                f"submitit does not accept [executor.slurm] ({problem}); correct it"
            ) from None
        except RuntimeError as problem:
            raise RopeconvError(
                f"Slurm is not here ({problem}); run it on a login node, or leave --on out"
            ) from None
        # `call(factory, item)` runs in each job: it makes a worker, and runs the item with it
        run_item = partial(call, pickle.dumps(factory))

        # the pool is a function of items, which yields the index and the result of each
        yield partial(array_results, executor, run_item, retries, Queue())

    def _submitit_parameters(self, executor: SubmititExecutor) -> dict[str, object]:
        """Return the parameters of the jobs as submitit names them.

        submitit has some parameters for every cluster; those of Slurm begin with slurm_.
        """
        of_every_cluster = executor._typed_parameters()
        parameters: dict[str, object] = {"name": "ropeconv"}
        parameters["slurm_array_parallelism"] = self.at_once or MOST_JOBS_OF_ARRAY
        for key, value in self.parameters.items():
            if key not in of_every_cluster:
                key = f"slurm_{key}"
            parameters[key] = value
        return parameters


def minutes(timeout: str) -> int:
    """Return a time such as "2h" or "1d" in whole minutes, 1 at least.

    Raises:
        UsageError: The text is not a time.
    """
    return max(1, round(parse_duration(timeout, TIME_UNITS) / 60))


def array_results(
    executor: SubmititExecutor,
    call: Callable[[object], object],
    retries: int,
    queue: Queue,
    items: Sequence[object],
) -> Results:
    """Run items as jobs of Slurm, and again if their jobs end without a result.

    Args:
        executor: The executor of submitit.
        call: Runs an item.
        retries: How often an item is submitted again after its job was killed.
        queue: Says which jobs have ended.
        items: The things to run, such as jobs of a plan file.

    Yields:
        The index and the result of each item; a `Failure` if all its jobs were killed.
    """
    # Each round submits items: the first round all of them, a later round the items whose jobs were
    # killed in the round before.
    pending: dict[int, Job] = {}  # the job of each item, by the index of the item
    items_of_round = list(range(len(items)))
    rounds = retries + 1
    try:
        for round_number in range(1, rounds + 1):
            for start in range(0, len(items_of_round), MOST_JOBS_OF_ARRAY):
                indices = items_of_round[start : start + MOST_JOBS_OF_ARRAY]
                jobs = _submit(executor, call, [items[index] for index in indices])
                pending |= dict(zip(indices, jobs, strict=True))

            killed = list[int]()  # the items whose jobs have no result
            while pending:
                for index in queue.ended(pending):
                    # submitit writes the result of a job to a file, unless Slurm has killed the job
                    job = pending.pop(index)
                    if job.paths.result_pickle.exists() and job.exception() is None:
                        yield index, job.result()
                    elif round_number < rounds:
                        killed.append(index)
                    else:
                        yield index, worker_lost(times=rounds, log=str(job.paths.stderr))
                if pending:
                    time.sleep(SECONDS_BETWEEN_LOOKS)

            if not killed:
                break
            items_of_round = killed
    finally:
        queue.cancel(list(pending.values()))


def _submit(
    executor: SubmititExecutor, call: Callable[[object], object], items: Sequence[object]
) -> list[Job]:
    """Submit items as one array, and return its jobs.

    Args:
        executor: The executor of submitit.
        call: Runs an item, on a node of the cluster.
        items: The items, one for each job.

    Raises:
        RopeconvError: Slurm refuses them.
    """
    from submitit.core.utils import FailedJobError

    try:
        return list(executor.map_array(call, items))
    except FailedJobError as problem:
        # sbatch says why in its last line
        lines = str(problem).strip().splitlines()
        last_line = lines[-1] if lines else ""
        message = last_line.removeprefix("sbatch: error: ")
        raise RopeconvError(
            f"Slurm does not accept the jobs ({message}); correct [executor.slurm]"
        ) from None
