"""Processes of this machine: results as they end, a killed one retried alone, a GPU of its own for each."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import pytest

from ropeconv.errors import UsageError
from ropeconv.run.executors import Failure, executor_of
from ropeconv.run.executors.local import Local, gpus

from .workers import Broken, Squares


def test_results_failures_and_a_killed_worker(tmp_path: Path) -> None:
    items = [1, "bad", 2, "once", "odd", 3, "fatal", 4]
    with Local(2).pool(partial(Squares, str(tmp_path)), retries=2) as pool:
        found = dict(pool.run(items))
    assert [found[index] for index in (0, 2, 5, 7)] == [1, 4, 9, 16]
    assert found[1] == Failure("it is bad; take another")
    assert found[4] == Failure("unexpected ZeroDivisionError: of its own")
    assert found[3][0] == "once"
    assert found[6].lost
    assert found[6].reason.startswith("3 workers, one after the other, ended while it ran")
    runs = {path.name: len(path.read_text()) for path in tmp_path.iterdir()}
    assert runs == {f"run-{item}": {"once": 2, "fatal": 3}.get(item, 1) for item in map(str, items)}


def test_a_worker_is_made_once_and_what_has_not_begun_is_dropped(tmp_path: Path) -> None:
    with Local(1).pool(partial(Squares, str(tmp_path))) as pool:
        results = pool.run(["a", "b", "slow", "c", "d", "e"])
        assert [next(results)[1], next(results)[1]] == [("a", 1), ("b", 2)]
        results.close()
    assert not (tmp_path / "run-e").exists()


def test_a_worker_that_cannot_be_made_is_a_failure_of_each_item() -> None:
    with Local(1).pool(Broken) as pool:
        assert dict(pool.run([1, 2])) == dict.fromkeys((0, 1), Failure("no model is here; give one"))


def test_each_process_has_a_gpu_of_its_own_also_after_a_kill(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "3,GPU-7")
    assert (gpus(), Local().at_once) == (["3", "GPU-7"], 2)
    with Local().pool(partial(Squares, str(tmp_path))) as pool:
        first = [found for _, found in pool.run(["env", "env"])]
        assert {device for device, _ in first} == {"3", "GPU-7"}
        dict(pool.run(["once"]))
        second = [found for _, found in pool.run(["env", "env"])]
    assert {device for device, _ in second} == {"3", "GPU-7"}
    assert {pid for _, pid in second} != {pid for _, pid in first}


def test_names_of_places(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    assert executor_of("7").at_once == 7
    assert executor_of("local", at_once=3).at_once == 3
    assert executor_of("local", without_gpus=4).at_once == 4
    with pytest.raises(UsageError, match="'cloud' is no place to run; give local"):
        executor_of("cloud")
