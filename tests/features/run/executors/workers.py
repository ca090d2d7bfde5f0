"""Workers of tests, in a module that other processes can import."""

import os
import signal
import time
from functools import partial
from pathlib import Path
from typing import Any

from ropeconv.errors import BadSource
from ropeconv.features.run.executors.executor import Executor, Failure


class Squares:
    """Squares numbers, and keeps what it has of its process. folder: of marks."""

    def __init__(self, folder: str) -> None:
        self.folder = Path(folder)
        self.calls = 0

    def __call__(self, item: Any) -> Any:
        self.calls += 1
        with (self.folder / f"run-{item}").open("a") as file:
            file.write("x")
        if item == "bad":
            raise BadSource("it is bad; take another")
        if item == "odd":
            raise ZeroDivisionError("of its own")
        if item == "fatal" or (item == "once" and len((self.folder / "run-once").read_text()) == 1):
            os.kill(os.getpid(), signal.SIGKILL)
        if item == "pid":
            return os.getpid()
        if item == "long":
            time.sleep(200)
        if item == "slow":
            time.sleep(1)
        if item == "env":
            end = time.monotonic() + 60
            while len((self.folder / "run-env").read_text()) % 2 and time.monotonic() < end:
                time.sleep(0.05)  # until another process has the other one
            return os.environ.get("CUDA_VISIBLE_DEVICES"), os.getpid()
        return item**2 if isinstance(item, int) else (item, self.calls)


def all_ends(executor: Executor, folder: Path) -> Any:
    """Checks items that end well, with an error, and by a kill, once and always; returns what the
    last one gives.
    """
    items = [3, "bad", "once", "odd", "fatal"]
    with executor.pool(partial(Squares, str(folder)), retries=1) as pool:
        results = dict(pool(items))
    assert results[0] == 9
    assert results[1] == Failure("it is bad; take another")
    assert results[2][0] == "once"
    assert results[3] == Failure("unexpected ZeroDivisionError: of its own")
    assert "ended while" in results[4].reason
    assert results[4].reason.startswith("2 workers,")
    assert [len((folder / f"run-{item}").read_text()) for item in items] == [1, 1, 2, 1, 2]
    return results[4]


class Broken:
    """A worker that cannot be made."""

    def __init__(self) -> None:
        raise BadSource("no model is here; give one")

    def __call__(self, item: Any) -> Any:
        return item


def end_at_once(*_: object) -> None:
    """Ends a new process before it can run anything, as a system without memory does."""
    os.kill(os.getpid(), signal.SIGKILL)


def end_first(folder: str, *_: object) -> None:
    """Ends the first process that starts. folder: of the mark."""
    mark = Path(folder, "started")
    if not mark.exists():
        mark.touch()
        os.kill(os.getpid(), signal.SIGKILL)
