"""Runs commands with a fault at one of their writing calls, and reads what they left."""

import hashlib
import json
import os
import re
import subprocess
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from enum import IntEnum
from pathlib import Path
from typing import NamedTuple

SHIM = Path(__file__).with_name("shim")
ROOT = Path(__file__).parents[2]
KILLED = -9
ENDED = 143
"""The exit code after SIGTERM, which a command hears and cleans up."""


class Mode(IntEnum):
    """What happens at a writing call. The numbers are those of shim/calls.c."""

    COUNT = 0
    KILL = 1
    KILL_HALF = 2
    FAIL_ONCE = 3
    FAIL_ON = 4
    SHORT = 5
    TERM = 6


class Fault(NamedTuple):
    """A fault. at: the number of the call, from 1. error: the errno of a call that fails."""

    mode: Mode
    at: int = 0
    error: int = 0


class Call(NamedTuple):
    """A writing call of a command. moves: whether it moves bytes. takes: whether it needs space."""

    kind: str
    moves: bool
    takes: bool
    path: str


class Outcome(NamedTuple):
    """How a command ended. code: its exit code, negative for a signal. report: of the shim."""

    code: int
    output: str
    report: str = ""

    def calls(self) -> list[Call]:
        lines = [
            line.split(" ", 3)[1:] for line in self.report.splitlines() if line.startswith("call ")
        ]
        return [
            Call(kind, bool(int(flags) & 1), bool(int(flags) & 2), path)
            for kind, flags, path in lines
        ]

    def said(self, most: int = 1) -> bool:
        """Whether it ended as a command should: done, or with a sentence and an exit code of its own.

        most: how many sentences there may be, one for each output that can fail without the others.
        """
        sentences = [line for line in self.output.splitlines() if line.startswith("ropeconv: ")]
        clean = "Traceback" not in self.output and "unexpected" not in self.output
        return clean and (
            self.code == 0 or (self.code in (1, 2, 3, ENDED) and 1 <= len(sentences) <= most)
        )


def compile_shim(folder: Path) -> str:
    """Make the library that strikes calls, in a folder, and return its path."""
    shim = str(folder / "shim.so")
    command = ["cc", "-O1", "-Wall", "-Wextra", "-shared", "-fPIC", "-o", shim]
    subprocess.run([*command, *map(str, SHIM.glob("*.c")), "-ldl", "-lpthread"], check=True)
    return shim


class Server:
    """Starts commands by fork. folder: for the shim and what commands print, outside of the folders
    they run in. torch: whether commands run models, which takes some seconds to import. more:
    variables of its environment.
    """

    def __init__(
        self, folder: Path, torch: bool = False, more: Mapping[str, str] | None = None
    ) -> None:
        self.folder = folder
        variables = {
            "OPENBLAS_NUM_THREADS": "1",
            "OMP_NUM_THREADS": "1",
            "HF_HUB_OFFLINE": "1",
            "COLUMNS": "500",
        }
        variables |= {"PYTHONPATH": str(ROOT), "LD_PRELOAD": compile_shim(folder)}
        self.process = subprocess.Popen(
            [sys.executable, "-m", "tests.faults.server", *(["torch"] if torch else [])],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, **variables, **(more or {})},
            cwd=ROOT,
        )
        assert self._answer() == "ready"

    def run(self, folder: Path, command: Sequence[str], fault: Fault | None = None) -> Outcome:
        """Runs a command in a folder, with a fault or without one."""
        return self.together(folder, [command], [0.0], fault)[0]

    def together(
        self,
        folder: Path,
        commands: Sequence[Sequence[str]],
        delays: Sequence[float],
        fault: Fault | None = None,
    ) -> list[Outcome]:
        """Runs commands in a folder at the same time.

        folder: that they run in, and whose writing calls count. commands: an action and its
        arguments each. delays: in seconds, before each begins. fault: of every one of them.
        """
        mode, at, error = fault or (None, 0, 0)
        runs = [
            {
                "folder": str(folder.resolve()),
                "command": list(command),
                "delay": delay,
                "mode": mode,
                "at": at,
                "error": error,
                "output": str(self.folder / f"output-{number}"),
                "report": str(self.folder / f"report-{number}"),
            }
            for number, (command, delay) in enumerate(zip(commands, delays, strict=True))
        ]
        assert self.process.stdin is not None
        print(json.dumps(runs), file=self.process.stdin, flush=True)
        codes = json.loads(self._answer())
        return [
            Outcome(
                code,
                Path(str(run["output"])).read_text("utf-8", "replace"),
                Path(str(run["report"])).read_text(),
            )
            for code, run in zip(codes, runs, strict=True)
        ]

    def close(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.close()
        self.process.wait()

    def _answer(self) -> str:
        assert self.process.stdout is not None
        return self.process.stdout.readline().strip()


NUMBER = re.compile(rb"\d[\d.,e-]*")
"""A number with its unit left out: a time, a rate, or a part of a date."""


def timeless(path: Path) -> bytes:
    """The content of a file that says how long something took, without its numbers; of a journal
    the subjects of its lines.
    """
    content = path.read_bytes()
    if path.suffix != ".jsonl":
        return NUMBER.sub(b"0", content)
    lines = set()
    for text in content.splitlines():
        with suppress(ValueError):  # a kill cuts a line
            lines.add(str(json.loads(text).get("key")))
    return "\n".join(sorted(lines)).encode()


def tree(folder: Path, timed: Sequence[str] = ()) -> dict[str, str]:
    """What is in a folder, hidden things too: sha256 of files, by their names. timed: names of
    files that say how long something took.
    """
    entries = {}
    for path in sorted(folder.rglob("*")):
        name = path.relative_to(folder).as_posix()
        if path.is_symlink():
            entries[name] = f"link to {os.readlink(path)}"
        elif path.is_dir():
            entries[name] = "folder"
        else:
            content = timeless(path) if name in timed else path.read_bytes()
            entries[name] = hashlib.sha256(content).hexdigest()
    return entries


def under(contents: dict[str, str], names: Sequence[str]) -> dict[str, str]:
    """The part of a tree that has one of these names or is below it."""
    below = [
        (path, any(path == name or path.startswith(f"{name}/") for name in names))
        for path in contents
    ]
    return {path: contents[path] for path, inside in below if inside}


def _numbers(report: str, *kinds: str) -> list[list[int]]:
    """The lines of some kinds in a report: device, inode, and what is said of it."""
    lines = [line.split(" ") for line in report.splitlines()]
    return [[int(number) for number in numbers] for kind, *numbers in lines if kind in kinds]


def _identity(path: Path) -> tuple[int, int]:
    return path.lstat().st_dev, path.lstat().st_ino


def lose(folder: Path, report: str, cut: bool) -> None:
    """Takes away what was not durable when a command ended.

    folder: that the command ran in. report: of the shim. cut: files end where they ended on the
    disk; else the bytes that are not on the disk are zeros.
    """
    sizes = {(device, inode): size for device, inode, size in _numbers(report, "file")}
    ranges: dict[tuple[int, int], list[tuple[int, int]]] = {}
    for device, inode, start, end in _numbers(report, "range"):
        ranges.setdefault((device, inode), []).append((start, end))
    files = {_identity(path): path for path in folder.rglob("*") if not path.is_symlink()}
    lost = {identity: path for identity, path in files.items() if identity in ranges}
    for identity, path in lost.items():
        size = path.stat().st_size
        if cut:
            os.truncate(
                path, min(size, sizes.get(identity, 0))
            )  # the shim has no size where a number is used again
            continue
        with path.open("r+b") as file:
            for start, end in ranges[identity]:
                file.seek(start)
                file.write(bytes(max(0, min(end, size) - start)))


def not_durable(folder: Path, report: str) -> list[str]:
    """Names of files and folders that are not durable, of a command that has ended."""
    listed = {(device, inode) for device, inode, *_ in _numbers(report, "range", "folder")}
    return [
        str(path.relative_to(folder))
        for path in (folder, *folder.rglob("*"))
        if _identity(path) in listed
    ]
