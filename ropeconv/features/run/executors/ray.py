"""A Ray cluster: items are tasks, whose processes keep their worker from one to the next.

Tasks and not actors hold the model, since an actor whose node has gone waits for another one with
the same resources, and keeps its items; a task runs wherever resources are free.
https://docs.ray.io/en/latest/ray-core/fault-tolerance.html
"""

from __future__ import annotations

import os
import pickle
from collections.abc import Iterator, Mapping, Sequence
from contextlib import chdir, contextmanager
from functools import partial
from types import ModuleType
from typing import TYPE_CHECKING, Any

from ropeconv.environment import require
from ropeconv.rope.errors import RopeconvError

from .executor import Executor, Factory, Pool, Results, call, worker_lost

if TYPE_CHECKING:
    from ray import ObjectRef

ITEMS_AHEAD = 512
"""Items that Ray has at a time."""
OWN_CLUSTER = "ray"
"""The address of a cluster that is started here."""
RUNNING_CLUSTER = "auto"
"""The address of the cluster that runs here."""
CONNECTION_ATTEMPTS = 3
"""How often a connection by ray:// is begun.

A busy cluster may not start the server of this client in time.
"""
SERVER_NOT_STARTED = ("Starting Ray client server failed", "Proxy failed to Connect to backend")
"""Errors of ray/util/client/server/proxier.py.

It waits CHECK_CHANNEL_TIMEOUT_S for the server of a client.
"""


class RayCluster(Executor):
    """A Ray cluster."""

    def __init__(self, address: str, cpus: float = 1, gpus: float = 0) -> None:
        """Name the cluster; nothing is connected yet.

        Args:
            address: `auto` for the one that runs here, `ray://HOST:PORT`, `HOST:PORT`, or `ray` for
                one that is started here and ends with this process.
            cpus: The CPUs of each worker.
            gpus: The GPUs of each worker.

        Raises:
            RopeconvError: Ray is not installed.
        """
        self.address = address
        self.cpus = cpus
        self.gpus = gpus
        require("ray", "running on a Ray cluster")
        if address.startswith("ray://"):
            require("grpc", "an address with ray://")

    @contextmanager
    def pool(self, factory: Factory, retries: int = 2) -> Iterator[Pool]:
        """Connect to a Ray cluster, and yield a function that runs items as its tasks.

        Args:
            factory: Makes the worker that runs items, once in each process of the cluster.
            retries: How often an item is run again after its process has ended.
        """
        os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # read by ray when it is imported
        import ray

        self._connect(ray)
        try:
            self.at_once = self._count_workers(ray.cluster_resources())
            options = {
                "num_cpus": self.cpus,
                "num_gpus": self.gpus,
                "max_retries": retries,
                # 0: a process runs any number of tasks, and keeps its model. Ray's default for
                # tasks with a GPU is a new process for each task.
                "max_calls": 0,
            }
            # `call(factory, item)` runs an item in a process of the cluster
            run_item = ray.remote(**options)(call)
            pickled_factory = ray.put(pickle.dumps(factory))

            # the pool is a function of items, which yields the index and the result of each
            yield partial(_run_items, ray, run_item, pickled_factory, retries)
        finally:
            ray.shutdown()  # closes the connection; ends the cluster if it was started here

    def _count_workers(self, resources: Mapping[str, float]) -> int:
        """Return how many workers the resources of a cluster are enough for."""
        counts = []
        if self.cpus:
            counts.append(resources.get("CPU", 0) / self.cpus)
        if self.gpus:
            counts.append(resources.get("GPU", 0) / self.gpus)
        return int(min(counts, default=1))

    def _connect(self, ray: ModuleType) -> None:
        """Connect to the cluster, or start it."""
        # A busy head starts the server of a new client too late, and Ray gives up after a while.
        # Then another attempt helps; after any other error it does not.
        was_connected = ray.is_initialized()
        for attempt in range(1, CONNECTION_ATTEMPTS + 1):
            try:
                self._initialise(ray)
                return
            except (ConnectionError, RuntimeError, ValueError) as problem:
                # A failed connection to ray:// leaves Ray in its client mode, in which connections
                # to other addresses fail.
                if not was_connected:
                    ray.shutdown()
                reason = _reason_of(problem)
                if not any(words in reason for words in SERVER_NOT_STARTED):
                    raise RopeconvError(
                        f"no Ray cluster can be reached at {self.address} ({reason}); start one"
                        " with `ray start --head`, or give ray for one of its own"
                    ) from None
                if attempt == CONNECTION_ATTEMPTS:
                    raise RopeconvError(
                        f"the Ray cluster at {self.address} did not start a server for this client"
                        f" in {CONNECTION_ATTEMPTS} attempts ({reason}); run this again when the"
                        " cluster is less busy, or start its head with a larger"
                        " RAY_CLIENT_SERVER_CHECK_CHANNEL_TIMEOUT_S"
                    ) from None

    def _initialise(self, ray: ModuleType) -> None:
        """Call `ray.init` for the address."""
        starts = self.address == OWN_CLUSTER
        # workers find modules in the folder of the driver before those that are installed
        # (ray/_private/worker.py, code_paths), and that may be a checkpoint with a numpy.py
        with chdir("/"):
            ray.init(
                address="local" if starts else self.address,
                log_to_driver=False,
                configure_logging=False,
                include_dashboard=False if starts else None,
            )


def _reason_of(problem: Exception) -> str:
    """Return the line of an error with its reason: the first, or the last one of a traceback."""
    lines = [line.strip() for line in str(problem).splitlines() if line.strip()]
    if not lines:
        return type(problem).__name__
    if any(line.startswith("Traceback") for line in lines):
        return lines[-1]
    return lines[0]


def _run_items(
    ray: ModuleType, task: Any, factory: ObjectRef, retries: int, items: Sequence[object]
) -> Results:
    """Run items as tasks of a cluster.

    Args:
        ray: The module `ray`.
        task: `call` as a remote function.
        factory: The pickled function that makes a worker, which the cluster stores.
        retries: As in `Executor.pool`.
        items: The things to run, such as jobs of a plan file.
    """
    pending: dict[ObjectRef, int] = {}  # the index of the item that each task runs
    next_index = 0
    try:
        while pending or next_index < len(items):
            # tasks wait in the cluster, but not all at once, since each takes memory there
            while next_index < len(items) and len(pending) < ITEMS_AHEAD:
                ref = task.remote(factory, items[next_index])
                pending[ref] = next_index
                next_index += 1

            finished, _ = ray.wait(list(pending), num_returns=1)
            for ref in finished:
                index = pending.pop(ref)
                try:
                    result = ray.get(ref)
                except ray.exceptions.RayError:  # after the retries of Ray itself (max_retries)
                    result = worker_lost(retries + 1)
                yield index, result
    finally:
        for ref in pending:
            ray.cancel(ref, force=True)
