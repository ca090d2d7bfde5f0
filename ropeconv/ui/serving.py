"""Serves the pages, on one's own machine and as a Space."""

from __future__ import annotations

import errno
import os
import signal
import socket
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from functools import partial
from typing import Any

from ..errors import RopeconvError
from ..extras import require
from ..formats.scratch import scratch
from .access import LOOPBACK, PARAMETER, KeyMiddleware, OriginMiddleware, new_key
from .bodies import BodyMiddleware, Uploads
from .front import Front
from .job import prepare
from .rules import KEPT, LOCAL, SPACE, UPLOADS_OF_ALL, UPLOADS_OF_ONE, Rules

HOST, PORT, PORTS = "127.0.0.1", 7860, 20
"""Where the page is: the first free port of so many."""
POLL, GRACE = 0.02, 3
"""Seconds between two looks whether the server has started, and that requests have at the end."""
Ready = Callable[[str], None]


@contextmanager
def serving(rules: Rules, port: int | None = None, renewed: Ready = lambda address: None) -> Iterator[str]:
    """Serve the pages while it is entered, on this machine alone.

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

        def closed(app: Any) -> Any:
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

    def bounded(app: Any) -> Any:
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
    rules: Rules, listener: socket.socket, path: str, guarded: Callable[[Any], Any]
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
