"""Progress bars with percentage, rate and remaining time, which follow from all that has been done since the start."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from math import ceil
from typing import TYPE_CHECKING

from rich.progress import BarColumn, Progress, ProgressColumn, Task, TaskProgressColumn, TextColumn
from rich.text import Text

from ..formats.copying import Advance

if TYPE_CHECKING:
    from rich.console import Console

Clock = Callable[[], float]
SETTLED = 1.0
"""Seconds before which a rate says little."""


def rate(task: Task) -> float | None:
    """Units per second since the start of a task; None before a second has passed or anything is done.

    Not the rate of the last steps, as rich has it: that needs two of them, which are minutes apart where a step is a
    chunk of a large model.
    """
    elapsed = task.finished_time if task.finished else task.elapsed
    return task.completed / elapsed if elapsed is not None and elapsed >= SETTLED and task.completed else None


class Rate(ProgressColumn):
    """The rate of a task: `12.3 MB/s`, or `1,234 tokens/s`. unit: "bytes", or in the plural."""

    def __init__(self, unit: str) -> None:
        self.unit = unit
        super().__init__()

    def render(self, task: Task) -> Text:
        """The rate of a task, nothing where it is not known."""
        found = rate(task)
        if found is None:
            return Text("")
        if self.unit != "bytes":
            return Text(f"{found:,.0f} {self.unit}/s" if found >= 10 else f"{found:.1f} {self.unit}/s")
        return Text(f"{found / 1e9:.2f} GB/s" if found >= 1e9 else f"{found / 1e6:.1f} MB/s")


class Remaining(ProgressColumn):
    """The time that a task still takes at its rate: `0:01:30 left`."""

    def render(self, task: Task) -> Text:
        """The time that is left, nothing where the rate is not known."""
        found = rate(task)
        if found is None or task.total is None:
            return Text("")
        left = max(0.0, task.total - task.completed) / found
        return Text(f"{timedelta(seconds=ceil(left))} left")


@contextmanager
def bar(
    title: str, unit: str, console: Console, clock: Clock = time.monotonic
) -> Iterator[tuple[Callable[[int], None], Advance]]:
    """A progress bar, as (set the total, advance). Time runs from the first total, which is known when work begins.

    title: before it. unit: "bytes", or in the plural. console: of rich. clock: in seconds.
    """
    columns = (TextColumn("{task.description}"), BarColumn(20), TaskProgressColumn(), Rate(unit), Remaining())
    with Progress(*columns, console=console, transient=True, get_time=clock) as shown:
        task = shown.add_task(title, total=None, start=False)

        def total(number: int) -> None:
            shown.update(task, total=number)
            shown.start_task(task)

        yield total, lambda done: shown.advance(task, done)
