"""The progress bar on stderr: `bar` draws it, and `pace` says how fast it is and what is left."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from math import ceil
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.console import Console

    from ..reporting import Counter

Clock = Callable[[], float]
SETTLED = 1.0
"""Seconds before which a rate says little."""
SHARE = 1 / 200
"""The part of the work before which a rate says little: the first files of a model have some
kilobytes.
"""
PATIENCE = 60.0
"""Seconds after which the rate of any part is shown, since that part is a step of a long run."""


@contextmanager
def bar(
    title: str, unit: str, console: Console, clock: Clock = time.monotonic
) -> Iterator[Counter]:
    """Draw a progress bar with the rate and the time left.

    Its time runs from the first call that sets the total, which is when the work begins.

    Args:
        title: The words before the bar.
        unit: The things that are counted, in the plural.
        console: The console of rich that draws it.
        clock: Returns the time in seconds.

    Yields:
        A function that sets the total, and one that advances the bar.
    """
    from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn

    columns = (
        TextColumn("{task.description}"),
        BarColumn(20),
        TaskProgressColumn(),
        TextColumn("{task.fields[speed]}"),
        TextColumn("{task.fields[left]}"),
    )
    with Progress(*columns, console=console, transient=True, get_time=clock) as progress:
        progress.add_task(title, total=None, start=False, speed="", left="")
        (task,) = progress.tasks  # the object; add_task returns its id

        def set_total(number: int) -> None:
            progress.update(task.id, total=number)
            progress.start_task(task.id)

        def advance(done: int) -> None:
            speed, left = pace(unit, task.completed + done, task.total, task.elapsed or 0.0)
            progress.update(task.id, advance=done, speed=speed, left=left)

        yield set_total, advance


def pace(unit: str, done: float, total: float | None, seconds: float) -> tuple[str, str]:
    """Return the rate since the start, `12.3 MB/s`, and the time left, `0:01:30 left`.

    Both are empty at first. (rich has the rate of the last steps instead, which needs two of them.
    Where a step is a chunk of a large model, that takes minutes.)

    Args:
        unit: The things that are counted, in the plural.
        done: How many are done.
        total: How many there are; None where that is not known.
        seconds: The time since the start.
    """
    # a rate of the first moments would promise hours and then minutes
    if seconds < SETTLED or not done:
        return "", ""
    is_small_part = total is not None and done < SHARE * total
    if is_small_part and seconds < PATIENCE:
        return "", ""

    units_per_second = done / seconds
    rate = _rate(unit, units_per_second)
    if total is None:
        return rate, ""
    if done >= total:  # ropeconv waits for the disk, and checks the output
        return rate, "finishing"
    left = timedelta(seconds=ceil((total - done) / units_per_second))
    return rate, f"{left} left"


def _rate(unit: str, units_per_second: float) -> str:
    """Return a rate in words."""
    if unit == "bytes":
        if units_per_second >= 1e9:
            return f"{units_per_second / 1e9:.2f} GB/s"
        return f"{units_per_second / 1e6:.1f} MB/s"
    if units_per_second >= 10:
        return f"{units_per_second:,.0f} {unit}/s"
    return f"{units_per_second:.1f} {unit}/s"
