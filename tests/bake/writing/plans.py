"""Plans of every kind of file without a model, and runs of them that are killed at a chosen call."""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest

from ropeconv.bake.execute import ApplyOptions, execute_plan
from ropeconv.bake.planned import FilePlan, PlannedFile
from ropeconv.formats import renaming
from ropeconv.receipts import Receipt
from ropeconv.receipts.original import SourceRecord
from ropeconv.receipts.receipt import BeforeRecord, CheckRecord, ScheduleRecord, TargetRecord
from ropeconv.sources.folder import FolderSource

SIZE = 300_000
EVENTS = ("os.rename", "os.remove", "os.rmdir", "os.mkdir", "os.link", "os.truncate")
"""What changes names on a disk, as Python's audit hooks call it; `open` for writing is one more."""


@dataclass(frozen=True)
class SmallPlan(FilePlan):
    """A plan with a text, two copies and two made files, one of them in a folder. label: written into the text."""

    label: str = "first"

    @property
    def resume_key(self) -> str:
        return self.label

    def origin(self, file: PlannedFile) -> Path | None:
        return Path(self.source.reference) / file.name if file.action == "copy" else None

    def receipt(self) -> Receipt | None:
        return Receipt(
            ropeconv="0", source=SourceRecord("model", "folder"), recipe={"method": self.label}, encoding="native",
            schedule=ScheduleRecord("digest"), before=BeforeRecord("default", "yarn", 1.0, 64, 64, None, None),
            target=TargetRecord("safetensors"),
        )  # fmt: skip


def source_folder(root: Path) -> Path:
    """A folder with two files of random bytes and one of text."""
    folder = root / "model"
    (folder / "more").mkdir(parents=True)
    generator = np.random.default_rng(0)
    (folder / "model.safetensors").write_bytes(generator.bytes(SIZE))
    (folder / "more" / "weights.bin").write_bytes(generator.bytes(SIZE // 3))
    (folder / "LICENSE").write_text("terms")
    return folder


def small_plan(folder: Path, out: Path, label: str = "first", extra: tuple[PlannedFile, ...] = ()) -> SmallPlan:
    """The plan of an output of `source_folder`. extra: more files."""

    def make(target: Path, advance: Callable[[int], None]) -> None:
        target.write_bytes((folder / "more" / "weights.bin").read_bytes()[::-1])
        advance(SIZE // 3)

    text = f'{{"label": "{label}"}}\n'
    files = (
        PlannedFile("write", "config.json", len(text), text=text),
        PlannedFile("copy", "LICENSE", 5),
        PlannedFile("copy", "model.safetensors", SIZE),
        PlannedFile("convert", "more/made.bin", SIZE // 3, make=make),
        PlannedFile("patch", "patched.bin", SIZE // 3, make=make),
        *extra,
    )
    return SmallPlan(source=FolderSource(folder), out=out, files=files, skipped=(), label=label)


def write(plan: FilePlan, **options: bool) -> Path:
    """Executes a plan."""
    return execute_plan(plan, ApplyOptions(**options))


class Killed(BaseException):
    """What no code catches, as a kill."""


def interrupted(plan: SmallPlan, **options: bool) -> Path:
    """The hidden folder of a run that was killed after its last file."""

    def stop(folder: Path) -> CheckRecord | None:
        raise Killed

    with pytest.raises(Killed):
        execute_plan(plan, ApplyOptions(**options), stop)
    return plan.out.parent / ".out.ropeconv-partial/new/out"


def killed(work: Callable[[], object], call: int = -1) -> int:
    """Runs something in a process that cannot exchange names and is killed before its n-th change of the disk.

    work: what to run. call: n, from 0; -1 for a process that is not killed. Returns how many changes it made.
    """
    reading, writing = os.pipe()
    process = os.fork()
    if process == 0:
        try:
            _count(call, writing)
            work()
        except BaseException as problem:
            print(problem, file=sys.stderr)
            os._exit(1)
        os._exit(0)
    os.close(writing)
    with open(reading, "rb") as pipe:
        changes = len(pipe.read())
    status = os.waitpid(process, 0)[1]
    assert os.WIFSIGNALED(status) if call >= 0 else os.WEXITSTATUS(status) == 0, status
    return changes


def _count(call: int, pipe: int) -> None:
    """Has each change of the disk write a byte into a pipe, and the one that is chosen kill the process."""
    left, one_at_a_time = [call], threading.Lock()

    def hook(event: str, given: tuple[object, ...]) -> None:
        writes = event == "open" and isinstance(given[2], int) and given[2] & (os.O_WRONLY | os.O_RDWR)
        if not writes and event not in EVENTS:
            return
        with one_at_a_time:
            if left[0] == 0:
                os.kill(os.getpid(), signal.SIGKILL)
            left[0] -= 1
            os.write(pipe, b".")

    renaming._renameat2 = lambda source, target, flags: False
    sys.addaudithook(hook)


def tree(root: Path) -> dict[str, bytes]:
    """The content of every file in a folder by its name, hidden ones too, without receipts."""
    return {
        path.relative_to(root).as_posix(): path.read_bytes()
        for path in sorted(root.rglob("*"))
        if path.is_file() and path.name != "ropeconv.json"
    }


def beside(out: Path) -> list[str]:
    """Names in the folder of an output, besides itself and its source."""
    return sorted(path.name for path in out.parent.iterdir() if path.name not in (out.name, "model"))
