"""Serves the pages, on one's own machine and as a Space."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from typing import Any

from ..errors import RopeconvError
from ..extras import require
from ..formats.scratch import scratch
from .access import PARAMETER, KeyMiddleware, new_key
from .bodies import BodyMiddleware
from .front import Front
from .job import prepare
from .rules import LOCAL, SPACE, Rules

HOST, PORT, PORTS = "127.0.0.1", 7860, 20
"""Where the page is: the first free port of so many."""
Ready = Callable[[str], None]


@contextmanager
def serving(rules: Rules, port: int | None = None) -> Iterator[str]:
    """Serves the pages while it is entered, on this machine alone; yields the address that opens them.

    rules: for visitors. port: to listen on, None for the first free one. Raises RopeconvError where it is taken.
    """
    require("gradio", "the page")
    from starlette.middleware import Middleware

    key = new_key()
    with ExitStack() as stack:
        for number in range(PORT, PORT + PORTS) if port is None else [port]:
            middleware = [Middleware(KeyMiddleware, key=key, port=number)]
            options = {"server_name": HOST, "server_port": number, "app_kwargs": {"middleware": middleware}}
            try:
                stack.enter_context(_launched(rules, **options))
                break
            except OSError as problem:
                if problem.errno is not None:  # of the system; Gradio's own, on a port that is taken, has none
                    raise
        else:
            tried = f"ports {PORT} to {PORT + PORTS - 1} are" if port is None else f"port {port} is"
            raise RopeconvError(f"{tried} taken; choose another one with --port")
        yield f"http://{HOST}:{number}/?{PARAMETER}={key}"


def serve(ready: Ready, wait: Callable[[], None], port: int | None = None) -> None:
    """Serves the pages on this machine until `wait` returns.

    ready: called with their address. wait: returns at the end. port: as in `serving`.
    """
    with serving(LOCAL, port) as address:
        ready(address)
        wait()


def serve_space(weights: bool = False, minutes: float = 5.0, memory: int = 4 << 30, upload: int = 64 << 20) -> None:
    """Serves the pages as a Space, for strangers, until the process ends.

    weights: whether what moves weights is done, which takes the disk and the time of the Space. minutes: that a bake
    may take. memory: bytes that a request may have. upload: bytes that a dropped file may have.
    """
    rules = replace(SPACE, weights=weights, baking_seconds=60 * minutes, memory=memory, upload=upload)
    name, port = os.environ.get("GRADIO_SERVER_NAME", "0.0.0.0"), int(os.environ.get("GRADIO_SERVER_PORT", PORT))
    from starlette.middleware import Middleware

    middleware = [Middleware(BodyMiddleware, upload=upload)]
    with _launched(rules, server_name=name, server_port=port, app_kwargs={"middleware": middleware}) as demo:
        signal.signal(signal.SIGTERM, signal.default_int_handler)  # a Space that is stopped removes its files
        demo.block_thread()


@contextmanager
def _launched(rules: Rules, **options: Any) -> Iterator[Any]:
    require("gradio", "the page")
    os.environ["GRADIO_ANALYTICS_ENABLED"] = "False"
    with scratch() as folder:
        os.environ["GRADIO_TEMP_DIR"] = str(folder)
        prepare()
        from .app import application, looks

        front = Front(rules)
        demo = application(front)
        try:
            demo.launch(
                prevent_thread_lock=True, quiet=True, share=False, inbrowser=False, ssr_mode=False, mcp_server=False,
                max_file_size=rules.upload, show_error=False, enable_monitoring=False, **options, **looks(),
            )  # fmt: skip
            yield demo
        finally:
            front.stop()
            demo.close(verbose=False)
