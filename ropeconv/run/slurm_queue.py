"""Which jobs have ended: by submitit for processes of this machine, and by Slurm's queue."""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any

from ..errors import RopeconvError

LOOK = 20.0
"""Seconds between two questions to Slurm; a result has as long to be seen here after its job has left the queue."""
NEVER = {
    "PartitionTimeLimit": "a shorter timeout",
    "AssocMaxWallDurationPerJobLimit": "a shorter timeout",
    "QOSMaxWallDurationPerJobLimit": "a shorter timeout",
    "PartitionNodeLimit": "another partition in [executor.slurm]",
    "BadConstraints": "fewer cpus and gpus, or other parameters in [executor.slurm]",
    "InvalidAccount": "another account in [executor.slurm]",
    "InvalidQOS": "another qos in [executor.slurm]",
}
"""Why jobs wait for ever, and what [executor] needs: https://slurm.schedmd.com/job_reason_codes.html."""


class Watch:
    """Jobs as submitit knows them."""

    def ended(self, jobs: Mapping[int, Any]) -> list[int]:
        """The numbers of those that have ended, with a result or without.

        jobs: of submitit, by number. Raises RopeconvError where one will never start.
        """
        return [number for number, job in jobs.items() if job.done()]

    def cancel(self, jobs: Sequence[Any]) -> None:
        """Ends jobs. jobs: of submitit."""
        for job in jobs:
            job.cancel(check=False)


class Queue(Watch):
    """Jobs of Slurm: those without a result have ended that two looks, one after the other, miss in the queue.

    submitit asks `sacct`, which knows of no job where accounting is off, as it is by default, and asks every ten
    minutes in long runs. `squeue` always knows: https://slurm.schedmd.com/squeue.html.
    """

    def __init__(self) -> None:
        self.next, self.missed = time.monotonic() + LOOK, set[str]()

    def ended(self, jobs: Mapping[int, Any]) -> list[int]:
        gone: set[str] = set()
        if time.monotonic() >= self.next:
            self.next = time.monotonic() + LOOK
            waiting = queued()
            if waiting is not None:
                own = {job.job_id for job in jobs.values()}
                for why in {waiting.get(name, "") for name in own} & NEVER.keys():
                    raise RopeconvError(f"Slurm never starts the jobs ({why}); give [executor] {NEVER[why]}")
                missing = own - waiting.keys()
                gone, self.missed = missing & self.missed, missing
        for folder in {job.paths.folder for job in jobs.values()}:
            with suppress(OSError):  # a client of NFS asks its server again then, as `Job.done` has it
                folder.chmod(folder.stat().st_mode)
        return [number for number, job in jobs.items() if job.job_id in gone or job.paths.result_pickle.exists()]

    def cancel(self, jobs: Sequence[Any]) -> None:
        if jobs:
            subprocess.run(["scancel", *sorted(job.job_id for job in jobs)], capture_output=True, check=False)


def queued() -> dict[str, str] | None:
    """Jobs of this user that wait or run, as `12` or `12_3`, and why they wait; None where Slurm does not answer."""
    asked = ["squeue", f"--user={os.getuid()}", "--noheader", "--array", "--format=%i %r"]
    answer = subprocess.run(asked, capture_output=True, text=True, check=False)
    lines = (line.partition(" ") for line in answer.stdout.splitlines())
    return {name: why.strip() for name, _, why in lines} if answer.returncode == 0 else None
