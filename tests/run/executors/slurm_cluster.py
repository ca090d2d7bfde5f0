"""A Slurm cluster of this machine: its own munged, slurmctld and slurmd, without accounting, as Slurm is by default."""

from __future__ import annotations

import getpass
import os
import shutil
import socket
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from ...support.waiting import free_ports, until

PROGRAMS = ("munged", "slurmctld", "slurmd", "srun", "sbatch", "squeue", "scancel")
CONFIG = """\
ClusterName=here
SlurmctldHost={host}(127.0.0.1)
SlurmUser={user}
SlurmdUser={user}
AuthType=auth/munge
AuthInfo=socket={folder}/munge.sock
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd.pid
SlurmctldPort={ports[0]}
SlurmdPort={ports[1]}
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
SlurmdParameters=config_overrides
SchedulerParameters=sched_interval=1,batch_sched_delay=0
ReturnToService=2
MpiDefault=none
NodeName={host} NodeAddr=127.0.0.1 CPUs=2
PartitionName=all Nodes={host} Default=YES MaxTime=INFINITE
PartitionName=short Nodes={host} MaxTime=5
"""


@contextmanager
def started(command: list[str], log: Path) -> Iterator[None]:
    with log.open("wb") as file:
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=file, stderr=file)
        try:
            yield
        finally:
            process.terminate()
            process.wait(30)


def said(*command: str) -> str:
    return subprocess.run(command, capture_output=True, text=True, check=False).stdout.strip()


@contextmanager
def slurm() -> Iterator[None]:
    """The cluster, while it is entered. Skips the test where Slurm is not installed, or does not start here."""
    path = f"{os.environ['PATH']}:/usr/sbin:/sbin"
    if any(shutil.which(name, path=path) is None for name in PROGRAMS):
        pytest.skip("slurm is not installed: ./scripts/setup test --system")
    host, folder = socket.gethostname().partition(".")[0], Path(tempfile.mkdtemp(prefix="slurm-"))
    folder.chmod(0o755)  # of munge's socket
    for name in ("state", "spool"):
        (folder / name).mkdir()
    key = folder / "munge.key"
    key.write_bytes(os.urandom(1024))
    key.chmod(0o400)
    (folder / "slurm.conf").write_text(
        CONFIG.format(host=host, user=getpass.getuser(), folder=folder, ports=free_ports(2))
    )
    munged = ["--foreground", "--force", f"--key-file={key}", f"--socket={folder}/munge.sock"]
    munged += [f"--{name}-file={folder}/munge.{name}" for name in ("pid", "log", "seed")]
    with pytest.MonkeyPatch.context() as patch, ExitStack() as stack:
        stack.callback(shutil.rmtree, folder, ignore_errors=True)
        patch.setenv("PATH", path)
        patch.setenv("SLURM_CONF", str(folder / "slurm.conf"))
        stack.enter_context(started(["munged", *munged], folder / "munged.out"))
        stack.enter_context(started(["slurmctld", "-D", "-c"], folder / "slurmctld.out"))
        stack.enter_context(started(["slurmd", "-D"], folder / "slurmd.out"))
        try:
            until(lambda: said("sinfo", "--noheader", "--format=%T") == "idle", "an idle node")
        except AssertionError:
            logs = "".join(file.read_text() for file in folder.glob("slurm*.out"))
            pytest.skip(f"Slurm does not start here: {logs[-500:]}")
        yield
