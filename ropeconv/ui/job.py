"""Job: a request in a process of its own, which is stopped when its page does not want it any more."""

from __future__ import annotations

import multiprocessing
import time
from collections.abc import Iterator
from contextlib import suppress

from .asked import Asked
from .messages import Answer, Message, Progress, decode
from .worker import failure, work

POLL, GRACE = 0.2, 20.0
"""Seconds between two looks at the limits, and that a process has for cleaning up."""
LOST = "this ended without an answer, as it does where memory runs out"
UNFINISHED = "this was stopped, and did not clean up in time; look for what it left, and run it again"
ELSEWHERE = "run `ropeconv` on a larger machine"
CONTEXT = multiprocessing.get_context("forkserver")
"""Processes begin with what `preload` has imported, and share nothing else with the page."""


def prepare() -> None:
    """Starts the process that others are made from, so that the first request need not wait for its imports."""
    from multiprocessing.forkserver import ensure_running

    CONTEXT.set_forkserver_preload(["ropeconv.ui.preload"])
    ensure_running()


class Job:
    """A request that runs. asked: the task. seconds: that it may take, None for no limit. baking: whether it writes."""

    def __init__(self, asked: Asked, seconds: float | None, baking: bool = False) -> None:
        self.seconds, self.baking = seconds, baking
        self._stopped_at: float | None = None
        self._connection, theirs = CONTEXT.Pipe()
        self._process = CONTEXT.Process(target=work, args=(theirs, asked), daemon=True)
        self._process.start()
        theirs.close()

    def stop(self) -> None:
        """Has the process clean up and end, from any thread; its answer then says so."""
        self._stopped_at = self._stopped_at or time.monotonic()
        with suppress(OSError):
            self._connection.send_bytes(b"stop")

    def messages(self) -> Iterator[Message]:
        """The messages of the process; the last one is an Answer. To end the iteration earlier stops the process."""
        begun, late = time.monotonic(), False
        answer: Answer | None = None
        try:
            yield Progress("Reading")  # also so that the same answer once more is seen to be a new one
            while answer is None and not self._overdue():
                if self.seconds is not None and not late and time.monotonic() - begun > self.seconds:
                    late = True
                    self.stop()
                try:
                    if not self._connection.poll(POLL):
                        continue
                    message = decode(self._connection.recv_bytes())
                except (EOFError, OSError):  # it has ended
                    break
                if isinstance(message, Answer):
                    answer = message
                else:
                    yield message
        finally:
            self._end()
        if late and (answer is None or answer.failed):
            answer = failure(f"this takes longer than the {self.seconds:.0f} seconds that it may here; {ELSEWHERE}")
        yield answer or failure(UNFINISHED if self._stopped_at else f"{LOST}; {ELSEWHERE}")

    def _overdue(self) -> bool:
        """Whether it was stopped so long ago that it is not going to answer."""
        return self._stopped_at is not None and time.monotonic() - self._stopped_at > GRACE

    def _end(self) -> None:
        with suppress(OSError):
            self._connection.close()
        self._process.join(GRACE)
        if self._process.is_alive():
            self._process.kill()
            self._process.join()
