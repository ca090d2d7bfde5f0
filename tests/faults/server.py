"""A process that has imported ropeconv and forks once for each command, with the shim loaded.

Reads a JSON list of runs on each line of stdin, starts them at the same time, and answers with
their exit codes. What a fault can strike is in ACTIONS: the command line, and functions that
commands end with.
"""

import contextlib
import ctypes
import importlib
import io
import json
import os
import pkgutil
import signal
import sys
import tempfile
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import ropeconv

from . import scenes


def command_line(arguments: list[str]) -> int:
    """`ropeconv` with arguments, without the checks by transformers and llama.cpp, which take
    seconds each time.
    """
    from ropeconv.cli.app import complete_app
    from ropeconv.cli.process import run
    from ropeconv.engines import llamacpp as loading
    from ropeconv.engines.probe import Probe

    loading.available = lambda: False
    Probe.available = staticmethod(lambda: False)  # type: ignore[method-assign]
    return run(lambda: complete_app()(arguments))


def record_validation(arguments: list[str]) -> int:
    """Writes the result of a validation into the receipt of an output, or beside it. arguments: the
    output.
    """
    from ropeconv.cli.process import run
    from ropeconv.inspection.receipts.storage import add_validation, read_receipt

    def record(**options: object) -> None:
        baked = Path(arguments[0])
        add_validation(baked, read_receipt(baked), {"agrees": True, "figures": [0.5] * 1000})

    return run(record)


def careless(arguments: list[str]) -> int:
    """Copies a file straight to its final name, as nothing should. arguments: the file, and the
    copy.
    """
    source, target = arguments
    handle = os.open(target, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    os.write(handle, Path(source).read_bytes())  # write(2) may write a part, and this does not look
    os.close(handle)
    return 0


ACTIONS: dict[str, Callable[[list[str]], int]] = {
    "ropeconv": command_line,
    "record-validation": record_validation,
    "careless": careless,
}


SECONDS = 120


def import_all() -> None:
    """Imports what commands import when they run, so that each fork need not."""
    for module in pkgutil.walk_packages(ropeconv.__path__, "ropeconv."):
        # the page's Gradio imports huggingface_hub, which takes its settings from the environment
        # of that moment
        unused = (
            "ropeconv.features.ui.",
            "ropeconv.engines.transformers.",
        )  # no command here needs torch, and it takes seconds
        if not module.name.endswith(("program", "__main__")) and not module.name.startswith(unused):
            importlib.import_module(module.name)
    for name in ("gguf", "rich.progress", "rich.table"):
        importlib.import_module(name)
    with tempfile.TemporaryDirectory() as folder, contextlib.redirect_stdout(io.StringIO()):
        os.chdir(folder)  # what is read once and kept, such as the table of families, is read here
        scenes.checkpoint(Path(folder))
        scenes.gguf_file(Path(folder))
        for arguments in ("model --yarn 4", "model --mixed 4 --to gguf", "model.gguf --yarn 4"):
            assert ACTIONS["ropeconv"](["apply", *arguments.split(), "--dry-run"]) == 0
        os.chdir("/")


def child(run: dict[str, Any], begin: int) -> int:
    """Runs a command in this process. begin: a pipe that says when."""
    signal.alarm(SECONDS)
    output, report = (
        os.open(run[name], os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        for name in ("output", "report")
    )
    os.dup2(output, 1)
    os.dup2(output, 2)
    os.chdir(run["folder"])
    shim = ctypes.CDLL(None)
    os.read(begin, 1)
    time.sleep(run["delay"])
    if run["mode"] is not None:
        shim.fault_arm(
            os.fsencode(run["folder"]), ctypes.c_long(run["at"]), run["mode"], run["error"], report
        )
    try:
        code = ACTIONS[run["command"][0]](run["command"][1:])
    except BaseException:
        traceback.print_exc()
        code = 99
    if run["mode"] is not None:
        shim.fault_report()
    return code


def start(run: dict[str, Any], begin: int, other: int) -> int:
    """Forks for a run, and returns the process id."""
    process = os.fork()
    if not process:
        code = 98
        try:
            os.close(other)
            code = child(run, begin)
            sys.stdout.flush()
            sys.stderr.flush()
        finally:
            os._exit(code)
    return process


def main() -> None:
    import_all()
    print("ready", flush=True)
    for line in sys.stdin:
        begin, release = os.pipe()
        processes = [start(run, begin, release) for run in json.loads(line)]
        os.write(release, bytes(len(processes)))
        codes = [os.waitstatus_to_exitcode(os.waitpid(process, 0)[1]) for process in processes]
        os.close(begin)
        os.close(release)
        print(json.dumps(codes), flush=True)


if __name__ == "__main__":
    main()
