"""A process that has imported ropeconv and forks once for each command, with the shim loaded.

Reads a JSON list of runs on each line of stdin, starts them at the same time, and answers with
their exit codes. What a fault can strike is in ACTIONS: the command line, and functions that
commands end with.
"""

import contextlib
import ctypes
import importlib
import importlib.util
import io
import json
import os
import pickle
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
from ropeconv.cli.process import prepare
from ropeconv.engines import llamacpp as loading
from ropeconv.engines.probe import Probe

from . import scenes

AVAILABLE = staticmethod(Probe.available)


def command_line(arguments: list[str]) -> int:
    """`ropeconv` with arguments, without the checks by transformers and llama.cpp, which take
    seconds each time.
    """
    from ropeconv.cli.app import complete_app
    from ropeconv.cli.process import run

    _without_checks()
    return run(lambda: complete_app()(arguments))


def _without_checks() -> None:
    loading.available = lambda: False
    Probe.available = staticmethod(lambda: False)  # type: ignore[method-assign]


def running_models(arguments: list[str]) -> int:
    """`ropeconv` with arguments for a command that runs a model: transformers is there."""
    from ropeconv.cli.app import complete_app
    from ropeconv.cli.process import run

    Probe.available = AVAILABLE  # type: ignore[method-assign]
    return run(lambda: complete_app()(arguments))


def in_one_process(arguments: list[str]) -> int:
    """`ropeconv run`, whose jobs run one after another in this process, so that their calls count.

    A worker of `run` writes with `apply`, which has cases of its own.
    """
    from collections.abc import Iterator, Sequence
    from functools import partial

    from ropeconv.cli import process
    from ropeconv.errors import StopRequest
    from ropeconv.features.run.executors.executor import call
    from ropeconv.features.run.executors.local import Local

    def results(factory: bytes, items: Sequence[object]) -> Iterator[tuple[int, Any]]:
        for index, item in enumerate(items):
            result = call(factory, item)
            if process._received:  # the signal is for the process that waits for workers
                raise StopRequest
            yield index, result

    @contextlib.contextmanager
    def pool(self: Local, factory: Any, retries: int = 2) -> Iterator[Any]:
        yield partial(results, pickle.dumps(factory))

    Local.pool = pool  # type: ignore[method-assign, assignment]
    return command_line(arguments)


def page(arguments: list[str]) -> int:
    """The button of the page that writes. arguments: the model, and the output."""
    from ropeconv.cli.process import run
    from ropeconv.features.ui.forms import BakeForm
    from ropeconv.features.ui.sheet import HtmlSheet, TaskContext
    from ropeconv.features.ui.tasks import TASKS

    source, out = (str(Path(name).absolute()) for name in arguments)
    form = BakeForm(source=source, context="4", out=out)
    _without_checks()
    return run(lambda: TASKS["write"](form, TaskContext(lambda progress: None), HtmlSheet()))


def publish(arguments: list[str]) -> int:
    """`ropeconv` with arguments for a command that publishes: it tries again at once where it would
    wait.
    """
    from types import SimpleNamespace

    from huggingface_hub.utils import _http

    _http.time = SimpleNamespace(sleep=lambda seconds: None)  # type: ignore[attr-defined]
    return command_line(arguments)


def reading(arguments: list[str]) -> int:
    """`ropeconv` with arguments for a command that writes nothing: its home and its folder for
    temporary files are below the folder that it runs in, so that what it writes there counts.
    """
    for name in ("HOME", "XDG_CACHE_HOME", "XDG_CONFIG_HOME", "XDG_DATA_HOME", "TMPDIR"):
        os.environ[name] = str(Path("home").absolute())
    return command_line(arguments)


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
    "models": running_models,
    "run": in_one_process,
    "page": page,
    "reading": reading,
    "publish": publish,
    "record-validation": record_validation,
    "careless": careless,
}


SECONDS = 120


MODELS = (
    "torch",
    "transformers.models.auto.modeling_auto",
    "transformers.models.llama.modeling_llama",
    "transformers.models.auto.tokenization_auto",
    "ropeconv.engines.transformers.load",
    "ropeconv.engines.transformers.engine",
    "matplotlib.backends.backend_svg",
)
"""What commands that run models import, and others do not."""


def import_all(torch: bool) -> None:
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
    more = ["gguf", "rich.progress", "rich.table", *(MODELS if torch else ())]
    if importlib.util.find_spec("ropeconv.features.ui"):  # scripts/core_tests may leave it out
        more.append("ropeconv.features.ui.tasks")
    for name in more:
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
    prepare()
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
    import_all("torch" in sys.argv)
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
