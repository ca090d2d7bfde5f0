"""Job: a request in a process of its own, which is stopped when its page does not want it any
more.
"""

import multiprocessing
import os
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from multiprocessing.connection import Connection
from pathlib import Path
from types import FrameType

import msgspec

from ropeconv.environment import redacted
from ropeconv.errors import StopRequest, reason
from ropeconv.views.sheet import sentence

from .forms import UPLOADS, PageForm, refuse_long
from .sheet import HtmlSheet, PageAnswer, PageProgress, TaskContext

Message = PageProgress | PageAnswer
DECODER = msgspec.json.Decoder[Message](Message)
CANCELLED = "cancelled: nothing was kept"


def work(connection: Connection, task: str, form: PageForm) -> None:
    """Does a task and sends its messages, the last of which is an answer.

    Any message from the page, and the end of the connection, stop the task.
    """
    signal.signal(signal.SIGTERM, _stop)
    signal.signal(
        signal.SIGINT, signal.SIG_IGN
    )  # Ctrl-C is the page's to handle, which then closes the connection
    try:
        answer = _answer(connection, task, form)
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    except StopRequest:  # there is only one, which may come at any moment
        answer = failure(CANCELLED)
    with suppress(BrokenPipeError, ConnectionResetError):
        connection.send_bytes(msgspec.json.encode(answer))
    os._exit(0)  # without waiting for the thread of a download that hangs


def _answer(connection: Connection, task: str, form: PageForm) -> PageAnswer:
    """The answer of a task, also where it fails."""

    def tell(message: PageProgress) -> None:
        connection.send_bytes(msgspec.json.encode(message))

    def finish() -> None:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)

    try:
        from .tasks import TASKS

        threading.Thread(target=_watch, args=(connection,), daemon=True).start()
        refuse_long(form)
        sheet = HtmlSheet()
        TASKS[task](form, TaskContext(tell, finish), sheet)
        return PageAnswer(without_places(sheet.html(), form))
    except Exception as problem:
        return failure(without_places(redacted(reason(problem)), form))


def without_places(text: str, form: PageForm) -> str:
    """A text with the names of dropped files in place of their paths on this machine."""
    for name in UPLOADS:
        place = getattr(form, name, "")
        if place:
            text = text.replace(f"{Path(place).parent}/", "")
    return text


def failure(message: str) -> PageAnswer:
    """The answer that says in a sentence what went wrong."""
    sheet = HtmlSheet()
    sheet.problem(sentence(message))
    return PageAnswer(sheet.html(), failed=True)


def _watch(connection: Connection) -> None:
    """Stops the process when the page says so, or is gone."""
    with suppress(EOFError, OSError):
        connection.recv_bytes()
    os.kill(os.getpid(), signal.SIGTERM)


def _stop(number: int, frame: FrameType | None) -> None:
    signal.signal(number, signal.SIG_IGN)  # what is cleaned up is not stopped once more
    raise StopRequest


POLL, GRACE = 0.2, 20.0
"""Seconds between two looks at the limits, and that a process has for cleaning up."""
LOST = "this ended without an answer, probably because memory ran out"
UNFINISHED = (
    "this was stopped, and did not clean up in time; look for what it left, and run it again"
)
ELSEWHERE = "run `ropeconv` on a larger machine"
CONTEXT = multiprocessing.get_context("forkserver")
"""Processes begin with what `preload` has imported, and share nothing else with the page."""


def prepare() -> None:
    """Starts the process that others are made from, so that the first request need not wait for its
    imports.

    It ignores Ctrl-C from its start, which ends the page and thereby this process.
    """
    from multiprocessing.forkserver import ensure_running

    CONTEXT.set_forkserver_preload(["ropeconv.features.ui.preload"])
    handler = signal.signal(signal.SIGINT, signal.SIG_IGN)  # a new process inherits this
    try:
        ensure_running()
    finally:
        signal.signal(signal.SIGINT, handler)


class PageJob:
    """A running task. seconds: its limit of time, None for none. baking: whether it writes."""

    def __init__(
        self, task: str, form: PageForm, seconds: float | None, baking: bool = False
    ) -> None:
        self.seconds, self.baking = seconds, baking
        self._stopped_at: float | None = None
        self._connection, theirs = CONTEXT.Pipe()
        self._process = CONTEXT.Process(target=work, args=(theirs, task, form), daemon=True)
        self._process.start()
        theirs.close()

    def stop(self) -> None:
        """Has the process clean up and end, from any thread; its answer then says so."""
        self._stopped_at = self._stopped_at or time.monotonic()
        with suppress(OSError):
            self._connection.send_bytes(b"stop")

    def messages(self) -> Iterator[Message]:
        """The messages of the process; the last one is an Answer. To end the iteration earlier
        stops the process.
        """
        begun = time.monotonic()
        late = False
        answer: PageAnswer | None = None
        try:
            yield PageProgress(
                "Reading"
            )  # also so that the same answer once more is seen to be a new one
            # one that was stopped too long ago is not going to answer
            while answer is None and not (
                self._stopped_at and time.monotonic() - self._stopped_at > GRACE
            ):
                if (
                    self.seconds is not None
                    and not late
                    and time.monotonic() - begun > self.seconds
                ):
                    late = True
                    self.stop()
                try:
                    if not self._connection.poll(POLL):
                        continue
                    message = DECODER.decode(self._connection.recv_bytes())
                except (EOFError, OSError):  # it has ended
                    break
                if isinstance(message, PageAnswer):
                    answer = message
                else:
                    yield message
        finally:
            self._end()
        if late and (answer is None or answer.failed):
            answer = failure(
                f"this takes longer than the limit of {self.seconds:.0f} seconds; {ELSEWHERE}"
            )
        yield answer or failure(UNFINISHED if self._stopped_at else f"{LOST}; {ELSEWHERE}")

    def _end(self) -> None:
        with suppress(OSError):
            self._connection.close()
        self._process.join(GRACE)
        if self._process.is_alive():
            self._process.kill()
            self._process.join()
