"""Processes of this machine, one for each GPU, or as many as are asked for.

pebble makes them (https://pebble.readthedocs.io): it can kill one process and keep the others.
"""

import multiprocessing
import os
import pickle
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, CancelledError, Future, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from enum import Enum, auto
from functools import partial
from pathlib import Path
from typing import Any

from pebble import ProcessExpired, ProcessPool

from ropeconv.formats.disk import cores
from ropeconv.formats.files import scratch, try_lock

from .executor import Executor, Factory, Failure, Pool, Results, call, worker_lost

VISIBLE_GPUS = "CUDA_VISIBLE_DEVICES"
REASON_OF_HANG = (
    "it did not end in its time and its process was killed; raise unit_timeout in [limits] if it"
    " needs more"
)

NEVER_STARTED = (
    "its worker ended before it could begin, and so did the others (killed, or out of memory); give"
    " them more memory, or fewer jobs at a time"
)


def gpus() -> list[str]:
    """Return the NVIDIA GPUs that this process may use, as CUDA_VISIBLE_DEVICES has them."""
    named = os.environ.get(VISIBLE_GPUS)
    if named is not None:
        return [device for device in named.split(",") if device.strip()]
    devices = Path("/dev").glob("nvidia[0-9]*")
    return sorted(path.name.removeprefix("nvidia") for path in devices)


def prepare(folder: str, devices: Sequence[str], threads: int) -> None:
    """Give a new process a GPU of its own, and its share of the cores.

    Args:
        folder: The folder of the locks, which the system takes back when a process ends.
        devices: The GPUs that are shared out; none without GPUs.
        threads: The threads that the process may use.
    """
    # torch and numpy read the number of threads when they are imported
    os.environ.setdefault("OMP_NUM_THREADS", str(threads))
    # bars of several processes would write over each other
    os.environ.setdefault("HF_HUB_DISABLE_PROGRESS_BARS", "1")
    # The first GPU whose lock is free. The lock file stays open until this process ends, however
    # that happens; then the system frees the lock, and the next process gets the GPU.
    for device in devices:
        lock = os.open(Path(folder, f"gpu-{device}"), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC)
        if try_lock(lock) != "busy":
            os.environ[VISIBLE_GPUS] = device
            return
        os.close(lock)


class Local(Executor):
    """Processes of this machine."""

    def __init__(self, at_once: int = 0, without_gpus: int = 1) -> None:
        """Choose how many; nothing is started yet.

        Args:
            at_once: The number of processes; 0 for one per GPU.
            without_gpus: The number where there is no GPU.
        """
        self.devices = gpus()
        self.at_once = at_once or len(self.devices) or without_gpus

    @contextmanager
    def pool(self, factory: Factory, retries: int = 2) -> Iterator[Pool]:
        """Start the processes, and run items in them. Parameters as in `Executor.pool`."""
        threads = max(1, cores() // self.at_once)
        with scratch() as folder:
            processes = Processes(self.at_once, (str(folder), self.devices, threads))
            try:
                yield partial(_run_items, processes, pickle.dumps(factory), retries, self.longest)
            finally:
                processes.end()


class Processes:
    """The processes of a pool.

    A process that ends while it runs no item, as one that the system kills for its memory when it
    starts, makes pebble give up its whole pool; `replace` makes another one.
    """

    def __init__(self, at_once: int, arguments: tuple[object, ...]) -> None:
        """Make them; `arguments` are those of `prepare`."""
        self.at_once = at_once
        self.arguments = arguments
        self._pool = self._make_pool()

    def _make_pool(self) -> ProcessPool:
        # spawned: CUDA cannot be used in a process that was forked from one that has used it
        return ProcessPool(
            self.at_once,
            initializer=prepare,
            initargs=self.arguments,
            context=multiprocessing.get_context("spawn"),
        )

    def start(self, factory: bytes, item: object, limit: float | None) -> Future[Any]:
        """Run an item with the worker of a pickled factory.

        Args:
            factory: The pickled factory.
            item: The item.
            limit: The seconds after which its process is killed; None for no limit.
        """
        try:
            return self._pool.schedule(call, args=(factory, item), timeout=limit)
        except RuntimeError:  # pebble has given up the pool since the last item
            self.replace()
            return self._pool.schedule(call, args=(factory, item), timeout=limit)

    def replace(self) -> None:
        """Make new processes, in place of those that have ended."""
        self.end()
        self._pool = self._make_pool()

    def end(self) -> None:
        """Kill all processes."""
        self._pool.stop()  # type: ignore[no-untyped-call]
        self._pool.join()


class _Rerun(Enum):
    """Why an item is run again."""

    PROCESS_ENDED = auto()
    """The process ended in the middle of it, and may have ended because of it."""

    POOL_LOST = auto()
    """All processes ended before one of them had run it."""


def _run_items(
    processes: Processes,
    factory: bytes,
    retries: int,
    longest: Callable[[Any], float] | None,
    items: Sequence[object],
) -> Results:
    """Run items on the processes of a pool, and yield the index and the result of each.

    A process may be killed while it runs an item. There are two cases:

    - pebble knows the item (ProcessExpired): the item is run again, up to `retries` times.
    - pebble does not (BrokenProcessPool): the pool is lost, and a new pool runs all unfinished
      items again. This does not count as a try of an item, since the item may not be the cause.

    Args:
        processes: The pool.
        factory: Makes the worker that runs items, pickled.
        retries: How often an item, or the whole pool, is started again.
        longest: Returns the time limit of an item in seconds; None for no limit.
        items: The items.
    """
    tries = [1] * len(items)  # how often each item was run
    running: dict[Future[Any], int] = {}  # the index of the item that each future runs
    lost_in_a_row = 0  # pools that were lost since the last result

    def start(index: int) -> None:
        """Start an item on the pool."""
        item = items[index]
        limit = None if longest is None else longest(item)
        running[processes.start(factory, item, limit)] = index

    for index in range(len(items)):
        start(index)
    try:
        while running:
            # one or more items have ended; if the pool was lost, all have
            finished = wait(running, return_when=FIRST_COMPLETED).done
            items_of_lost_pool = list[int]()
            for future in sorted(finished, key=lambda future: running[future]):
                index = running.pop(future)
                result = _result_of(future, tries[index], retries)
                if result is _Rerun.POOL_LOST:
                    items_of_lost_pool.append(index)
                elif result is _Rerun.PROCESS_ENDED:
                    tries[index] += 1
                    start(index)
                else:  # the result of the item, or why it has failed
                    lost_in_a_row = 0
                    yield index, result
            if not items_of_lost_pool:
                continue

            # replace the lost pool, and start its items again, unless pools are lost too often
            processes.replace()
            lost_in_a_row += 1
            unfinished = [future for future in running if not future.done()]
            items_of_lost_pool += [running.pop(future) for future in unfinished]
            for index in sorted(items_of_lost_pool):
                if lost_in_a_row > retries:
                    yield index, Failure(NEVER_STARTED)
                else:
                    start(index)
    finally:
        for future in running:
            future.cancel()


def _result_of(future: Future[Any], tries: int, retries: int) -> Any:
    """Return the result of an item that has ended, or why it is run again.

    Args:
        future: The future of the item.
        tries: How often it was started.
        retries: How often it may be started again.

    Returns:
        The result of the item; a Failure where it has none and is given up; or a member of _Rerun,
        the reason for which it is run again.
    """
    try:
        return future.result()
    except BrokenProcessPool:
        return _Rerun.POOL_LOST
    except ProcessExpired:  # killed, or out of memory
        if tries <= retries:
            return _Rerun.PROCESS_ENDED
        return worker_lost(tries)
    except TimeoutError:  # pebble has killed the process at the limit of the item
        return Failure(REASON_OF_HANG)
    except CancelledError:
        return worker_lost(tries)
