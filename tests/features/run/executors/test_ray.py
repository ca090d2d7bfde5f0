"""Ray: results and lost workers of a cluster here, and at night of a head and two nodes of which
one goes away.
"""

import os
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest

from ropeconv.features.run.executors import executor_of
from ropeconv.features.run.executors.ray import CONNECTION_ATTEMPTS, RayCluster
from ropeconv.rope.errors import RopeconvError

from ....support.in_process import command
from ....support.run_plans import models, plan_text
from ....support.waiting import free_ports
from ..plans import lines
from ..test_evaluation import evaluated
from .workers import Squares, all_ends

pytest.importorskip("ray")
pytestmark = pytest.mark.ray
ROOT = Path(__file__).parents[4]
STORE = 100 << 20
CLIENT_PORT = free_ports(1)[0]
ADDRESS = f"ray://127.0.0.1:{CLIENT_PORT}"
SERVER = (
    "Initialization failure from server:\nTraceback (most recent call last):\n  File"
    " 'proxier.py'\nRuntimeError: {}\n"
)
BUSY = SERVER.format("Proxy failed to Connect to backend! Check `ray_client_server.err`")


@pytest.fixture(scope="module", autouse=True)
def own_environment(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Nothing of Ray lands in the home folder, and the mode of its tokens, which it sets, ends with
    these tests.
    """
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HOME", str(tmp_path_factory.mktemp("home")))
        patch.setenv("RAY_USAGE_STATS_ENABLED", "0")
        patch.setenv("PYTHONPATH", os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")]))
        patch.setenv("RAY_AUTH_MODE", "")
        patch.delenv("RAY_AUTH_MODE")
        yield


@pytest.mark.parametrize(
    ("message", "attempts", "expected"),
    [
        (
            BUSY,
            CONNECTION_ATTEMPTS,
            (
                rf"at {ADDRESS} did not start a server .* in 3 attempts \(RuntimeError: Proxy"
                r" failed to Conn"
            ),
        ),
        (SERVER.format("no such env"), 1, r"\(RuntimeError: no such env\); start one with"),
        (
            "nothing there\nand more",
            1,
            rf"can be reached at {ADDRESS} \(nothing there\); start one with `ray start",
        ),
    ],
    ids=["busy", "server", "nothing"],
)
def test_what_keeps_a_connection_from_a_cluster_is_named(
    message: str, attempts: int, expected: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    import ray

    init = Mock(side_effect=ConnectionAbortedError(message))
    shutdown = Mock()
    monkeypatch.setattr(ray, "init", init)
    monkeypatch.setattr(ray, "shutdown", shutdown)
    with (
        pytest.raises(RopeconvError, match=expected),
        executor_of(ADDRESS).pool(partial(Squares, "")),
    ):
        pass
    assert (init.call_count, shutdown.call_count) == (attempts, attempts)


@pytest.fixture(scope="module")
def cluster() -> Iterator[Any]:
    """A cluster whose processes end with it."""
    from ray.cluster_utils import Cluster

    head = {"num_cpus": 0, "object_store_memory": STORE, "ray_client_server_port": CLIENT_PORT}
    ray_cluster = Cluster(True, head_node_args=head)
    try:
        ray_cluster.nodes = [
            ray_cluster.add_node(num_cpus=1, object_store_memory=STORE) for _ in range(2)
        ]
        yield ray_cluster
    finally:
        ray_cluster.shutdown()


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return models(tmp_path_factory.mktemp("ray"), "ab")


@pytest.mark.nightly
def test_through_the_client_port(cluster: Any, place: Path, tmp_path: Path) -> None:
    """What runs outside a cluster connects so: results, failures, a killed worker, a plan, and an
    evaluation.
    """
    all_ends(executor_of(ADDRESS), tmp_path)
    (place / "plan.toml").write_text(plan_text("apply"))
    command(place, "run", "plan.toml", "--on", ADDRESS, code=0)
    assert [line["failed"] for line in lines(place)] == [""] * 4
    spread = evaluated(place, tmp_path / "spread.jsonl", RayCluster(ADDRESS))
    assert spread == evaluated(place, tmp_path / "alone.jsonl")
