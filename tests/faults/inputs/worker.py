"""Runs commands on inputs and judges them, in processes that may die: one line of JSON per command on their stdout.

`python -m tests.faults.inputs.worker NAME NUMBER,NUMBER...` does so in this process.
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
import subprocess
import sys
import tempfile
import threading
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from functools import cache
from pathlib import Path
from typing import NamedTuple

from .folders import write_checkpoint
from .formats import PREPARE, load, write_input

SECONDS, MEGABYTES = 5.0, 500.0
"""Processor time and memory beyond what the process has before, per command."""
PACE = 0.04
"""Processor time of a plain command on a machine to which `SECONDS` applies; a slower machine has more."""
GUARD = 2 << 30
"""Address space beyond which an allocation fails, so that a test cannot take the machine's memory."""
CHUNK = 250
"""Inputs per process."""
HANGS = 24 * SECONDS
"""Seconds of silence after which a process is ended: `SECONDS` of a processor that may be shared with other tests."""
UNEXPECTED = re.compile(r"unexpected \w+:|report it$", re.MULTILINE)
"""What `ropeconv.cli.errors` says of an exception that nobody planned for."""
WORKER = [sys.executable, "-m", "tests.faults.inputs.worker"]


class Outcome(NamedTuple):
    """What a command did with an input.

    number: of the input. command: the command line. code: exit code. message: the end of stderr. seconds: of processor
    time. megabytes: at the peak, beyond the start. where: the line of the package that an unexpected error came from.
    problem: what is wrong with that, or empty.
    """

    number: int
    command: list[str]
    code: int
    message: str
    seconds: float = 0.0
    megabytes: float = 0.0
    where: str = ""
    problem: str = ""


def entries(folder: Path) -> dict[str, tuple[int, int]]:
    """Every file below a folder with its size and time of change, and every folder. Links are not followed."""
    found = {}
    for here, folders, names in os.walk(folder):
        found |= {os.path.join(here, name): (0, 0) for name in folders}
        for path in (os.path.join(here, name) for name in names):
            found[path] = (os.lstat(path).st_size, os.lstat(path).st_mtime_ns)
    return found


def judge(code: int, message: str, seconds: float, megabytes: float, changed: bool, slower: float = 1.0) -> str:
    """What is wrong with a run, or empty. changed: whether any file did. slower: than the machine of `PACE`."""
    if "Traceback" in message:
        return "a traceback"
    if UNEXPECTED.search(message):
        return "unexpected"
    if code not in (0, 1, 2, 3):
        return f"exit code {code}"
    if code and not message.startswith("ropeconv: "):
        return "no sentence"
    if seconds > SECONDS * max(1.0, slower):
        return f"{seconds:.1f} s"
    if megabytes > MEGABYTES:
        return f"{megabytes:.0f} MB"
    return "wrote something" if code not in (0, 3) and changed else ""


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


def _run(command: list[str]) -> tuple[int, str, str]:
    """Runs a command. Returns its exit code, its stderr, and where an unexpected error came from."""
    from ropeconv.cli import errors

    where, report = "", errors._report

    def noted(problem: BaseException) -> int:
        nonlocal where
        frames = [frame for frame in traceback.extract_tb(problem.__traceback__) if "/ropeconv/" in frame.filename]
        if frames:
            where = f"{frames[-1].filename.rpartition('/ropeconv/')[2]}:{frames[-1].lineno} {frames[-1].name}"
        return report(problem)

    # as a terminal has them: lone surrogates cannot be printed on stdout, and are escaped on stderr
    out = io.TextIOWrapper(io.BytesIO(), "utf-8")
    err = io.TextIOWrapper(io.BytesIO(), "utf-8", errors="backslashreplace")
    sys.argv = ["ropeconv", *command]
    errors._report = noted
    try:
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            code = errors.run(_application())
            out.flush()
    except BaseException:
        code = 1
        err.write(traceback.format_exc())
    finally:
        errors._report = report
    err.flush()
    return code, err.buffer.getvalue().decode(), where  # type: ignore[attr-defined]


def slower() -> float:
    """How many times the processor time of `PACE` a plain command takes in this process now."""
    times = []
    with tempfile.TemporaryDirectory() as folder, contextlib.chdir(folder):
        write_checkpoint(Path("model"))
        for out in ("first", "second", "third"):
            start = time.process_time()
            _run(["apply", "model", "--yarn", "4", "-o", out])
            times.append(time.process_time() - start)
    return min(times) / PACE


def run_command(number: int, command: list[str], folder: Path) -> Outcome:
    """Runs one command in a folder, which is the working directory."""
    before, start = entries(folder), time.process_time()
    with contextlib.suppress(OSError):
        Path("/proc/self/clear_refs").write_text("5")
    least = _peak()
    code, message, where = _run(command)
    seconds, megabytes = time.process_time() - start, _peak() - least
    changed, pace = before != entries(folder), slower() if seconds > SECONDS else 1.0
    problem = judge(code, message[-2000:] if code else "", seconds, megabytes, changed, pace)
    return Outcome(number, command, code, message[-2000:], seconds, megabytes, where, problem)


def run_input(name: str, number: int, root: Path) -> list[Outcome]:
    """Runs the commands of one input; twice where they took long, since other programs take a processor's caches."""
    found: list[Outcome] = []
    for _ in range(2):
        folder = root / str(number)
        commands = write_input(name, number, folder)
        with contextlib.chdir(folder):
            found = [run_command(number, command, folder) for command in commands]
        shutil.rmtree(folder, ignore_errors=True)
        if not any(outcome.problem.endswith(" s") for outcome in found):
            break
    return found


def run_inputs(name: str, numbers: Sequence[int]) -> Iterator[Outcome]:
    """The outcomes of inputs, by their numbers; a process that dies or hangs is a failure of the input it was at."""
    for start in range(0, len(numbers), CHUNK):
        left = list(numbers[start : start + CHUNK])
        while left:
            left = yield from _one_process(name, left)


def _one_process(name: str, numbers: list[int]) -> Iterator[Outcome]:  # type: ignore[misc]
    """Runs a process. Returns the numbers that it did not come to, because it ended before."""
    root, at = str(Path(__file__).parents[3]), -1
    process = subprocess.Popen(
        [*WORKER, name, ",".join(map(str, numbers))], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        cwd=root, env={**os.environ, "PYTHONPATH": root},
    )  # fmt: skip
    assert process.stdout is not None
    assert process.stderr is not None
    while True:
        watch = threading.Timer(HANGS, process.kill)
        watch.start()
        line = process.stdout.readline()
        watch.cancel()
        if not line:
            break
        found = json.loads(line)
        at = found.get("begins", at)
        if "begins" not in found:
            yield Outcome(**found)
    code, said = process.wait(), process.stderr.read()[-1500:]
    if code == 0:
        return []
    if at not in numbers:
        raise RuntimeError(f"the process ended with {code}: {said}")
    yield Outcome(at, [], code, said, problem="hangs" if code == -9 else "the process died")
    return numbers[numbers.index(at) + 1 :]


def _prepare() -> None:
    """Imports what commands import, so that it is not measured, and leaves the installed transformers out."""
    import numpy  # noqa: F401
    import safetensors.numpy  # noqa: F401

    import ropeconv.bake.restore
    import ropeconv.views.plan  # noqa: F401
    from ropeconv.cli import _silence_libraries
    from ropeconv.engines import probe

    load()
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
        PREPARE[name]()
        for number in numbers:
            print(json.dumps({"begins": number}), file=stdout, flush=True)
            for outcome in run_input(name, number, Path(root)):
                print(json.dumps(outcome._asdict()), file=stdout, flush=True)
            if number % 20 == 0:
                gc.collect()


if __name__ == "__main__":
    main(sys.argv[1], [int(number) for number in sys.argv[2].split(",")])
