"""A Ray cluster: Ray schedules items as tasks, whose processes keep their worker from one to the
next.

Tasks and not actors hold the model, since an actor whose node has gone waits for another one with
the same resources, and keeps its items; a task runs wherever resources are free.
https://docs.ray.io/en/latest/ray-core/fault-tolerance.html
"""

from __future__ import annotations

import os
import pickle
from collections.abc import Iterator, Sequence
from contextlib import chdir, contextmanager
from functools import partial
from types import ModuleType
from typing import TYPE_CHECKING, Any

from ropeconv.environment import require
from ropeconv.rope.errors import RopeconvError

from .executor import Executor, Factory, Pool, Results, call, lost

if TYPE_CHECKING:
    from ray import ObjectRef

AHEAD = 512
"""Items that Ray has at a time."""
OWN, FOUND = "ray", "auto"
ATTEMPTS = 3
"""How often a connection by ray:// is begun where the cluster does not start the server of this
client in time.
"""
NOT_STARTED = ("Starting Ray client server failed", "Proxy failed to Connect to backend")
"""Errors of ray/util/client/server/proxier.py, which waits CHECK_CHANNEL_TIMEOUT_S for that
server.
"""


class RayCluster(Executor):
    """A Ray cluster.

    address: `auto` for the one that runs here, `ray://HOST:PORT`, `HOST:PORT`, or `ray` for one
    that is started here and ends with this process. cpus, gpus: of each worker.
    """

    def __init__(self, address: str, cpus: float = 1, gpus: float = 0) -> None:
        self.address = address
        self.cpus = cpus
        self.gpus = gpus
        require("ray", "running on a Ray cluster")
        if address.startswith("ray://"):
            require("grpc", "an address with ray://")

    @contextmanager
    def pool(self, factory: Factory, retries: int = 2) -> Iterator[Pool]:
        os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
        import ray

        self._connect(ray)
        try:
            resources = ray.cluster_resources()
            workers = [resources.get("CPU", 0) / self.cpus] if self.cpus else []
            workers += [resources.get("GPU", 0) / self.gpus] if self.gpus else []
            self.at_once = int(min(workers, default=1))
            # a process with a GPU would end after each task without max_calls
            options = {
                "num_cpus": self.cpus,
                "num_gpus": self.gpus,
                "max_retries": retries,
                "max_calls": 0,
            }
            yield partial(
                _results, ray, ray.remote(**options)(call), ray.put(pickle.dumps(factory)), retries
            )
        finally:
            ray.shutdown()  # ends the connection, and a cluster only where it was started above

    def _connect(self, ray: ModuleType) -> None:
        starts = self.address == OWN
        before = ray.is_initialized()
        for attempt in range(1, ATTEMPTS + 1):
            try:
                # workers find modules in the folder of the driver before those that are installed
                # (ray/_private/worker.py, code_paths), and that may be a checkpoint with a numpy.py
                with chdir("/"):
                    ray.init(
                        address="local" if starts else self.address,
                        log_to_driver=False,
                        configure_logging=False,
                        include_dashboard=False if starts else None,
                    )
                return
            except (ConnectionError, RuntimeError, ValueError) as problem:
                if not before:
                    # after ray://, whose client mode would stay on, and let later connections fail
                    ray.shutdown()
                lines = [line.strip() for line in str(problem).splitlines() if line.strip()] or [
                    type(problem).__name__
                ]
                # the last line of a traceback of the server below the first
                reason = lines[-1 if any(line.startswith("Traceback") for line in lines) else 0]
                if not any(words in reason for words in NOT_STARTED):
                    raise RopeconvError(
                        f"no Ray cluster can be reached at {self.address} ({reason}); start one"
                        " with `ray start --head`, or give ray for one of its own"
                    ) from None
                if attempt == ATTEMPTS:
                    raise RopeconvError(
                        f"the Ray cluster at {self.address} did not start a server for this client"
                        f" in {ATTEMPTS} attempts ({reason}); run this again when the cluster is"
                        " less busy, or start its head with a larger"
                        " RAY_CLIENT_SERVER_CHECK_CHANNEL_TIMEOUT_S"
                    ) from None


def _results(
    ray: ModuleType, task: Any, factory: ObjectRef, retries: int, items: Sequence[object]
) -> Results:
    """Run items as tasks of a cluster. ray: the module. task: `call` as a remote function. Others:
    as in `Executor`.
    """
    pending: dict[ObjectRef, int] = {}
    remaining = iter(range(len(items)))
    try:
        while True:
            while len(pending) < AHEAD and (index := next(remaining, None)) is not None:
                pending[task.remote(factory, items[index])] = index
            if not pending:
                return
            for ref in ray.wait(list(pending), num_returns=1)[0]:
                index = pending.pop(ref)
                try:
                    result = ray.get(ref)
                except ray.exceptions.RayError:
                    result = lost(retries + 1)
                yield index, result
    finally:
        for ref in pending:
            ray.cancel(ref, force=True)
