"""Servers of tests: free ports for them, and waiting until they are there; and a clock that is set
by hand.
"""

import socket
import time
from collections.abc import Callable
from contextlib import ExitStack
from typing import Any

PATIENCE = 180.0
"""Seconds, which a busy machine may need to start a server."""


class Clock:
    """A clock that is set by hand."""

    now = 100.0

    def __call__(self) -> float:
        return self.now


def until(probe: Callable[[], Any], event: str) -> Any:
    """What a function finds, as soon as it finds something."""
    deadline = time.monotonic() + PATIENCE
    while time.monotonic() < deadline:
        value = probe()
        if value:
            return value
        time.sleep(0.05)
    raise AssertionError(f"{event} did not come")


def free_ports(count: int) -> list[int]:
    with ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for listener in sockets:
            listener.bind(("127.0.0.1", 0))
        return [int(listener.getsockname()[1]) for listener in sockets]
