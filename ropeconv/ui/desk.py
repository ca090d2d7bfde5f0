"""Desk: what a task has at hand beside the form: the rules, and a way to say how far it is."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from ..formats.copying import Advance
from .messages import Progress
from .rules import Rules

SECONDS = 0.25
"""Between two messages about progress."""


@dataclass(frozen=True)
class Desk:
    """What a task is done with. rules: for visitors. tell: called with progress. token: of the visitor, or empty.

    finish: called when what is asked for is done, after which nothing stops it any more.
    """

    rules: Rules
    tell: Callable[[Progress], None]
    token: str = ""
    finish: Callable[[], None] = lambda: None

    @contextmanager
    def progress(self, title: str, total: int = 0) -> Iterator[Advance]:
        """Says how far something is, which is called with the bytes done since the last call."""
        done, last = 0, time.monotonic()
        self.tell(Progress(title, 0, total))

        def advance(more: int) -> None:
            nonlocal done, last
            done += more
            if time.monotonic() - last > SECONDS:
                last = time.monotonic()
                self.tell(Progress(title, done, total))

        yield advance
