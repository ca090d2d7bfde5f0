"""Run the requests of the pages, at most one for each page that is open in a browser."""

import threading
from collections.abc import Iterator

from ropeconv.formats.package_data import render

from .forms import PageForm
from .job import CANCELLED_MESSAGE, PageJob, failure
from .sheet import PageAnswer, PageProgress

ANSWER_SECONDS = 300.0
"""An answer may take so long; a bake may take any time."""
BUSY_MESSAGE = "a bake is running on this page; cancel it, or wait for it"
MOST_CANCELLED_PAGES = 10_000
"""Pages that are remembered."""


class Front:
    """Runs the requests of pages.

    A page is known by its session, a hash that Gradio gives it.
    """

    def __init__(self) -> None:
        self._jobs: dict[str, PageJob] = {}
        self._cancelled: dict[str, None] = {}
        self._lock = threading.Lock()

    def answers(
        self, task: str, form: PageForm, session: str, baking: bool = False
    ) -> Iterator[str]:
        """Run a task of a page, and yield HTML to show: the progress, and at last the answer.

        A page has one task at a time. A new task stops the running task of the page. If the running
        task is baking, the new task is refused instead.

        Args:
            task: The name of the task, such as "plan" or "write".
            form: The values of the page.
            session: The key of the open page in the browser.
            baking: Whether the task writes, validates or publishes. It then has no time limit.
        """
        # Start the job of this task. The lock is released before anything is yielded: a generator
        # that is abandoned at a `yield` would keep it.
        limit = None if baking else ANSWER_SECONDS
        older_job: PageJob | None = None
        with self._lock:
            refusal = self._why_refused(session, baking)
            if not refusal:
                older_job = self._jobs.get(session)
                job = PageJob(task, form, limit, baking)
                self._jobs[session] = job
        if refusal:
            yield failure(refusal).html
            return
        if older_job is not None:
            older_job.stop()

        # Show the messages of the job. If a newer task of the page has replaced it, the messages
        # are read until its process has ended, and are not shown.
        try:
            for message in job.messages():
                was_replaced = self._jobs.get(session) is not job
                if was_replaced:
                    continue
                if isinstance(message, PageAnswer):
                    yield message.html
                else:
                    yield progress_html(message)
        finally:
            with self._lock:
                if self._jobs.get(session) is job:
                    del self._jobs[session]

    def _why_refused(self, session: str, baking: bool) -> str:
        """Return the sentence for a request that is not run; empty for one that is.

        Args:
            session: The key of the page.
            baking: Whether the request is a bake, which waits in a queue before it comes here.
        """
        was_cancelled_in_queue = baking and session in self._cancelled
        if was_cancelled_in_queue:
            return CANCELLED_MESSAGE
        running = self._jobs.get(session)
        if running is not None and running.baking:
            return BUSY_MESSAGE
        return ""

    def begin(self, session: str) -> None:
        """Note that a page asks for a bake, which may have to wait."""
        with self._lock:
            self._cancelled.pop(session, None)

    def stop(self, session: str | None = None) -> None:
        """Stop what runs for a page, and its bakes that wait; None stops those of all pages."""
        with self._lock:
            jobs = [job for owner, job in self._jobs.items() if session in (None, owner)]
            if session is not None:
                self._cancelled[session] = None
                while len(self._cancelled) > MOST_CANCELLED_PAGES:
                    oldest = next(iter(self._cancelled))
                    del self._cancelled[oldest]
        for job in jobs:
            job.stop()


def progress_html(message: PageProgress) -> str:
    """Return the HTML of a progress message."""
    return render("ui/progress.html.jinja", progress=message)
