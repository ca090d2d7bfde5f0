"""`ropeconv ui`: the page on this machine."""

import signal
import sys
import webbrowser
from typing import Annotated

import typer

from ropeconv.cli.command import expand_options
from ropeconv.cli.screen import Screen
from ropeconv.cli.typer_classes import Command
from ropeconv.environment import require
from ropeconv.formats.files import scratch
from ropeconv.options import GENERAL

app = typer.Typer(add_completion=False)

EXAMPLES = """
ropeconv ui
ropeconv ui --port 8000 --no-browser
"""


@app.command("ui", cls=Command, epilog=EXAMPLES)
@expand_options
def ui_command(
    port: Annotated[
        int | None,
        typer.Option(
            "--port",
            help="To listen on (default: the first free one from 7860).",
            rich_help_panel=GENERAL,
            metavar="N",
            min=1,
            max=65535,
        ),
    ] = None,
    no_browser: Annotated[
        bool,
        typer.Option(
            "--no-browser", help="Print the address, and open no browser.", rich_help_panel=GENERAL
        ),
    ] = False,
) -> None:
    """Open the browser page, to inspect, extend and publish models without a command line.

    Only this machine can reach the page, and its address works once. Press Ctrl-C to stop it.
    """
    screen = Screen()
    require("gradio", "`ropeconv ui`")
    from .access import write_redirect
    from .server import serving

    def tell_next(address: str) -> None:
        screen.note(
            "The address was used. To open the page once more, for example in another browser:"
        )
        screen.copyable(address)
        sys.stdout.flush()

    try:
        with scratch() as folder, serving(port, tell_next) as address:
            screen.copyable(address)
            screen.note("The address works once. Ctrl-C ends the page.")
            sys.stdout.flush()
            if not no_browser:
                webbrowser.open(write_redirect(folder, address).as_uri())
            signal.pause()  # the page is served by other threads, until Ctrl-C
    except KeyboardInterrupt:
        screen.note("The page is closed.")
