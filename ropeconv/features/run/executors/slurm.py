"""Slurm: every item is a job of an array, submitted by submitit
(https://github.com/facebookincubator/submitit).
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

from ..plan_file import DAYS
from .executor import Executor, Factory, Pool, Results, call, lost

if TYPE_CHECKING:
    from submitit import Executor as SubmititExecutor
    from submitit import Job

LOOK = 20.0
"""Seconds between two questions to Slurm; a result has as long to be seen here after its job has
left the queue.
"""
NEVER = {
    "PartitionTimeLimit": "a shorter timeout",
    "AssocMaxWallDurationPerJobLimit": "a shorter timeout",
    "QOSMaxWallDurationPerJobLimit": "a shorter timeout",
    "PartitionNodeLimit": "another partition in [executor.slurm]",
    "BadConstraints": "fewer cpus and gpus, or other parameters in [executor.slurm]",
    "InvalidAccount": "another account in [executor.slurm]",
    "InvalidQOS": "another qos in [executor.slurm]",
}
"""Why jobs wait for ever, and what [executor] needs:
https://slurm.schedmd.com/job_reason_codes.html.
"""


class Queue:
    """Jobs of Slurm: those without a result have ended that two looks, one after the other, miss in
    the queue.

    submitit asks `sacct`, which knows of no job where accounting is off (the default), and asks
    every ten minutes in long runs. `squeue` always knows: https://slurm.schedmd.com/squeue.html.
    """

    def __init__(self) -> None:
        self.next = time.monotonic() + LOOK
        self.missed = set[str]()

    def ended(self, jobs: Mapping[int, Job]) -> list[int]:
        """The numbers of those that have ended, with a result or without.

        jobs: of submitit, by number. Raises RopeconvError where one will never start.
        """
        gone: set[str] = set()
        if time.monotonic() >= self.next:
            self.next = time.monotonic() + LOOK
            waiting = queued()
            if waiting is not None:
                identifiers = {job.job_id for job in jobs.values()}
                for why in {waiting.get(name, "") for name in identifiers} & NEVER.keys():
                    raise RopeconvError(
                        f"Slurm never starts the jobs ({why}); give [executor] {NEVER[why]}"
                    )
                missing = identifiers - waiting.keys()
                gone = missing & self.missed
                self.missed = missing
        for folder in {job.paths.folder for job in jobs.values()}:
            with suppress(
                OSError
            ):  # a client of NFS asks its server again then, as `Job.done` has it
                folder.chmod(folder.stat().st_mode)
        return [
            number
            for number, job in jobs.items()
            if job.job_id in gone or job.paths.result_pickle.exists()
        ]

    def cancel(self, jobs: Sequence[Job]) -> None:
        """Ends jobs. jobs: of submitit."""
        if jobs:
            subprocess.run(
                ["scancel", *sorted(job.job_id for job in jobs)], capture_output=True, check=False
            )


def queued() -> dict[str, str] | None:
    """Jobs of this user that wait or run, as `12` or `12_3`, and why they wait; None where Slurm
    does not answer.
    """
    command = ["squeue", f"--user={os.getuid()}", "--noheader", "--array", "--format=%i %r"]
    answer = subprocess.run(command, capture_output=True, text=True, check=False)
    lines = (line.partition(" ") for line in answer.stdout.splitlines())
    return {name: why.strip() for name, _, why in lines} if answer.returncode == 0 else None


LARGEST = 1_000
"""Jobs of an array: Slurm's MaxArraySize is 1,001 by default."""
POLL = 2.0
"""Seconds between two looks for results."""


class Slurm(Executor):
    """A Slurm cluster whose nodes see the same files.

    folder: of logs and results. at_once: jobs that run at a time, 0 for as many as Slurm lets.
    cpus, gpus, timeout: of each, the latter such as "2h". parameters: more of
    `AutoExecutor.update_parameters`, those of Slurm without their `slurm_`.
    """

    def __init__(
        self,
        folder: Path,
        at_once: int = 0,
        cpus: float = 1,
        gpus: float = 0,
        parameters: Mapping[str, object] | None = None,
        timeout: str = "2h",
    ) -> None:
        require("submitit", "running on Slurm")
        self.folder, self.at_once = folder, at_once
        resources = {"cpus_per_task": max(1, round(cpus)), "gpus_per_node": round(gpus)}
        self.parameters = {**resources, "timeout_min": minutes(timeout), **(parameters or {})}

    @contextmanager
    def pool(self, factory: Factory, retries: int = 2) -> Iterator[Pool]:
        import submitit

        try:
            executor = submitit.AutoExecutor(folder=self.folder, cluster="slurm")
            general = executor._typed_parameters()
            executor.update_parameters(
                name="ropeconv",
                slurm_array_parallelism=self.at_once or LARGEST,
                **{
                    key if key in general else f"slurm_{key}": value
                    for key, value in self.parameters.items()
                },
            )
        except (NameError, TypeError) as problem:
            raise UsageError(
                f"submitit does not accept [executor.slurm] ({problem}); correct it"
            ) from None
        except RuntimeError as problem:
            raise RopeconvError(
                f"Slurm is not here ({problem}); run it on a login node, or leave --on out"
            ) from None
        yield partial(
            array_results, executor, partial(call, pickle.dumps(factory)), retries, Queue()
        )


def minutes(timeout: str) -> int:
    """A time such as "2h" or "1d" in whole minutes, 1 at least. Raises UsageError for other
    texts.
    """
    return max(1, round(parse_duration(timeout, DAYS) / 60))


def array_results(
    executor: SubmititExecutor,
    call: Callable[[object], object],
    retries: int,
    queue: Queue,
    items: Sequence[object],
) -> Results:
    """Run items as arrays of jobs. call: runs an item. Others: as in `Executor`."""
    pending: dict[int, Job] = {}
    remaining = list(range(len(items)))
    try:
        for number in range(retries + 1):
            for start in range(0, len(remaining), LARGEST):
                part = remaining[start : start + LARGEST]
                pending |= dict(
                    zip(
                        part,
                        _submitted(executor, call, [items[index] for index in part]),
                        strict=True,
                    )
                )
            remaining = []
            while pending:
                for index in queue.ended(pending):
                    job = pending.pop(index)
                    if job.paths.result_pickle.exists() and job.exception() is None:
                        yield index, job.result()
                    elif number < retries:
                        remaining.append(index)
                    else:
                        yield index, lost(number + 1, str(job.paths.stderr))
                if pending:
                    time.sleep(POLL)
            if not remaining:
                return
    finally:
        queue.cancel(list(pending.values()))


def _submitted(
    executor: SubmititExecutor, call: Callable[[object], object], items: Sequence[object]
) -> list[Job]:
    from submitit.core.utils import FailedJobError

    try:
        return list(executor.map_array(call, items))
    except FailedJobError as problem:
        message = "".join(str(problem).strip().splitlines()[-1:]).removeprefix("sbatch: error: ")
        raise RopeconvError(
            f"Slurm does not accept the jobs ({message}); correct [executor.slurm]"
        ) from None
