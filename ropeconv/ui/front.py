"""Front: what the pages have in common on the server. It runs their requests, and stops those of visitors who leave."""

from __future__ import annotations

import threading
from collections.abc import Iterator

from ..formats.template import render
from .asked import Asked
from .forms import Form
from .job import Job
from .messages import Answer, Progress
from .rules import Rules
from .worker import CANCELLED, failure

BUSY = "a bake is running on this page; cancel it, or wait for it"
MOST_CANCELLED = 10_000
"""Pages that are remembered."""


class Front:
    """Runs requests. rules: for all of them."""

    def __init__(self, rules: Rules) -> None:
        self.rules = rules
        self._jobs: dict[str, Job] = {}
        self._cancelled: dict[str, None] = {}
        self._lock = threading.Lock()

    def answers(self, task: str, form: Form, session: str, token: str = "", baking: bool = False) -> Iterator[str]:
        """What a page shows while a task runs, as HTML; the last is its answer.

        task: its name. form: what was typed. session: of the visitor's page. token: of the visitor's login. baking:
        whether it may take as long as a bake.
        """
        seconds = self.rules.baking_seconds if baking else self.rules.seconds
        asked = Asked(task, form, self.rules, token)
        job: Job | None = None
        with self._lock:  # and nothing is yielded here: whoever leaves then would keep it
            before = self._jobs.get(session)
            busy = before is not None and before.baking
            cancelled = baking and session in self._cancelled
            if not busy and not cancelled:
                job = self._jobs[session] = Job(asked, seconds, baking)
        if job is None:
            yield failure(CANCELLED if cancelled else BUSY).html
            return
        if before is not None:
            before.stop()  # nobody waits for its answer any more
        try:
            for message in job.messages():
                if self._jobs.get(session) is job:
                    yield message.html if isinstance(message, Answer) else _shown(message)
        finally:
            with self._lock:
                if self._jobs.get(session) is job:
                    del self._jobs[session]

    def begin(self, session: str) -> None:
        """Notes that a bake is asked for, which may have to wait. session: of the visitor's page."""
        with self._lock:
            self._cancelled.pop(session, None)

    def stop(self, session: str | None = None) -> None:
        """Stops what runs, and bakes that wait. session: of the page whose requests are stopped; None for all."""
        with self._lock:
            found = [job for one, job in self._jobs.items() if session in (None, one)]
            if session is not None:
                self._cancelled[session] = None
                while len(self._cancelled) > MOST_CANCELLED:
                    del self._cancelled[next(iter(self._cancelled))]
        for job in found:
            job.stop()


def _shown(message: Progress) -> str:
    return render("ui/progress.html.jinja", progress=message)
