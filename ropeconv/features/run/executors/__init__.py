"""Where units run: processes of this machine, a Ray cluster, Slurm."""

import re
from pathlib import Path

from ropeconv.errors import UsageError

from ..plan_file import ExecutorTable
from .executor import Executor
from .local import Local
from .ray import FOUND, OWN, RayCluster
from .slurm import Slurm

ADDRESS = re.compile(rf"{OWN}|{FOUND}|(?:ray://)?[\w.-]+:\d+")
KNOWN = "a number of processes, ray, auto, ray://HOST:PORT, HOST:PORT"


def executor_of(
    name: str,
    table: ExecutorTable | None = None,
    at_once: int = 0,
    without_gpus: int = 1,
    folder: Path | None = None,
) -> Executor:
    """The executor of a name.

    name: `local`, a number of processes, the address of a Ray cluster as in `RayCluster`, or
    `slurm`. table: settings of a plan. at_once, without_gpus: of processes of this machine, as in
    `Local`. folder: of what Slurm's jobs leave; None without Slurm, whose jobs keep no model from
    one item to the next. Raises UsageError for other names, RopeconvError where a package is
    missing.
    """
    table = table or ExecutorTable()
    if name == "local":
        return Local(at_once, without_gpus)
    if re.fullmatch(r"[1-9]\d{0,3}", name):
        return Local(int(name))
    if ADDRESS.fullmatch(name):
        return RayCluster(name, table.cpus, table.gpus)
    if name == "slurm" and folder is not None:
        return Slurm(folder, at_once, table.cpus, table.gpus, table.slurm, table.timeout)
    others = f"{KNOWN}, slurm" if folder is not None else KNOWN
    raise UsageError(f"{name!r} is not a place to run; give local, {others}")
