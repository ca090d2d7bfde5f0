"""Processes of this machine: results as they end, a killed one retried alone, a GPU of its own for
each.
"""

import os
import signal
import time
from functools import partial
from pathlib import Path

import pytest

from ropeconv.features.run.executors import local
from ropeconv.features.run.executors.executor import Failure
from ropeconv.features.run.executors.local import REASON_OF_HANG, Local, gpus

from .workers import Broken, Squares, all_ends, end_at_once, end_first


def test_results_failures_and_a_killed_worker(tmp_path: Path) -> None:
    all_ends(Local(2), tmp_path)


def test_a_worker_is_made_once_and_what_has_not_begun_is_dropped(tmp_path: Path) -> None:
    with Local(1).pool(partial(Squares, str(tmp_path))) as pool:
        results = pool(["a", "b", "slow", "c", "d", "e"])
        assert [next(results)[1], next(results)[1]] == [("a", 1), ("b", 2)]
        results.close()
    assert not (tmp_path / "run-e").exists()


def test_a_worker_that_cannot_be_made_is_a_failure_of_each_item() -> None:
    with Local(1).pool(Broken) as pool:
        assert dict(pool([1, 2])) == dict.fromkeys((0, 1), Failure("no model is here; give one"))


def test_each_process_has_a_gpu_of_its_own_also_after_a_kill(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "3,GPU-7")
    assert (gpus(), Local().at_once) == (["3", "GPU-7"], 2)
    with Local().pool(partial(Squares, str(tmp_path))) as pool:
        first = [result for _, result in pool(["env", "env"])]
        assert {device for device, _ in first} == {"3", "GPU-7"}
        dict(pool(["once"]))
        second = [result for _, result in pool(["env", "env"])]
    assert {device for device, _ in second} == {"3", "GPU-7"}
    assert {pid for _, pid in second} != {pid for _, pid in first}


def test_a_process_that_does_not_answer_is_killed_once(tmp_path: Path) -> None:
    executor = Local(1)
    begun = time.monotonic()
    executor.longest = lambda item: 2.0
    with executor.pool(partial(Squares, str(tmp_path)), retries=2) as pool:
        results = dict(pool([2, "long", 3]))
    assert results == {0: 4, 1: Failure(REASON_OF_HANG), 2: 9}
    assert (tmp_path / "run-long").read_text() == "x"
    assert time.monotonic() - begun < 120


def test_a_worker_that_is_killed_while_it_waits_is_replaced(tmp_path: Path) -> None:
    with Local(1).pool(partial(Squares, str(tmp_path))) as pool:
        [(_, waiting)] = pool(["pid"])
        os.kill(waiting, signal.SIGKILL)
        assert dict(pool([2, 3, "bad"])) == {
            0: 4,
            1: 9,
            2: Failure("it is bad; take another"),
        }
        [(_, after)] = pool(["pid"])
    assert after != waiting


def test_a_worker_that_ends_as_it_starts_is_replaced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(local, "prepare", end_first)
    with Local(1).pool(partial(Squares, str(tmp_path))) as pool:
        assert dict(pool([2, 3])) == {0: 4, 1: 9}


def test_workers_that_never_start_are_a_failure_of_each_item(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(local, "prepare", end_at_once)
    with Local(2).pool(partial(Squares, str(tmp_path)), retries=1) as pool:
        results = dict(pool([2, 3]))
        again = dict(pool([4]))
    assert list(results) == [0, 1]
    for failure in (*results.values(), *again.values()):
        assert isinstance(failure, Failure)
        assert "before" in failure.reason
        assert "unexpected" not in failure.reason
    assert not list(tmp_path.iterdir())
