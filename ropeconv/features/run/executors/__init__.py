"""Where units run: processes of this machine, a Ray cluster, Slurm."""

import re
from pathlib import Path

from ropeconv.errors import UsageError

from ..plan_file import ExecutorTable
from .executor import Executor
from .local import Local
from .ray import OWN_CLUSTER, RUNNING_CLUSTER, RayCluster
from .slurm import Slurm

ADDRESS = re.compile(rf"{OWN_CLUSTER}|{RUNNING_CLUSTER}|(?:ray://)?[\w.-]+:\d+")
KNOWN = "a number of processes, ray, auto, ray://HOST:PORT, HOST:PORT"


def executor_of(
    name: str,
    table: ExecutorTable | None = None,
    at_once: int = 0,
    without_gpus: int = 1,
    folder: Path | None = None,
) -> Executor:
    """Return the executor of a name: what runs items in this process, on a cluster, or by Slurm.

    Args:
        name: `local`, a number of processes, the address of a Ray cluster as in `RayCluster`, or
            `slurm`.
        table: The settings of a plan.
        at_once: How many items run at once, as in `Local` and `Slurm`.
        without_gpus: The number of processes on a machine without GPUs, as in `Local`.
        folder: The folder for what Slurm's jobs leave. None where Slurm cannot be used: its jobs do
            not keep a model from one item to the next.

    Raises:
        UsageError: The name is another one.
        RopeconvError: A package is not installed.
    """
    table = table or ExecutorTable()
    if name == "local":
        return Local(at_once, without_gpus)
    if re.fullmatch(r"[1-9]\d{0,3}", name):  # a number of processes
        return Local(int(name))
    if ADDRESS.fullmatch(name):
        return RayCluster(name, table.cpus, table.gpus)
    if name == "slurm" and folder is not None:
        return Slurm(
            folder,
            at_once=at_once,
            cpus=table.cpus,
            gpus=table.gpus,
            parameters=table.slurm,
            timeout=table.timeout,
        )

    known = KNOWN
    if folder is not None:
        known += ", slurm"
    raise UsageError(f"{name!r} is not a place to run; give local, {known}")
