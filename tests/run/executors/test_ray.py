"""A Ray cluster of a head and two nodes: a killed worker and a node that goes away lose nothing."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from ropeconv.engines import Progress
from ropeconv.errors import RopeconvError
from ropeconv.evaluate.case import EVAL
from ropeconv.evaluate.opening import Sizes
from ropeconv.evaluate.result import read_result
from ropeconv.evaluate.row import parse_rows
from ropeconv.evaluate.runners.request import Opening
from ropeconv.evaluate.texts.read import read_files
from ropeconv.formats.journal import Journal
from ropeconv.run.evaluation import open_spread
from ropeconv.run.executors import Executor, Failure, executor_of
from ropeconv.run.executors.ray import RayCluster

from ...conftest import run_in
from ...support.waiting import free_ports
from ..plans import lines, models, plan_text
from ..test_evaluation import Mortal, alone, comparable
from .workers import Squares

pytest.importorskip("ray")
pytestmark = pytest.mark.ray
ROOT = Path(__file__).parents[3]
STORE = 100 << 20
CLIENT_PORT = free_ports(1)[0]
ROWS = "base,linear:4,ntk:4,ntk-old:4,ntk-fixed:4,mixed:4,by-parts:4,yarn:4"
SIZES = Sizes(lengths="4T", windows=8, targets=8)


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """A cluster whose processes end with it. Nothing of it lands in the home folder."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HOME", str(tmp_path_factory.mktemp("home")))
        patch.setenv("RAY_USAGE_STATS_ENABLED", "0")
        patch.setenv("PYTHONPATH", os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")]))
        from ray.cluster_utils import Cluster

        head = {"num_cpus": 0, "object_store_memory": STORE, "ray_client_server_port": CLIENT_PORT}
        found = Cluster(True, head_node_args=head)
        try:
            found.nodes = [found.add_node(num_cpus=1, object_store_memory=STORE) for _ in range(2)]
            yield found
        finally:
            found.shutdown()


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory, tiny: Callable[[str], Path]) -> Path:
    return models(tmp_path_factory.mktemp("ray"), tiny("llama"), "ab")


def test_results_failures_and_a_killed_worker(cluster: Any, tmp_path: Path) -> None:
    items = [1, "bad", "once", "odd", 2, "fatal"]
    executor = executor_of(cluster.address)
    with executor.pool(partial(Squares, str(tmp_path)), retries=1) as pool:
        assert executor.at_once == 2
        found = dict(pool.run(items))
    assert (found[0], found[4], found[2][0]) == (1, 4, "once")
    assert found[1] == Failure("it is bad; take another")
    assert found[3] == Failure("unexpected ZeroDivisionError: of its own")
    assert found[5].lost
    assert [len((tmp_path / f"run-{name}").read_text()) for name in ("once", "fatal", "1")] == [2, 2, 1]


def test_a_process_keeps_its_worker(cluster: Any, tmp_path: Path) -> None:
    with executor_of(cluster.address).pool(partial(Squares, str(tmp_path))) as pool:
        calls = [calls for _, (_, calls) in pool.run([f"item-{number}" for number in range(40)])]
    assert sorted(calls)[-1] >= 15
    assert calls.count(1) <= 3


def test_a_plan_on_the_cluster(cluster: Any, place: Path) -> None:
    (place / "plan.toml").write_text(plan_text("apply"))
    done = run_in(place, "run", "plan.toml", "--on", cluster.address)
    assert done.returncode == 0, done.stderr
    assert [one["failed"] for one in lines(place)] == [""] * 4


def test_through_the_client_port(cluster: Any, place: Path, tmp_path: Path) -> None:
    """What runs outside a cluster connects so: results, failures, a killed worker, and an evaluation."""
    address, items = f"ray://127.0.0.1:{CLIENT_PORT}", [1, "bad", "once", 2, "fatal"]
    executor = executor_of(address)
    with executor.pool(partial(Squares, str(tmp_path)), retries=1) as pool:
        assert executor.at_once == 2
        found = dict(pool.run(items))
    assert (found[0], found[3], found[2][0]) == (1, 4, "once")
    assert found[1] == Failure("it is bad; take another")
    assert found[4].lost
    given = ("models/a", "--methods", "base,yarn:4", "--text", "text.txt", "--lengths", "1T,4T", "--windows", "2")
    for name, more in (("one", ()), ("spread", ("--workers", address))):
        done = run_in(place, "eval", *given, *more, "-o", f"{name}.json", "--journal", f"{name}.jsonl")
        assert done.returncode == 0, done.stderr
    assert comparable(read_result(place / "spread.json")) == comparable(read_result(place / "one.json"))


def test_no_cluster_and_no_package_are_errors(monkeypatch: pytest.MonkeyPatch) -> None:
    import ray

    def init(**given: Any) -> None:
        raise ConnectionError(f"nothing at {given['address']}\nand more")

    monkeypatch.setattr(ray, "init", init)
    said = r"no Ray cluster can be reached at host:1 \(nothing at host:1\); start one with `ray start --head`"
    with pytest.raises(RopeconvError, match=said), executor_of("host:1").pool(Squares):  # type: ignore[arg-type]
        pass
    monkeypatch.setattr("ropeconv.extras.installed", lambda package: package != "grpc")
    with pytest.raises(RopeconvError, match=r"an address with ray:// needs grpc, .* pip install 'ropeconv\[ray\]'"):
        executor_of("ray://host:1")
    assert isinstance(executor_of("auto"), RayCluster)


class Disturbed(Executor):
    """A cluster in whose workers one is killed after some units. mark: made then."""

    def __init__(self, address: str, mark: Path) -> None:
        self.cluster, self.mark = RayCluster(address), mark

    def pool(self, factory: Any, retries: int = 2) -> Any:
        return self.cluster.pool(partial(Mortal, self.mark, 9, *factory.args), retries)


def test_a_killed_worker_and_a_removed_node_change_nothing(cluster: Any, place: Path, tmp_path: Path) -> None:
    """The last test, since the node does not come back."""
    asked, files = Opening(str(place / "models" / "a"), parse_rows(ROWS)), read_files([str(place / "text.txt")])
    done: list[int] = []

    def advance(tokens: int) -> None:
        done.append(tokens)
        if len(done) == 30:
            cluster.remove_node(cluster.nodes[1], allow_graceful=False)

    with open_spread(Disturbed(cluster.address, tmp_path / "mark"), asked, SIZES, files) as (evaluation, spread):
        with Journal(tmp_path / "j.jsonl", EVAL, evaluation.runner.source) as journal:
            evaluation.run(journal, Progress(advance=advance), spread.run_units)
        result, keys = evaluation.result("a"), [unit.key for unit in evaluation.units]
    assert (tmp_path / "mark").exists()
    assert len(keys) == 64
    written = [json.loads(line)["key"] for line in (tmp_path / "j.jsonl").read_text().splitlines()[1:]]
    assert sorted(written) == sorted(keys)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("tests.run.test_evaluation.SIZES", SIZES)
        assert comparable(result) == comparable(alone(place, asked, tmp_path / "alone.jsonl"))
