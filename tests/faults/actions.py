"""What a fault can strike: the command line, and functions that commands end with. More go into ACTIONS."""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any


def command_line(arguments: list[str]) -> int:
    """`ropeconv` with arguments, without the checks by transformers and llama.cpp, which take seconds each time."""
    from ropeconv.cli.errors import run
    from ropeconv.engines.llamacpp import loading
    from ropeconv.engines.probe import Probe

    loading.available = lambda: False
    Probe.available = staticmethod(lambda: False)  # type: ignore[method-assign]
    return run(lambda **options: application().main(arguments, "ropeconv", **options))


@cache
def application() -> Any:
    """The command line, made once for all forks."""
    import typer.main

    from ropeconv.cli.app import app

    return typer.main.get_command(app)


def record_validation(arguments: list[str]) -> int:
    """Writes the result of a validation into the receipt of an output, or beside it. arguments: the output."""
    from ropeconv.cli.errors import run
    from ropeconv.receipts.read import read_receipt
    from ropeconv.receipts.write import add_validation

    def record(**options: object) -> None:
        baked = Path(arguments[0])
        add_validation(baked, read_receipt(baked), {"agrees": True, "figures": [0.5] * 1000})

    return run(record)


def on_hub(arguments: list[str]) -> int:
    """`ropeconv` with a Hub, whose cache and temporary files are in the folder it runs in.

    arguments: the URL of the Hub, and those of the command line.
    """
    import tempfile

    here = Path.cwd()
    folders = {"HF_HOME": str(here / "home"), "TMPDIR": str(here / "temporary")}
    os.environ |= {"HF_ENDPOINT": arguments[0], "HF_TOKEN": "hf_sesame", "HF_HUB_DISABLE_XET": "1", **folders}
    os.environ["HF_HUB_OFFLINE"] = "0"
    tempfile.tempdir = None
    return command_line(arguments[1:])


def careless(arguments: list[str]) -> int:
    """Copies a file straight to its final name, as nothing should. arguments: the file, and the copy."""
    source, target = arguments
    handle = os.open(target, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    os.write(handle, Path(source).read_bytes())  # write(2) may write a part, and this does not look
    os.close(handle)
    return 0


ACTIONS: dict[str, Callable[[list[str]], int]] = {
    "ropeconv": command_line,
    "record-validation": record_validation,
    "careless": careless,
    "on-hub": on_hub,
}
