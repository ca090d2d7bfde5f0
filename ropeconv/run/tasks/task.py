"""The registry of tasks, and what a worker keeps for them."""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property
from typing import Any

from ...engines.probe import Probe, SharedProbe
from ..unit import Unit


class Tools:
    """What a worker keeps from one unit to the next."""

    @cached_property
    def probe(self) -> Probe | None:
        """The installed transformers in a process of its own, which starts when it is asked; None without it."""
        return SharedProbe() if Probe.available() else None


Task = Callable[[Unit, Tools], dict[str, Any]]
"""Runs a unit, and returns what is to be known of it, JSON-ready. Raises RopeconvError where it fails."""
TASKS: dict[str, Task] = {}


def task(name: str) -> Callable[[Task], Task]:
    """Decorator: registers a task. name: in plans."""

    def register(function: Task) -> Task:
        TASKS[name] = function
        return function

    return register
