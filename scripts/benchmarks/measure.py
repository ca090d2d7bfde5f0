"""Time and memory of commands, and checkpoints that take no space on the disk."""

import json
import math
import os
import re
import shutil
import statistics
import struct
import subprocess
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path(__file__).parents[2]


class Cost(NamedTuple):
    """The cost of a command."""

    seconds: float
    """By the clock."""

    processor: float
    """Seconds of the processor."""

    megabytes: float
    """The peak memory of its own process."""


def seconds(work: Callable[..., Any], *arguments: Any) -> float:
    """Return the seconds of one call, by the clock."""
    begin = time.perf_counter()
    work(*arguments)
    return time.perf_counter() - begin


def cost(command: list[str], env: dict[str, str] | None = None, cwd: Path | None = None) -> Cost:
    """Run a command and return what it took.

    Raises:
        RuntimeError: It fails; the message has the end of what it printed.
    """
    begin = time.perf_counter()
    peak = 0  # kilobytes
    with tempfile.TemporaryFile() as errors:
        process = subprocess.Popen(
            command,
            stdout=subprocess.DEVNULL,
            stderr=errors,
            env={**os.environ, **(env or {})},
            cwd=cwd,
        )
        # /proc has the peak memory of the process alone, while it runs
        status = Path(f"/proc/{process.pid}/status")
        done, code, usage = os.wait4(process.pid, os.WNOHANG)
        while not done:
            for kilobytes in re.findall(r"VmHWM:\s+(\d+)", status.read_text()):
                peak = max(peak, int(kilobytes))
            time.sleep(0.02)
            done, code, usage = os.wait4(process.pid, os.WNOHANG)
        process.returncode = os.waitstatus_to_exitcode(code)
        if code:
            errors.seek(0)
            raise RuntimeError(f"{' '.join(command)} failed:\n{errors.read().decode()[-2000:]}")
    wall_time = time.perf_counter() - begin
    return Cost(wall_time, usage.ru_utime + usage.ru_stime, peak / 1000)


def uncache(folder: Path) -> None:
    """Remove the files of a folder from the page cache, so that they are read from the disk."""
    for path in folder.iterdir():
        with path.open("rb") as file:
            os.fsync(file.fileno())
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def compare(
    title: str,
    commands: dict[str, list[str]],
    out: Path,
    rounds: int,
    *,
    base: str = "",
    env: dict[str, str] | None = None,
    in_turns: bool = False,
    cold: Path | None = None,
) -> dict[str, Cost]:
    """Run commands several times, print the medians with ratios to one of them, and return these.

    Args:
        title: The line above the table.
        commands: The commands by their names.
        out: The output of each command, which is removed after each run.
        rounds: How often each runs; the first run is left out where there are more.
        base: The command that the ratios are to; the first by default.
        env: Further variables of the environment.
        in_turns: Run one of each after the other, for commands that wait for the disk, whose speed
            changes with time. Else each runs several times in a row: which pages a copy is given
            depends on what the command before it gave back, and in turns one command would always
            be given the slow ones.
        cold: A folder that is to be read from the disk.
    """
    # the names in the order in which the commands run, with one run more where the first is left
    # out: a b a b in turns, else a a b b
    runs_of_each = rounds + 1 if rounds > 1 else rounds
    if in_turns:
        order = list(commands) * runs_of_each
    else:
        order = [name for name in commands for _ in range(runs_of_each)]

    costs: dict[str, list[Cost]] = {name: [] for name in commands}
    for name in order:
        os.sync()  # what was written before is not part of it
        if cold is not None:
            uncache(cold)
        costs[name].append(cost(commands[name], env))
        if out.is_dir():
            shutil.rmtree(out)
        else:
            out.unlink(missing_ok=True)

    medians = {}
    for name, runs in costs.items():
        counted = runs[1:] or runs  # without the first, unless it is the only one
        medians[name] = Cost(
            seconds=statistics.median(run.seconds for run in counted),
            processor=statistics.median(run.processor for run in counted),
            megabytes=max(run.megabytes for run in runs),
        )

    base = base or next(iter(commands))
    print(title)
    for name, middle in medians.items():
        ratio = middle.seconds / medians[base].seconds
        work = middle.processor / max(medians[base].processor, 0.01)
        print(
            f"  {name:24} {middle.seconds:7.2f} s   {ratio:6.2f} x {base}   {middle.megabytes:6.0f}"
            f" MB   processor {middle.processor:7.2f} s   {work:6.2f} x",
            flush=True,
        )
    return medians


def sparse_safetensors(path: Path, shapes: dict[str, tuple[int, ...]]) -> int:
    """Write a file of bfloat16 zeros that takes no space on the disk, and return the bytes of its
    tensors.
    """
    at = 0
    header = {}
    for name, shape in shapes.items():
        size = 2 * math.prod(shape)
        header[name] = {"dtype": "BF16", "shape": list(shape), "data_offsets": [at, at + size]}
        at += size
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with path.open("wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        file.truncate(8 + len(text) + at)
    return at
