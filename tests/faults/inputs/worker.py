"""Runs commands on inputs in this process and judges them; one line of JSON per command on stdout.

`python -m tests.faults.inputs.worker NAME NUMBER...`
"""

from __future__ import annotations

import contextlib
import gc
import io
import json
import os
import re
import resource
import shutil
import sys
import tempfile
import time
import traceback
from collections.abc import Callable
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path

from .formats import PREPARE, load, write_input

SECONDS, MEGABYTES = 5.0, 500.0
"""Processor time and memory beyond what the process has before, per command."""
GUARD = 2 << 30
"""Address space beyond which an allocation fails, so that a test cannot take the machine's memory."""
KNOWN_CODES = (0, 1, 2, 3)
UNEXPECTED = re.compile(r"unexpected \w+:|report it$", re.MULTILINE)
"""What `ropeconv.cli.errors` says of an exception that nobody planned for."""


@dataclass(frozen=True)
class Outcome:
    """What a command did with an input.

    number: of the input. command: the command line. code: exit code. message: the end of stderr. seconds: of processor
    time. megabytes: at the peak, beyond the start. where: the line of the package that an unexpected error came from.
    problem: what is wrong with that, or empty.
    """

    number: int
    command: list[str]
    code: int
    message: str
    seconds: float
    megabytes: float
    where: str
    problem: str


def entries(folder: Path) -> dict[str, tuple[int, int]]:
    """Every path below a folder with its size and time of change. Links are not followed."""
    found = {}
    for here, folders, names in os.walk(folder):
        for name in (*folders, *names):
            path = os.path.join(here, name)
            seen = os.lstat(path)
            found[path] = (0 if name in folders else seen.st_size, 0 if name in folders else seen.st_mtime_ns)
    return found


def judge(code: int, message: str, seconds: float, megabytes: float, changed: bool) -> str:
    """What is wrong with a run, or empty. Parameters as in `Outcome`; changed: whether any file did."""
    if "Traceback" in message:
        return "a traceback"
    if UNEXPECTED.search(message):
        return "unexpected"
    if code not in KNOWN_CODES:
        return f"exit code {code}"
    if code and not message.startswith("ropeconv: "):
        return "no sentence"
    if seconds > SECONDS:
        return f"{seconds:.1f} s"
    if megabytes > MEGABYTES:
        return f"{megabytes:.0f} MB"
    if code not in (0, 3) and changed:
        return "wrote something"
    return ""


def _peak() -> float:
    """The largest memory of this process since the last reset, in megabytes."""
    found = re.search(r"VmHWM:\s+(\d+) kB", Path("/proc/self/status").read_text())
    return int(found[1]) / 1000 if found else 0.0


@cache
def _application() -> Callable[..., object]:
    """The command line, which typer would otherwise put together anew for each run."""
    import typer

    from ropeconv.cli.app import app

    return typer.main.get_command(app)


def run_command(number: int, command: list[str], folder: Path) -> Outcome:
    """Runs one command in a folder."""
    from ropeconv.cli import errors

    where: list[str] = []
    report = errors._report

    def noted(problem: BaseException) -> int:
        frames = [frame for frame in traceback.extract_tb(problem.__traceback__) if "/ropeconv/" in frame.filename]
        if frames:
            where[:] = [f"{frames[-1].filename.rpartition('/ropeconv/')[2]}:{frames[-1].lineno} {frames[-1].name}"]
        return report(problem)

    # as a terminal has them: lone surrogates cannot be printed on stdout, and are escaped on stderr
    out = io.TextIOWrapper(io.BytesIO(), "utf-8")
    err = io.TextIOWrapper(io.BytesIO(), "utf-8", errors="backslashreplace")
    before, start = entries(folder), time.process_time()
    with contextlib.suppress(OSError):
        Path("/proc/self/clear_refs").write_text("5")
    least = _peak()
    sys.argv = ["ropeconv", *command]
    errors._report = noted
    try:
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            code = errors.run(_application())
            out.flush()
    except BaseException:
        code, where = 1, []
        err.write(traceback.format_exc())
    finally:
        errors._report = report
    seconds, megabytes = time.process_time() - start, _peak() - least
    err.flush()
    message = err.buffer.getvalue().decode()[-2000:]  # type: ignore[attr-defined]
    said = message if code else ""
    problem = judge(code, said, seconds, megabytes, before != entries(folder))
    return Outcome(number, command, code, message, seconds, megabytes, (where or [""])[0], problem)


def run_input(name: str, number: int, root: Path) -> list[Outcome]:
    """Runs the commands of one input."""
    folder = root / str(number)
    folder.mkdir()
    os.chdir(folder)
    try:
        return [run_command(number, command, folder) for command in write_input(name, number, folder)]
    finally:
        os.chdir(root)
        shutil.rmtree(folder, ignore_errors=True)


def _prepare() -> None:
    """Imports what commands import, so that it is not measured, and leaves the installed transformers out."""
    load()
    import numpy  # noqa: F401
    import safetensors.numpy  # noqa: F401

    import ropeconv.bake
    import ropeconv.bake.restore
    import ropeconv.views.plan  # noqa: F401
    from ropeconv.cli import _silence_libraries
    from ropeconv.engines import probe

    probe.Probe.available = staticmethod(lambda: False)  # type: ignore[method-assign,assignment]
    size = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (size + GUARD, resource.getrlimit(resource.RLIMIT_AS)[1]))
    _silence_libraries()
    gc.disable()  # as the command line does
    gc.freeze()


def main(name: str, numbers: list[int]) -> None:
    """Runs inputs and prints their outcomes."""
    stdout = sys.stdout
    with tempfile.TemporaryDirectory(prefix="ropeconv-inputs-") as root:
        os.environ["XDG_CACHE_HOME"] = os.environ["HF_HOME"] = f"{root}/cache"
        os.environ["HF_HUB_OFFLINE"] = "1"
        _prepare()
        PREPARE.get(name, lambda: None)()
        for number in numbers:
            print(json.dumps({"begins": number}), file=stdout, flush=True)
            for outcome in run_input(name, number, Path(root)):
                print(json.dumps(asdict(outcome)), file=stdout, flush=True)
            if number % 20 == 0:
                gc.collect()
    sys.exit(0)


if __name__ == "__main__":
    main(sys.argv[1], [int(number) for number in sys.argv[2].split(",")])
