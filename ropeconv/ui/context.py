"""The context of a task: what it is, and what it sends to its page."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import msgspec

from ..formats.disk import Advance


class PageProgress(msgspec.Struct, frozen=True, tag="progress"):
    """The progress of a task. title: of the step. done, total: in bytes; total 0 where it is not known."""

    title: str
    done: int = 0
    total: int = 0


class PageAnswer(msgspec.Struct, frozen=True, tag="answer"):
    """The end: what the page shows. failed: whether it is about a failure."""

    html: str
    failed: bool = False


Message = PageProgress | PageAnswer
_decoder: msgspec.json.Decoder[Message] = msgspec.json.Decoder(Message)
encode = msgspec.json.encode


def decode(data: bytes) -> Message:
    """A message from its bytes."""
    return _decoder.decode(data)


PAUSE = 0.25
"""Seconds between two messages about progress."""


@dataclass(frozen=True)
class TaskContext:
    """The context of a task.

    tell: called with progress. finish: called when what is asked for is done, after which nothing stops it any more.
    """

    tell: Callable[[PageProgress], None]
    finish: Callable[[], None] = lambda: None

    @contextmanager
    def progress(self, title: str, total: int = 0) -> Iterator[Advance]:
        """Says how far something is, which is called with the bytes done since the last call."""
        done, last = 0, time.monotonic()
        self.tell(PageProgress(title, 0, total))

        def advance(more: int) -> None:
            nonlocal done, last
            done += more
            if time.monotonic() - last > PAUSE:
                last = time.monotonic()
                self.tell(PageProgress(title, done, total))

        yield advance
