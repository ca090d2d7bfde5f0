"""Serves the pages, on one's own machine and as a Space."""

from __future__ import annotations

import errno
import os
import signal
import socket
import sys
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from functools import partial
from importlib.metadata import PackageNotFoundError, metadata, version
from typing import TYPE_CHECKING

from ..environment import require
from ..formats.files import scratch
from ..formats.package_data import render
from ..hub.options import PublishOptions, repository
from ..models.hub import answers
from ..rope.errors import RopeconvError
from ..version import __version__
from .access import LOOPBACK, PARAMETER, BodyMiddleware, KeyMiddleware, OriginMiddleware, Uploads, new_key
from .forms import PageForm
from .job import CANCELLED, PageJob, failure, prepare
from .rules import KEPT, LOCAL, SPACE, UPLOADS_OF_ALL, UPLOADS_OF_ONE, PageAnswer, PageProgress, PageRequest, Rules

if TYPE_CHECKING:
    from huggingface_hub import HfApi
    from starlette.types import ASGIApp

BUSY = "a bake is running on this page; cancel it, or wait for it"
MOST_CANCELLED = 10_000
"""Pages that are remembered."""


class Front:
    """Runs requests. rules: for all of them."""

    def __init__(self, rules: Rules) -> None:
        self.rules = rules
        self._jobs: dict[str, PageJob] = {}
        self._cancelled: dict[str, None] = {}
        self._lock = threading.Lock()

    def answers(self, task: str, form: PageForm, session: str, token: str = "", baking: bool = False) -> Iterator[str]:
        """Yield the HTML that a page shows while a task runs; the last is its answer.

        task: its name. form: what was typed. session: of the visitor's page. token: of the visitor's login. baking:
        whether it may take as long as a bake.
        """
        seconds = self.rules.baking_seconds if baking else self.rules.seconds
        page_request = PageRequest(task, form, self.rules, token)
        job: PageJob | None = None
        with self._lock:  # and nothing is yielded here: whoever leaves then would keep it
            before = self._jobs.get(session)
            busy = before is not None and before.baking
            cancelled = baking and session in self._cancelled
            if not busy and not cancelled:
                job = self._jobs[session] = PageJob(page_request, seconds, baking)
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
        """Notes that a bake is asked for, which may have to wait. session: of the visitor's page."""
        with self._lock:
            self._cancelled.pop(session, None)

    def stop(self, session: str | None = None) -> None:
        """Stops what runs, and bakes that wait. session: of the page whose requests are stopped; None for all."""
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
Ready = Callable[[str], None]


@contextmanager
def serving(rules: Rules, port: int | None = None, renewed: Ready = lambda address: None) -> Iterator[str]:
    """Serve the pages while it is entered, only on this machine.

    Args:
        rules: Those for visitors.
        port: To listen on, None for the first free one.
        renewed: Called with the next address when one was used, since each works once.

    Yields:
        The address that opens them.

    Raises:
        RopeconvError: The port is taken.
    """
    require("gradio", "the page")
    key, path = new_key(), new_key()
    with _listening(HOST, port) as listener:
        number = listener.getsockname()[1]

        def address(key: str) -> str:
            return f"http://{HOST}:{number}/?{PARAMETER}={key}"

        def closed(app: ASGIApp) -> ASGIApp:
            cookie = f"ropeconv-{number}"
            return OriginMiddleware(KeyMiddleware(app, path, key, cookie, lambda key: renewed(address(key))), LOOPBACK)

        with _served(rules, listener, f"/{path}", closed):
            yield address(key)


def serve(
    ready: Ready, wait: Callable[[], None], port: int | None = None, renewed: Ready = lambda address: None
) -> None:
    """Serve the pages on this machine until `wait` returns.

    Args:
        ready: Called with their address.
        wait: Returns at the end.
        port: As in `serving`.
        renewed: As in `serving`.
    """
    with serving(LOCAL, port, renewed) as address:
        ready(address)
        wait()


def serve_space(weights: bool = False, minutes: float = 5.0, memory: int = 4 << 30, upload: int = 64 << 20) -> None:
    """Serves the pages as a Space, for strangers, until the process ends.

    weights: whether what moves weights is done, which takes the disk and the time of the Space. minutes: that a bake
    may take. memory: bytes that a request may have. upload: bytes that a dropped file may have.
    """
    rules = replace(SPACE, weights=weights, baking_seconds=60 * minutes, memory=memory, upload=upload)
    name, port = os.environ.get("GRADIO_SERVER_NAME", "0.0.0.0"), int(os.environ.get("GRADIO_SERVER_PORT", PORT))
    uploads = Uploads(upload * UPLOADS_OF_ONE, upload * UPLOADS_OF_ALL, sum(KEPT))

    def bounded(app: ASGIApp) -> ASGIApp:
        return OriginMiddleware(BodyMiddleware(app, upload, uploads), hosts=None)

    with _listening(name, port) as listener, _served(rules, listener, "/", bounded) as thread:
        signal.signal(signal.SIGTERM, signal.default_int_handler)  # a Space that is stopped removes its files
        with suppress(KeyboardInterrupt):
            thread.join()


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
    rules: Rules, listener: socket.socket, path: str, guarded: Callable[[ASGIApp], ASGIApp]
) -> Iterator[threading.Thread]:
    """Serve the pages in a thread. path: below which they are. guarded: what stands before all that Gradio answers."""
    require("gradio", "the page")
    os.environ["GRADIO_ANALYTICS_ENABLED"] = "False"
    with scratch() as folder:
        os.environ["GRADIO_TEMP_DIR"] = str(folder)
        prepare()
        import uvicorn
        from fastapi import FastAPI
        from gradio import mount_gradio_app

        from .app import application, looks

        front = Front(rules)
        demo = application(front)
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message="SSR mode")  # which is off
            # not `launch`, which puts Gradio's own CORS before every middleware
            app = mount_gradio_app(
                FastAPI(openapi_url=None), demo, path, max_file_size=rules.upload, show_error=False, ssr_mode=False,
                mcp_server=False, enable_monitoring=False, **looks(),
            )  # fmt: skip
        demo.has_launched = True  # else a mounted application reads every file that a request names as dropped
        config = uvicorn.Config(
            guarded(app), log_level="warning", proxy_headers=False, server_header=False, timeout_graceful_shutdown=GRACE
        )
        server = uvicorn.Server(config)
        thread = threading.Thread(target=partial(server.run, sockets=[listener]), daemon=True)
        thread.start()
        try:
            while not server.started and thread.is_alive():
                time.sleep(POLL)
            if not server.started:
                raise RopeconvError("the page did not start; see the messages above")
            yield thread
        finally:
            front.stop()
            demo.close(verbose=False)
            app.routes[-1].app.stop_event.set()  # which ends the streams of pages that are open
            server.should_exit = True
            thread.join(2 * GRACE)


MARK = "from ropeconv.ui.server import serve_space"
"""A line that only the program of such a Space has."""
EMPTY = {".gitattributes"}
"""Files of a new Space, which a run that was stopped leaves."""
PROGRAM = "app.py"
FILES = ("README.md", "requirements.txt", PROGRAM)


def files() -> dict[str, str]:
    """The files of a Space, by name."""
    values = {
        "version": __version__,
        "gradio": version("gradio"),
        "python": f"{sys.version_info.major}.{sys.version_info.minor}",
        "homepage": _homepage(),
    }
    return {name: render(f"space/{name}.jinja", **values) for name in FILES}


def publish_space(name: str, private: bool = False) -> str:
    """Publishes a Space, or the newer version of one that is there, and returns its address.

    name: owner/name. private: of a new one. Raises UsageError where the name is none, RopeconvError for a Space with
    another program, and what huggingface_hub raises.
    """
    require("gradio", "the page")
    from huggingface_hub import CommitOperationAdd

    from ..hub.publish import client

    repo_id = repository(name)
    api = client(PublishOptions())
    with answers(repo_id):
        if api.repo_exists(repo_id, repo_type="space"):
            _refuse_other(api, repo_id)
            if private and not api.space_info(repo_id).private:
                raise RopeconvError(f"{repo_id} exists and is public; leave --private out, or change it on the Hub")
        else:
            api.create_repo(repo_id, repo_type="space", space_sdk="gradio", private=private)
        operations = [CommitOperationAdd(path, text.encode()) for path, text in files().items()]
        api.create_commit(repo_id, operations, commit_message=f"ropeconv {__version__}", repo_type="space")
    return f"{api.endpoint}/spaces/{repo_id}"


def _refuse_other(api: HfApi, repo_id: str) -> None:
    """Raises RopeconvError for a Space that is not one of these."""
    if api.file_exists(repo_id, PROGRAM, repo_type="space"):
        with open(api.hf_hub_download(repo_id, PROGRAM, repo_type="space"), encoding="utf-8", errors="replace") as file:
            if MARK in file.read():
                return
    elif set(api.list_repo_files(repo_id, repo_type="space")) <= EMPTY:
        return
    raise RopeconvError(f"{repo_id} is a Space with another program; choose another name")


def _homepage() -> str:
    """The page of the project, as its metadata has it."""
    try:
        urls = metadata("ropeconv").get_all("Project-URL") or []
    except PackageNotFoundError:
        urls = []
    return next((url.partition(", ")[2] for url in urls if url.startswith("Homepage, ")), "")
