"""A request in a process of its own, which is stopped when its page does not want it any more.

`PageJob` starts the process and reads its messages; `work` is the function that runs in it.
"""

import math
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

from ropeconv.environment import redact_logs, redacted
from ropeconv.errors import StopRequest, reason
from ropeconv.views.sheet import sentence

from .forms import UPLOADS, PageForm, refuse_long
from .sheet import HtmlSheet, PageAnswer, PageProgress, TaskContext

Message = PageProgress | PageAnswer
DECODER = msgspec.json.Decoder[Message](Message)
CANCELLED_MESSAGE = "cancelled: nothing was kept"


def work(connection: Connection, task: str, form: PageForm) -> None:
    """Do a task and send its messages, the last of which is an answer.

    Any message from the page, and the end of the connection, stop the task.

    Args:
        connection: The connection to the page.
        task: The name of the task.
        form: The values of the page.
    """
    redact_logs()
    signal.signal(signal.SIGTERM, _stop)
    # Ctrl-C is for the process of the page, which then closes the connection
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        answer = _answer(connection, task, form)
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    except StopRequest:  # raised by _stop at any moment, also in the line above, and only once
        answer = failure(CANCELLED_MESSAGE)
    with suppress(BrokenPipeError, ConnectionResetError):
        connection.send_bytes(msgspec.json.encode(answer))
    os._exit(0)  # without waiting for the thread of a download that hangs


def _answer(connection: Connection, task: str, form: PageForm) -> PageAnswer:
    """Return the answer of a task, also where it fails.

    Args:
        connection: The connection to the page, which gets the progress.
        task: The name of the task.
        form: The values of the page.
    """

    def tell(message: PageProgress) -> None:
        connection.send_bytes(msgspec.json.encode(message))

    def finish() -> None:
        """Ignore a stop from now on: the output has its name, and cannot be taken back."""
        signal.signal(signal.SIGTERM, signal.SIG_IGN)

    try:
        from .tasks import TASKS

        # ends this process when the page asks for that, or is gone
        threading.Thread(target=_watch, args=(connection,), daemon=True).start()
        refuse_long(form)  # a form with a very long field
        sheet = HtmlSheet()
        run_task = TASKS[task]
        run_task(form, TaskContext(tell, finish), sheet)
        # a user sees the names of dropped files, and not where this machine keeps them
        return PageAnswer(without_places(sheet.html(), form))
    except Exception as problem:
        message = redacted(reason(problem))  # without tokens of the Hub
        return failure(without_places(message, form))


def without_places(text: str, form: PageForm) -> str:
    """Return a text with the names of dropped files in place of their paths on this machine."""
    for name in UPLOADS:
        place = getattr(form, name, "")
        if place:
            text = text.replace(f"{Path(place).parent}/", "")
    return text


def failure(message: str) -> PageAnswer:
    """Return the answer that says in a sentence what went wrong."""
    sheet = HtmlSheet()
    sheet.problem(sentence(message))
    return PageAnswer(sheet.html(), failed=True)


def _watch(connection: Connection) -> None:
    """Stop the process when the page says so, or is gone."""
    with suppress(EOFError, OSError):
        connection.recv_bytes()
    os.kill(os.getpid(), signal.SIGTERM)


def _stop(number: int, frame: FrameType | None) -> None:
    """Raise StopRequest in the task, as a handler of a signal."""
    signal.signal(number, signal.SIG_IGN)  # what is cleaned up is not stopped once more
    raise StopRequest


POLL_SECONDS = 0.2
"""Seconds between two looks at the limits."""
GRACE_SECONDS = 20.0
"""Seconds that a process has for cleaning up."""
WORDS_WITHOUT_ANSWER = "this ended without an answer, probably because memory ran out"
WORDS_NOT_CLEANED_UP = (
    "this was stopped, and did not clean up in time; look for what it left, and run it again"
)
WORDS_OF_REPAIR = "run `ropeconv` on a larger machine"
PROCESSES = multiprocessing.get_context("forkserver")
"""Processes begin with what `preload` has imported, and share nothing else with the page."""


def prepare() -> None:
    """Start the process that others are made from, so that no request waits for its imports.

    It ignores Ctrl-C from its start, which ends the page and thereby this process.
    """
    from multiprocessing.forkserver import ensure_running

    PROCESSES.set_forkserver_preload(["ropeconv.features.ui.preload"])
    handler = signal.signal(signal.SIGINT, signal.SIG_IGN)  # a new process inherits this
    try:
        ensure_running()
    finally:
        signal.signal(signal.SIGINT, handler)


class PageJob:
    """A running task."""

    def __init__(
        self, task: str, form: PageForm, seconds: float | None, baking: bool = False
    ) -> None:
        """Start a process that runs a task of a page.

        Args:
            task: The name of the task, such as "plan" or "write".
            form: The values of the page.
            seconds: The time limit of the task; None for no limit.
            baking: Whether the task writes files, validates or publishes. Another task of the page
                then cannot stop it.
        """
        self.seconds = seconds
        self.baking = baking
        self._stopped_at: float | None = None  # the time of the first `stop`, by time.monotonic
        self._connection, other_end = PROCESSES.Pipe()
        self._process = PROCESSES.Process(target=work, args=(other_end, task, form), daemon=True)
        self._process.start()
        # The process has its own copy of `other_end`. Only when all copies are closed does the
        # connection report that the process has ended.
        other_end.close()

    def stop(self) -> None:
        """Let the process clean up and end, from any thread; its answer then says so."""
        if self._stopped_at is None:
            self._stopped_at = time.monotonic()
        with suppress(OSError):
            self._connection.send_bytes(b"stop")

    def messages(self) -> Iterator[Message]:
        """Yield the messages of the process; the last one is an answer.

        Closing the iterator earlier stops the process.
        """
        deadline = math.inf
        if self.seconds is not None:
            deadline = time.monotonic() + self.seconds
        is_late = False
        answer: PageAnswer | None = None
        try:
            # at once, so that a second answer with the same words is seen to be a new one
            yield PageProgress("Reading")

            # When its time is over, the process is asked to stop (once, is_late), and may still
            # send its answer while it cleans up. After a grace period it is overdue, and is not
            # waited for.
            while answer is None and not self._is_overdue():
                if not is_late and time.monotonic() > deadline:
                    is_late = True
                    self.stop()
                try:
                    has_message = self._connection.poll(POLL_SECONDS)
                    if not has_message:
                        continue
                    message = DECODER.decode(self._connection.recv_bytes())
                except (EOFError, OSError):  # the process has ended
                    break
                if isinstance(message, PageAnswer):
                    answer = message
                else:
                    yield message
        finally:
            self._end()
        yield self._answer_to_show(answer, is_late)

    def _answer_to_show(self, answer: PageAnswer | None, is_late: bool) -> PageAnswer:
        """Return the answer of the process, or an answer that says why it has none.

        Args:
            answer: The answer of the process; None if it ended without an answer.
            is_late: Whether the process took longer than its time limit.
        """
        # The time limit is over, and the process was stopped. It may have finished just then.
        has_good_answer = answer is not None and not answer.failed
        if is_late and not has_good_answer:
            limit = f"the limit of {self.seconds:.0f} seconds"
            return failure(f"this takes longer than {limit}; {WORDS_OF_REPAIR}")

        if answer is not None:
            return answer

        # a process that the user has stopped answers after it has cleaned up; here it did not
        was_stopped = self._stopped_at is not None  # the time of the stop
        if was_stopped:
            return failure(WORDS_NOT_CLEANED_UP)

        # the process ended without a stop
        return failure(f"{WORDS_WITHOUT_ANSWER}; {WORDS_OF_REPAIR}")

    def _is_overdue(self) -> bool:
        """Whether the process was stopped so long ago that it is not going to answer."""
        if self._stopped_at is None:
            return False
        return time.monotonic() - self._stopped_at > GRACE_SECONDS

    def _end(self) -> None:
        """Wait for the end of the process, and kill it where it does not come."""
        with suppress(OSError):
            self._connection.close()
        self._process.join(GRACE_SECONDS)
        if self._process.is_alive():
            self._process.kill()
            self._process.join()
