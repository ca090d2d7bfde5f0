"""A real Slurm, on whose nodes jobs are killed, end by their time limit, and are cancelled."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import pytest

from ropeconv.errors import RopeconvError
from ropeconv.evaluate.result import read_result
from ropeconv.run import slurm_queue
from ropeconv.run.executors import Failure
from ropeconv.run.executors.slurm import Slurm

from ...support.in_process import command
from ...support.waiting import until
from ..plans import EVAL, lines, models, plan_text
from .slurm_cluster import slurm
from .workers import Squares, all_ends

pytest.importorskip("submitit")
pytestmark = pytest.mark.nightly
ROOT = Path(__file__).parents[3]


@pytest.fixture(scope="module", autouse=True)
def cluster() -> Iterator[None]:
    with slurm(), pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", ":".join([str(ROOT), *filter(None, sys.path)]))  # sbatch takes it to the nodes
        yield


@pytest.fixture
def asking(monkeypatch: pytest.MonkeyPatch) -> None:
    """Slurm is asked often."""
    monkeypatch.setattr(slurm_queue, "LOOK", 2.0)


def test_results_failures_and_a_killed_job(asking: None, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    reason = all_ends(Slurm(tmp_path / "slurm"), tmp_path).reason
    assert "Killed" in Path(reason.partition("what it said is in ")[2].partition(";")[0]).read_text()
    assert capfd.readouterr().err == "", "neither Slurm nor submitit speaks in between"


def test_a_job_that_waits_is_not_taken_for_one_that_ended(asking: None, tmp_path: Path) -> None:
    """Two of three jobs find room at a time, and each runs for longer than two looks at the queue."""
    with Slurm(tmp_path / "slurm").pool(partial(Squares, str(tmp_path)), retries=0) as pool:
        found = dict(pool.run(["nap-1", "nap-2", "nap-3"]))
    assert found == {number: (f"nap-{number + 1}", 1) for number in range(3)}


def test_the_time_limit_is_named(tmp_path: Path) -> None:
    late = {"timeout_min": 2, "signal_delay_s": 80}  # Slurm looks at limits twice a minute
    with Slurm(tmp_path / "slurm", given=late).pool(partial(Squares, str(tmp_path)), retries=1) as pool:
        found = dict(pool.run(["long"]))
    assert found[0] == Failure("the time limit of the job on Slurm ended: give [executor] a longer timeout")


def test_what_slurm_refuses_is_a_sentence(tmp_path: Path, tiny: Callable[[str], Path]) -> None:
    place = models(tmp_path, tiny("llama"), "ab")
    (place / "plan.toml").write_text(plan_text("apply", '[executor]\nslurm = { partition = "nowhere" }\n'))
    done = command(place, "run", "plan.toml", "--on", "slurm", code=1)
    for words in ("not take the jobs (Batch job submission failed: Invalid partition", "correct [executor.slurm]"):
        assert words in done.stderr


def test_what_slurm_never_starts_is_a_sentence_and_leaves_the_queue(asking: None, tmp_path: Path) -> None:
    pool = Slurm(tmp_path / "slurm", given={"partition": "short"}).pool(partial(Squares, str(tmp_path)))
    said = r"never starts the jobs \(PartitionTimeLimit\); give .* a shorter timeout"
    with pytest.raises(RopeconvError, match=said), pool as opened:
        list(opened.run([1, 2]))
    assert slurm_queue.queued() == {}


def test_a_plan_with_weights_and_evaluations(tmp_path: Path, tiny: Callable[[str], Path]) -> None:
    place = models(tmp_path, tiny("llama"), "a")
    limits = '[executor]\non = "slurm"\ntimeout = "30m"\n'
    (place / "plan.toml").write_text(plan_text("apply eval", limits + EVAL))
    command(place, "run", "plan.toml", code=0)
    assert [one["failed"] for one in lines(place)] == [""] * 3
    assert {row.name for row in read_result(next((place / "plan" / "eval").glob("*.json"))).rows} > {"base"}
    assert any((place / "plan" / "slurm").glob("*submitted*"))


def test_ctrl_c_cancels_what_is_left(tmp_path: Path, tiny: Callable[[str], Path]) -> None:
    place = models(tmp_path, tiny("llama"), "abc")
    (place / "plan.toml").write_text(plan_text("apply eval", EVAL))
    running = subprocess.Popen(
        [sys.executable, "-m", "ropeconv", "run", "plan.toml", "--on", "slurm"], cwd=place, stderr=subprocess.PIPE
    )
    until(lambda: len(slurm_queue.queued() or {}) >= 3, "the queue")
    running.send_signal(signal.SIGINT)
    assert running.wait(60) == 130
    until(lambda: slurm_queue.queued() == {}, "the end of all jobs")
