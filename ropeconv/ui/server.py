"""Serves the pages on this machine."""

from __future__ import annotations

import errno
import os
import socket
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING

from ..environment import require
from ..formats.files import scratch
from ..formats.package_data import render
from ..rope.errors import RopeconvError
from .access import PARAMETER, KeyMiddleware, OriginMiddleware, new_key
from .forms import PageForm
from .job import CANCELLED, PageJob, failure, prepare
from .sheet import PageAnswer, PageProgress

if TYPE_CHECKING:
    from starlette.types import ASGIApp

SECONDS = 300.0
"""That an answer may take; a bake may take any time."""
BUSY = "a bake is running on this page; cancel it, or wait for it"
MOST_CANCELLED = 10_000
"""Pages that are remembered."""


class Front:
    """Runs requests."""

    def __init__(self) -> None:
        self._jobs: dict[str, PageJob] = {}
        self._cancelled: dict[str, None] = {}
        self._lock = threading.Lock()

    def answers(
        self, task: str, form: PageForm, session: str, baking: bool = False
    ) -> Iterator[str]:
        """Yield the HTML that a page shows while a task runs; the last is its answer."""
        job: PageJob | None = None
        with self._lock:  # and nothing is yielded here: whoever leaves then would keep it
            before = self._jobs.get(session)
            busy = before is not None and before.baking
            cancelled = baking and session in self._cancelled
            if not busy and not cancelled:
                job = self._jobs[session] = PageJob(task, form, None if baking else SECONDS, baking)
        if job is None:
            yield failure(CANCELLED if cancelled else BUSY).html
            return
        if before is not None:
            before.stop()  # nobody waits for its answer any more
        try:
            for message in job.messages():
                if self._jobs.get(session) is job:
                    yield message.html if isinstance(message, PageAnswer) else _shown(message)
        finally:
            with self._lock:
                if self._jobs.get(session) is job:
                    del self._jobs[session]

    def begin(self, session: str) -> None:
        """Notes that a bake is asked for, which may have to wait. session: of the page in a
        browser.
        """
        with self._lock:
            self._cancelled.pop(session, None)

    def stop(self, session: str | None = None) -> None:
        """Stops what runs, and bakes that wait. session: of the page whose requests are stopped;
        None for all.
        """
        with self._lock:
            jobs = [job for owner, job in self._jobs.items() if session in (None, owner)]
            if session is not None:
                self._cancelled[session] = None
                while len(self._cancelled) > MOST_CANCELLED:
                    del self._cancelled[next(iter(self._cancelled))]
        for job in jobs:
            job.stop()


def _shown(message: PageProgress) -> str:
    return render("ui/progress.html.jinja", progress=message)


HOST, PORT, PORTS = "127.0.0.1", 7860, 20
"""Where the page is: the first free port of so many."""
POLL, GRACE = 0.02, 3
"""Seconds between two looks whether the server has started, and that requests have at the end."""


@contextmanager
def serving(port: int | None, renewed: Callable[[str], None]) -> Iterator[str]:
    """Serve the pages while it is entered, only on this machine, and yield the address that opens
    them.

    port: to listen on, None for the first free one. renewed: called with the next address when one
    was used, since each works once. Raises RopeconvError where the port is taken.
    """
    require("gradio", "the page")
    key = new_key()
    path = new_key()
    with _listening(HOST, port) as listener:
        number = listener.getsockname()[1]

        def address(key: str) -> str:
            return f"http://{HOST}:{number}/?{PARAMETER}={key}"

        def closed(app: ASGIApp) -> ASGIApp:
            cookie = f"ropeconv-{number}"
            return OriginMiddleware(
                KeyMiddleware(app, path, key, cookie, lambda key: renewed(address(key)))
            )

        with _served(listener, f"/{path}", closed):
            yield address(key)


@contextmanager
def _listening(host: str, port: int | None) -> Iterator[socket.socket]:
    """Listen on a port, None for the first free one. Raises RopeconvError where it is taken."""
    for number in range(PORT, PORT + PORTS) if port is None else [port]:
        listener = socket.socket()
        with listener:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                listener.bind((host, number))
                listener.listen()
            except OSError as problem:
                if problem.errno != errno.EADDRINUSE:
                    reason = f"port {number} cannot be used ({problem.strerror})"
                    raise RopeconvError(f"{reason}; choose another one with --port") from None
                continue
            yield listener
            return
    tried = f"ports {PORT} to {PORT + PORTS - 1} are" if port is None else f"port {port} is"
    raise RopeconvError(f"{tried} taken; choose another one with --port")


@contextmanager
def _served(
    listener: socket.socket, path: str, guarded: Callable[[ASGIApp], ASGIApp]
) -> Iterator[None]:
    """Serve the pages in a thread. path: below which they are. guarded: what stands before all that
    Gradio answers.
    """
    os.environ["GRADIO_ANALYTICS_ENABLED"] = "False"
    with scratch() as folder:
        os.environ["GRADIO_TEMP_DIR"] = str(folder)
        prepare()
        import uvicorn
        from fastapi import FastAPI
        from gradio import mount_gradio_app

        from .pages import application, looks

        front = Front()
        demo = application(front)
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message="SSR mode")  # which is off
            # not `launch`, which puts Gradio's own CORS before every middleware
            app = mount_gradio_app(
                FastAPI(openapi_url=None),
                demo,
                path,
                show_error=False,
                ssr_mode=False,
                mcp_server=False,
                enable_monitoring=False,
                **looks(),
            )
        demo.has_launched = (
            True  # else a mounted application reads every file that a request names as dropped
        )
        config = uvicorn.Config(
            guarded(app),
            log_level="warning",
            proxy_headers=False,
            server_header=False,
            timeout_graceful_shutdown=GRACE,
        )
        server = uvicorn.Server(config)
        thread = threading.Thread(target=partial(server.run, sockets=[listener]), daemon=True)
        thread.start()
        try:
            while not server.started and thread.is_alive():
                time.sleep(POLL)
            if not server.started:
                raise RopeconvError("the page did not start; see the messages above")
            yield
        finally:
            front.stop()
            demo.close(verbose=False)
            app.routes[-1].app.stop_event.set()  # which ends the streams of pages that are open
            server.should_exit = True
            thread.join(2 * GRACE)
