"""A real Slurm, on whose nodes jobs are killed, end by their time limit, and are cancelled."""

import getpass
import os
import shutil
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from ropeconv.features.evaluation.result import read_result
from ropeconv.features.run.executors import slurm as slurm_queue
from ropeconv.features.run.executors.slurm import Slurm

from ....support.in_process import command
from ....support.run_plans import models, plan_text
from ....support.waiting import free_ports, until
from ..plans import EVAL, lines
from .workers import all_ends

pytest.importorskip("submitit")
pytestmark = pytest.mark.nightly
ROOT = Path(__file__).parents[4]
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
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
SlurmdParameters=config_overrides
SchedulerParameters=sched_interval=1,batch_sched_delay=0
NodeName={host} NodeAddr=127.0.0.1 CPUs=2
PartitionName=all Nodes={host} Default=YES MaxTime=INFINITE
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
    """The cluster, while it is entered. Skips the test where Slurm is not installed, or does not
    start here.
    """
    path = f"{os.environ['PATH']}:/usr/sbin:/sbin"
    if any(shutil.which(name, path=path) is None for name in PROGRAMS):
        pytest.skip("slurm is not installed: ./scripts/setup test --system")
    host = socket.gethostname().partition(".")[0]
    folder = Path(tempfile.mkdtemp(prefix="slurm-"))
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


@pytest.fixture(scope="module", autouse=True)
def cluster() -> Iterator[None]:
    with slurm(), pytest.MonkeyPatch.context() as patch:
        patch.setenv(
            "PYTHONPATH", ":".join([str(ROOT), *filter(None, sys.path)])
        )  # sbatch takes it to the nodes
        yield


@pytest.fixture
def asking(monkeypatch: pytest.MonkeyPatch) -> None:
    """Slurm is asked often."""
    monkeypatch.setattr(slurm_queue, "SECONDS_BETWEEN_QUESTIONS", 2.0)


def test_results_failures_and_a_killed_job(
    asking: None, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    reason = all_ends(Slurm(tmp_path / "slurm"), tmp_path).reason
    assert "Killed" in Path(reason.partition("its output is in ")[2].partition(";")[0]).read_text()
    assert capfd.readouterr().err == "", "neither Slurm nor submitit speaks in between"


def test_a_plan_with_weights_and_evaluations(tmp_path: Path) -> None:
    place = models(tmp_path, "a")
    limits = '[executor]\non = "slurm"\ntimeout = "30m"\n'
    (place / "plan.toml").write_text(plan_text("apply eval", limits + EVAL))
    command(place, "run", "plan.toml", code=0)
    assert [line["failed"] for line in lines(place)] == [""] * 3
    assert {
        row.name for row in read_result(next((place / "plan" / "eval").glob("*.json"))).rows
    } > {"base"}
    assert any((place / "plan" / "slurm").glob("*submitted*"))
