"""`ropeconv ui`: the page on this machine, and its publication as a Space."""

from __future__ import annotations

import signal
import sys
import webbrowser
from typing import Annotated

from ...environment import require
from ...errors import UsageError
from ...formats.files import scratch
from ..command import HUB, command, flag
from ..output import Output

EXAMPLES = """
ropeconv ui
ropeconv ui --port 8000 --no-browser
ropeconv ui --space me/ropeconv
"""


@command(EXAMPLES)
def ui_command(
    port: Annotated[
        int | None,
        flag("To listen on (default: the first free one from 7860).", "--port", metavar="N", least=1, most=65535),
    ] = None,
    no_browser: Annotated[bool, flag("Print the address, and open no browser.", "--no-browser")] = False,
    space: Annotated[
        str, flag("Publish the page as a Space instead of opening it.", "--space", HUB, metavar="OWNER/NAME")
    ] = "",
    private: Annotated[bool, flag("Make the Space private.", "--private", HUB)] = False,
) -> None:
    """Open the browser page, to inspect, extend and publish models without a command line.

    Only this machine can reach the page, and its address works once. Press Ctrl-C to stop it.
    """
    output = Output()
    if space:
        from ...ui.server import publish_space

        if port is not None or no_browser:
            raise UsageError("--port and --no-browser are for the page on this machine; leave them out with --space")
        output.copyable(publish_space(space, private=private))
        return
    if private:
        raise UsageError("--private goes with --space OWNER/NAME; add it, or leave --private out")
    require("gradio", "`ropeconv ui`")
    from ...ui.access import write_redirect
    from ...ui.server import serve

    def ready(address: str) -> None:
        output.copyable(address)
        output.note("The address works once. Ctrl-C ends the page.")
        sys.stdout.flush()
        if not no_browser:
            webbrowser.open(write_redirect(folder, address).as_uri())

    def renewed(address: str) -> None:
        output.note("The address was used. To open the page once more, for example in another browser:")
        output.copyable(address)
        sys.stdout.flush()

    try:
        with scratch() as folder:
            serve(ready, signal.pause, port, renewed)
    except KeyboardInterrupt:
        output.note("The page is closed.")
