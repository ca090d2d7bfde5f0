"""Slurm through submitit, whose local cluster runs the same jobs as processes of this machine."""

import os
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from ropeconv.errors import UsageError
from ropeconv.features.run.executors import executor_of, slurm
from ropeconv.features.run.executors.slurm import Queue, Slurm, array_results, minutes
from ropeconv.features.run.plan_file import ExecutorTable
from ropeconv.rope.errors import RopeconvError

from .workers import Squares, all_ends

submitit = pytest.importorskip("submitit")


class Known(Queue):
    """Jobs as submitit knows them, without Slurm."""

    def ended(self, jobs: Any) -> list[int]:
        return [number for number, job in jobs.items() if job.done()]

    def cancel(self, jobs: Any) -> None:
        for job in jobs:
            job.cancel(check=False)


@pytest.fixture
def here(monkeypatch: pytest.MonkeyPatch) -> None:
    """submitit runs jobs as processes of this machine."""
    stock = submitit.AutoExecutor
    monkeypatch.setattr(
        submitit, "AutoExecutor", lambda folder, cluster: stock(folder, cluster="local")
    )
    monkeypatch.setattr(slurm, "Queue", Known)


def test_results_failures_and_a_killed_job(
    here: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(slurm, "SECONDS_BETWEEN_LOOKS", 0.05)
    monkeypatch.setenv("PYTHONPATH", ":".join(filter(None, sys.path)))
    all_ends(Slurm(tmp_path / "slurm", parameters={"timeout_min": 5}), tmp_path)


def test_arrays_are_no_larger_than_slurm_takes_and_the_rest_is_cancelled(tmp_path: Path) -> None:
    arrays: list[int] = []
    cancelled: list[int] = []
    (tmp_path / "result").touch()
    paths = SimpleNamespace(result_pickle=tmp_path / "result")

    def map_array(call: Any, items: list[int]) -> list[Any]:
        arrays.append(len(items))
        return [
            SimpleNamespace(
                done=lambda item=item: item % 2 == 0,
                exception=lambda: None,
                result=lambda item=item: item,
                cancel=lambda check, item=item: cancelled.append(item),
                paths=paths,
            )
            for item in items
        ]

    results = array_results(SimpleNamespace(map_array=map_array), None, 0, Known(), range(2500))
    assert [next(results) for _ in range(3)] == [(0, 0), (2, 2), (4, 4)]
    assert arrays == [1000, 1000, 500]
    results.close()
    assert len(cancelled) == 2500 - 3


@pytest.mark.parametrize(
    ("timeout", "expected"), [("2h", 120), ("90m", 90), ("1.5h", 90), ("1d", 1440), ("5s", 1)]
)
def test_a_timeout_is_minutes_for_slurm(timeout: str, expected: int, tmp_path: Path) -> None:
    assert minutes(timeout) == expected
    executor = executor_of("slurm", ExecutorTable(timeout=timeout), folder=tmp_path)
    assert isinstance(executor, Slurm)
    assert executor.parameters["timeout_min"] == expected


def test_parameters_that_slurm_does_not_have_are_refused(here: None, tmp_path: Path) -> None:
    wrong = Slurm(tmp_path, parameters={"partitions": "long"})
    with (
        pytest.raises(UsageError, match=r"\[executor.slurm\]"),
        wrong.pool(Squares),
    ):  # type: ignore[arg-type]
        pass


def test_settings_and_what_is_wrong_with_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    table = ExecutorTable(gpus=1, cpus=4, slurm={"partition": "long", "timeout_min": 90})
    executor = executor_of("slurm", table, 7, folder=tmp_path)
    assert isinstance(executor, Slurm)
    assert executor.parameters == {
        "cpus_per_task": 4,
        "gpus_per_node": 1,
        "partition": "long",
        "timeout_min": 90,
    }
    with (
        pytest.raises(RopeconvError, match="Slurm .*login node"),
        executor.pool(Squares),
    ):  # type: ignore[arg-type]
        pass
    with pytest.raises(UsageError, match="'slurm' is not a place"):
        executor_of("slurm")


@pytest.mark.parametrize(
    ("squeue", "ended"),
    [("exit 0", [[], [5], [5]]), ("echo 77 None", [[], [], []]), ("exit 1", [[], [], []])],
    ids=["two looks miss it", "it waits", "Slurm does not answer"],
)
def test_a_job_has_ended_that_two_looks_at_the_queue_miss(
    squeue: str, ended: list[list[int]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = SimpleNamespace(
        job_id="77", paths=SimpleNamespace(folder=tmp_path, result_pickle=tmp_path / "none")
    )
    (tmp_path / "squeue").write_text(f"#!/bin/sh\n{squeue}\n")
    (tmp_path / "squeue").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    monkeypatch.setattr(slurm, "SECONDS_BETWEEN_QUESTIONS", 0.0)
    queue = Queue()
    assert [queue.ended({5: job}) for _ in ended] == ended
