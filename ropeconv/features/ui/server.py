"""Serve the pages on this machine: `serving` is the function to read first."""

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
from typing import TYPE_CHECKING, Any

from ropeconv.environment import require
from ropeconv.formats.files import scratch
from ropeconv.rope.errors import RopeconvError

from .access import PARAMETER, KeyMiddleware, OriginMiddleware, new_key
from .front import Front
from .job import prepare as prepare_processes

if TYPE_CHECKING:
    from starlette.types import ASGIApp

HOST = "127.0.0.1"
FIRST_PORT = 7860
"""The first port that is tried."""
PORTS_TO_TRY = 20
"""How many ports are tried."""
POLL_SECONDS = 0.02
"""Seconds between two checks whether the server has started."""
GRACE_SECONDS = 3
"""Seconds that open requests have to finish when the server stops."""


@contextmanager
def serving(port: int | None, renewed: Callable[[str], None]) -> Iterator[str]:
    """Serve the pages to browsers on this machine during a `with` block.

    The block receives the address of the pages, such as http://127.0.0.1:7860/?key=....

    Args:
        port: The port to listen on; None for the first free port.
        renewed: Called with a new address when an address was used, since each opens the pages in
            one browser only.

    Raises:
        RopeconvError: The port is taken.
    """
    require("gradio", "the page")
    first_key = new_key()  # a secret in the address, which lets one browser in
    # a second secret: all pages are below this path, so that another user of this machine who
    # reaches the port finds nothing there
    secret_path = new_key()
    with _listening(HOST, port) as listener:
        _, chosen_port = listener.getsockname()

        def address_with(key: str) -> str:
            return f"http://{HOST}:{chosen_port}/?{PARAMETER}={key}"

        def tell_next_address(next_key: str) -> None:
            renewed(address_with(next_key))

        def guard(app: ASGIApp) -> ASGIApp:
            cookie = f"ropeconv-{chosen_port}"
            with_key = KeyMiddleware(
                app, secret_path, first_key, cookie, on_new_key=tell_next_address
            )
            return OriginMiddleware(with_key)

        with _serve(listener, f"/{secret_path}", guard):
            yield address_with(first_key)


@contextmanager
def _listening(host: str, port: int | None) -> Iterator[socket.socket]:
    """Listen on a port during a `with` block.

    Args:
        host: The address of the interface.
        port: The port; None for the first free one from 7860 on.

    Raises:
        RopeconvError: The port is taken, or may not be used.
    """
    if port is None:
        numbers = list(range(FIRST_PORT, FIRST_PORT + PORTS_TO_TRY))
        taken = f"ports {FIRST_PORT} to {FIRST_PORT + PORTS_TO_TRY - 1} are taken"
    else:
        numbers = [port]
        taken = f"port {port} is taken"

    for number in numbers:
        with socket.socket() as listener:
            # a port whose last connections still wait for their end is free
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                listener.bind((host, number))
                listener.listen()
            except OSError as problem:
                if problem.errno == errno.EADDRINUSE:
                    continue
                raise RopeconvError(
                    f"port {number} cannot be used ({problem.strerror}); choose another one with"
                    " --port"
                ) from None
            yield listener
            return
    raise RopeconvError(f"{taken}; choose another one with --port")


@contextmanager
def _serve(
    listener: socket.socket, path: str, guard: Callable[[ASGIApp], ASGIApp]
) -> Iterator[None]:
    """Run the web server in a thread during a `with` block.

    The block begins when the server answers. The end of the block ends all requests.

    Args:
        listener: The socket, which listens already.
        path: The first part of the path of every page, such as `/` and a secret.
        guard: Wraps the application in checks that refuse requests of other users and websites.

    Raises:
        RopeconvError: The server did not start.
    """
    with scratch() as folder:
        # Gradio reads GRADIO_... when it is imported, and `.pages` imports it
        os.environ["GRADIO_ANALYTICS_ENABLED"] = "False"
        os.environ["GRADIO_TEMP_DIR"] = str(folder)
        prepare_processes()
        from .pages import application

        front = Front()  # runs the jobs that the pages start
        pages = application(front)  # the pages, as an application of Gradio
        fastapi_app = _mount(pages, path)
        mounted_gradio = fastapi_app.routes[-1].app  # `_mount` adds the pages as the last route
        server = _make_server(guard(fastapi_app))
        run = partial(server.run, sockets=[listener])
        thread = threading.Thread(target=run, daemon=True)
        thread.start()

        try:
            while not server.started and thread.is_alive():
                time.sleep(POLL_SECONDS)
            if not server.started:
                raise RopeconvError("the page did not start; see the messages above")
            yield
        finally:
            # first the jobs
            front.stop()
            # then the open pages, whose streams of events keep the server from its end
            pages.close(verbose=False)
            mounted_gradio.stop_event.set()
            # at last the server and its thread
            server.should_exit = True
            thread.join(2 * GRACE_SECONDS)


def _mount(pages: Any, path: str) -> Any:
    """Return an application of FastAPI with the pages of Gradio below a path."""
    from fastapi import FastAPI
    from gradio import mount_gradio_app

    from .pages import looks

    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="SSR mode")  # which is off
        # not `launch`, which puts Gradio's own CORS before every middleware
        app = mount_gradio_app(
            FastAPI(openapi_url=None),
            pages,
            path,
            show_error=False,
            ssr_mode=False,
            mcp_server=False,
            enable_monitoring=False,
            **looks(),
        )
    # Gradio checks that a file named in a request was uploaded by this user, and skips the check
    # before `launch`, which a mounted application never calls. So it would read any file.
    pages.has_launched = True
    return app


def _make_server(app: ASGIApp) -> Any:
    """Return a server of uvicorn, which does not run yet."""
    import uvicorn

    config = uvicorn.Config(
        app,
        log_level="warning",
        proxy_headers=False,
        server_header=False,
        timeout_graceful_shutdown=GRACE_SECONDS,
    )
    return uvicorn.Server(config)
