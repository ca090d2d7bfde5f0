"""Runs commands on inputs and judges them, in processes that may die: one line of JSON per command
on their stdout.

`python -m tests.faults.inputs.worker NAME NUMBER,NUMBER...` does so in this process.
"""

import contextlib
import io
import json
import os
import re
import resource
import shutil
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from .kinds import write_input

SECONDS, MEGABYTES = 10.0, 500.0
"""Processor time, twice that of SECURITY.md for slower machines, and memory beyond what the process
has before.
"""
GUARD = 2 << 30
"""Address space beyond which an allocation fails, so that a test cannot take the machine's
memory.
"""
CHUNK = 250
"""Inputs per process."""
UNEXPECTED = re.compile(r"unexpected \w+:|report it$", re.MULTILINE)
"""What `ropeconv.cli.process` says of an exception that nobody planned for."""


class Outcome(NamedTuple):
    """What a command did with an input.

    number: of the input. code: exit code. message: the end of stderr. problem: what is wrong with
    that, or empty.
    """

    number: int
    command: list[str]
    code: int
    message: str
    problem: str = ""


def entries(folder: Path) -> set[tuple[Path, int, int]]:
    """Everything below a folder, with sizes and times of change."""
    return {(path, path.lstat().st_size, path.lstat().st_mtime_ns) for path in folder.rglob("*")}


def judge(code: int, message: str, seconds: float, megabytes: float, changed: bool) -> str:
    """What is wrong with a run, or empty. changed: whether any file did."""
    if "Traceback" in message:
        return "a traceback"
    if UNEXPECTED.search(message):
        return "unexpected"
    if code not in (0, 1, 2, 3):
        return f"exit code {code}"
    if code and not message.startswith("ropeconv: "):
        return "no sentence"
    if seconds > SECONDS:
        return f"{seconds:.1f} s"
    if megabytes > MEGABYTES:
        return f"{megabytes:.0f} MB"
    return "wrote something" if code not in (0, 3) and changed else ""


def _peak() -> float:
    """The largest memory of this process since the last reset, in megabytes."""
    match = re.search(r"VmHWM:\s+(\d+) kB", Path("/proc/self/status").read_text())
    return int(match[1]) / 1000 if match else 0.0


def _run(command: list[str]) -> tuple[int, str]:
    """Runs a command, and returns its exit code and its stderr."""
    from ropeconv.cli import process as errors
    from ropeconv.cli.app import complete_app

    # as a terminal has them: lone surrogates cannot be printed on stdout, and are escaped on stderr
    out = io.TextIOWrapper(io.BytesIO(), "utf-8")
    raw = io.BytesIO()
    err = io.TextIOWrapper(raw, "utf-8", errors="backslashreplace", write_through=True)
    sys.argv = ["ropeconv", *command]
    try:
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            code = errors.run(complete_app())
            out.flush()
    except BaseException:
        code = 1
        err.write(traceback.format_exc())
    return code, raw.getvalue().decode()


def run_command(number: int, command: list[str], folder: Path) -> Outcome:
    """Runs one command in a folder, which is the working directory."""
    before = entries(folder)
    start = time.process_time()
    with contextlib.suppress(OSError):
        Path("/proc/self/clear_refs").write_text("5")
    least = _peak()
    code, message = _run(command)
    seconds = time.process_time() - start
    megabytes = _peak() - least
    problem = judge(
        code, message[-2000:] if code else "", seconds, megabytes, before != entries(folder)
    )
    return Outcome(number, command, code, message[-2000:], problem)


def run_input(name: str, number: int, root: Path) -> list[Outcome]:
    folder = root / str(number)
    commands = write_input(name, number, folder)
    with contextlib.chdir(folder):
        outcomes = [run_command(number, command, folder) for command in commands]
    shutil.rmtree(folder, ignore_errors=True)
    return outcomes


def run_inputs(name: str, numbers: Sequence[int]) -> Iterator[Outcome]:
    """The outcomes of inputs, by their numbers; a process that dies or hangs is a failure of the
    input it was at.
    """
    root = str(Path(__file__).parents[3])
    for start in range(0, len(numbers), CHUNK):
        left = list(numbers[start : start + CHUNK])
        while left:
            words = [
                sys.executable,
                "-m",
                "tests.faults.inputs.worker",
                name,
                ",".join(map(str, left)),
            ]
            given = {
                "cwd": root,
                "env": {**os.environ, "PYTHONPATH": root},
                "text": True,
                "check": False,
            }
            done = subprocess.run(
                words, capture_output=True, timeout=4 * SECONDS * len(left) + 120, **given
            )  # type: ignore[call-overload]
            outcomes = [Outcome(**json.loads(line)) for line in done.stdout.splitlines()]
            yield from outcomes
            left = [
                number for number in left if number not in {outcome.number for outcome in outcomes}
            ]
            if done.returncode:
                assert left, done.stderr
                yield Outcome(
                    left.pop(0),
                    [],
                    done.returncode,
                    done.stderr[-1500:],
                    problem="the process died",
                )


def main(name: str, numbers: list[int]) -> None:
    import ropeconv.bake.restore
    import ropeconv.views.plan  # noqa: F401  what commands import is not measured
    from ropeconv.cli import _silence_libraries
    from ropeconv.engines import probe

    stdout = sys.stdout
    probe.Probe.available = staticmethod(lambda: False)  # type: ignore[method-assign,assignment]
    size = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(
        resource.RLIMIT_AS, (size + GUARD, resource.getrlimit(resource.RLIMIT_AS)[1])
    )
    _silence_libraries()
    with tempfile.TemporaryDirectory(prefix="ropeconv-inputs-") as root:
        os.environ |= {
            "XDG_CACHE_HOME": f"{root}/cache",
            "HF_HOME": f"{root}/cache",
            "HF_HUB_OFFLINE": "1",
        }
        os.environ["XDG_STATE_HOME"] = f"{root}/state"
        for number in numbers:
            for outcome in run_input(name, number, Path(root)):
                print(json.dumps(outcome._asdict()), file=stdout, flush=True)


if __name__ == "__main__":
    main(sys.argv[1], [int(number) for number in sys.argv[2].split(",")])
