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

from ropeconv.environment import require
from ropeconv.formats.files import scratch
from ropeconv.rope.errors import RopeconvError

from .access import PARAMETER, KeyMiddleware, OriginMiddleware, new_key
from .front import Front
from .job import prepare

if TYPE_CHECKING:
    from starlette.types import ASGIApp

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
