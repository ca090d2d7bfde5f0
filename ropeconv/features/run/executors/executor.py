"""Executor, the interface to what runs items on workers, and the call that all executors make."""

import pickle
from abc import ABC, abstractmethod
from collections.abc import Callable, Generator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

from ropeconv.errors import reason

Worker = Callable[[Any], Any]
"""Runs an item in a process that may keep a loaded model from one item to the next."""
Factory = Callable[[], Worker]
"""Makes a worker; can be pickled."""


@dataclass(frozen=True)
class Failure:
    """The result of an item that failed."""

    reason: str
    """Why it failed, in a sentence."""


Results = Generator[tuple[int, Any], None, None]
"""The index and the result of each item as they end; a `Failure` for one that failed."""
Pool = Callable[[Sequence[object]], Results]
"""Runs items that can be pickled on workers.

Closing the generator drops what has not started.
"""


class Executor(ABC):
    """A place with workers."""

    at_once: int = 0
    """How many items run at a time; 0 where that is not known."""

    longest: Callable[[Any], float] | None = None
    """The seconds after which the process of an item is ended; None for no limit.

    An item that hangs in compiled code needs it. Only processes of this machine are ended.
    """

    @abstractmethod
    def pool(self, factory: Factory, retries: int = 2) -> AbstractContextManager[Pool]:
        """Start workers, which run items while it is entered.

        Args:
            factory: Makes each worker.
            retries: How often an item is tried again whose worker ended before it had answered.
        """


def worker_lost(times: int, log: str = "") -> Failure:
    """Return the result of an item whose workers ended.

    Args:
        times: How many workers ended.
        log: A file with the output of the last one.
    """
    ended = "its worker"
    if times > 1:
        ended = f"{times} workers, one after the other,"
    place = f"; its output is in {log}" if log else ""
    return Failure(
        f"{ended} ended while it ran (killed, or out of memory){place}; give it more memory, or"
        " fewer jobs"
    )


_workers: dict[bytes, Worker] = {}
"""The worker of this process, by its pickled factory."""


def call(factory: bytes, item: object) -> Any:
    """Run an item in the worker of this process, which the first call makes.

    Args:
        factory: The pickled function that makes the worker.
        item: The thing to run, such as a job of a plan file.

    Returns:
        The result of the worker; a Failure with the reason for any exception.
    """
    # a worker keeps its model from one item to the next, so it is kept between calls
    try:
        if factory not in _workers:
            _workers.clear()  # frees the model of a worker of another pool
            make_worker = pickle.loads(factory)
            _workers[factory] = make_worker()
        return _workers[factory](item)
    except Exception as problem:  # many exceptions of libraries cannot be pickled
        return Failure(reason(problem))
