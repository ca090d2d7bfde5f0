"""Starts workers and collects what they report; a worker that dies or hangs is a failure of the input it was at."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from .worker import SECONDS, Outcome

WORKER = [sys.executable, "-m", "tests.faults.inputs.worker"]
CHUNK = 250
"""Inputs per process."""
HANGS = 24 * SECONDS
"""Seconds of silence after which a worker is ended: `SECONDS` of a processor that may be shared with other tests."""


def run_inputs(name: str, numbers: Sequence[int]) -> Iterator[Outcome]:
    """The outcomes of inputs of a format, by their numbers."""
    for start in range(0, len(numbers), CHUNK):
        left = list(numbers[start : start + CHUNK])
        while left:
            last, ended = yield from _one_worker(name, left)
            left = left[left.index(last) + 1 :] if ended and last is not None else []


def _one_worker(name: str, numbers: list[int]) -> Iterator[Outcome]:
    """Runs a worker. Returns the input it was at, and whether it ended there."""
    command = [*WORKER, name, ",".join(map(str, numbers))]
    root = Path(__file__).parents[3]
    process = subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=root,
        env={**os.environ, "PYTHONPATH": str(root)},
    )
    at: int | None = None
    assert process.stderr is not None
    for line in _lines(process):
        found = json.loads(line)
        if "begins" in found:
            at = found["begins"]
        else:
            yield Outcome(**found)
    code = process.wait()
    if code == 0:
        return at, False
    why = f"the process ended with {code}: {process.stderr.read()[-1500:]}"
    if at is None:
        raise RuntimeError(why)
    yield Outcome(at, [], code, why, 0.0, 0.0, "", "hangs" if code == -9 else "the process died")
    return at, True


def _lines(process: subprocess.Popen[str]) -> Iterable[str]:
    """The lines of a worker, which is killed after a silence of `HANGS` seconds."""
    assert process.stdout is not None
    while True:
        watch = threading.Timer(HANGS, process.kill)
        watch.start()
        line = process.stdout.readline()
        watch.cancel()
        if not line:
            return
        yield line
