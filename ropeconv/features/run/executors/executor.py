"""Executor, the small interface to what runs units, and the call of a worker that all of them
make.
"""

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
    """The result of an item that failed. reason: in a sentence."""

    reason: str


Results = Generator[tuple[int, Any], None, None]
"""The index and the result of each item as they end; a `Failure` of one that failed."""
Pool = Callable[[Sequence[object]], Results]
"""Runs items that can be pickled on workers. Where the generator is closed, what has not started is
dropped.
"""


class Executor(ABC):
    """A place with workers.

    at_once: how many items run at a time; 0 where that is not known. longest: seconds after which
    the process of an item is ended, where it is one of this machine; None for no limit. An item
    that hangs in compiled code needs that.
    """

    at_once: int = 0
    longest: Callable[[Any], float] | None = None

    @abstractmethod
    def pool(self, factory: Factory, retries: int = 2) -> AbstractContextManager[Pool]:
        """Workers, while it is entered.

        factory: makes each. retries: how often an item is tried again whose worker ended before it
        had answered.
        """


def lost(times: int, log: str = "") -> Failure:
    """The result of an item whose workers ended. times: how many. log: a file with the output of
    the last one.
    """
    ended = "its worker" if times == 1 else f"{times} workers, one after the other,"
    logged = f"; its output is in {log}" if log else ""
    return Failure(
        f"{ended} ended while it ran (killed, or out of memory){logged}; give it more memory, or"
        " fewer jobs"
    )


_kept: dict[bytes, Worker] = {}


def call(factory: bytes, item: object) -> Any:
    """Runs an item in the worker of this process, which the first call makes."""
    try:
        if factory not in _kept:
            _kept.clear()  # a worker of another pool, with its model
            _kept[factory] = pickle.loads(factory)()
        return _kept[factory](item)
    except Exception as problem:
        return Failure(reason(problem))
