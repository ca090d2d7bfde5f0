"""A Ray cluster: Ray schedules items as tasks, whose processes keep their worker from one to the next.

Tasks and not actors hold the model, since an actor whose node has gone waits for another one with the same resources,
and keeps its items; a task runs wherever there is room. https://docs.ray.io/en/latest/ray-core/fault-tolerance.html
"""

from __future__ import annotations

import os
import pickle
from collections.abc import Generator, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from ...errors import RopeconvError
from ...extras import require
from .executor import Executor, Factory, Pool, call, lost

AHEAD = 512
"""Items that Ray has at a time."""
OWN, FOUND = "ray", "auto"


class RayCluster(Executor):
    """A Ray cluster.

    address: `auto` for the one that runs here, `ray://HOST:PORT`, `HOST:PORT`, or `ray` for one that is started here
    and ends with this process. cpus, gpus: of each worker.
    """

    def __init__(self, address: str, cpus: float = 1, gpus: float = 0) -> None:
        self.address, self.cpus, self.gpus = address, cpus, gpus
        require("ray", "running on a Ray cluster")
        if address.startswith("ray://"):
            require("grpc", "an address with ray://")

    @contextmanager
    def pool(self, factory: Factory, retries: int = 2) -> Iterator[Pool]:
        os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
        import ray

        own = self.address == OWN
        try:
            ray.init(
                address="local" if own else self.address, log_to_driver=False, configure_logging=False,
                include_dashboard=False if own else None,
            )  # fmt: skip
        except (ConnectionError, RuntimeError, ValueError) as problem:
            raise RopeconvError(
                f"no Ray cluster can be reached at {self.address} ({str(problem).splitlines()[0]}); start one with "
                "`ray start --head`, or give ray for one of its own"
            ) from None
        try:
            there = ray.cluster_resources()
            room = [there.get("CPU", 0) / self.cpus] if self.cpus else []
            room += [there.get("GPU", 0) / self.gpus] if self.gpus else []
            self.at_once = int(min(room, default=1))
            yield Tasks(ray, self, pickle.dumps(factory), retries)
        finally:
            ray.shutdown()  # ends the connection, and a cluster only where it was started above


class Tasks(Pool):
    """Tasks of a cluster. ray: the module. at: the cluster. made: the pickled factory. retries: as in `Executor`."""

    def __init__(self, ray: Any, at: RayCluster, made: bytes, retries: int) -> None:
        self.ray, self.retries, self.made = ray, retries, ray.put(made)
        # a process with a GPU would end after each task without max_calls
        options = {"num_cpus": at.cpus, "num_gpus": at.gpus, "max_retries": retries, "max_calls": 0}
        self.call = ray.remote(**options)(call)

    def run(self, items: Sequence[Any]) -> Generator[tuple[int, Any], None, None]:
        """As in `Pool`."""
        pending: dict[Any, int] = {}
        left = iter(range(len(items)))
        try:
            while True:
                while len(pending) < AHEAD and (index := next(left, None)) is not None:
                    pending[self.call.remote(self.made, items[index])] = index
                if not pending:
                    return
                for ref in self.ray.wait(list(pending), num_returns=1)[0]:
                    index = pending.pop(ref)
                    try:
                        found = self.ray.get(ref)
                    except self.ray.exceptions.RayError:
                        found = lost(self.retries + 1)
                    yield index, found
        finally:
            for ref in pending:
                self.ray.cancel(ref, force=True)
