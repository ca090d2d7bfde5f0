"""Plans of every kind of file without a model, and runs of them that are stopped."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest

from ropeconv.bake.execution import ApplyOptions, execute_plan
from ropeconv.bake.plan import FilePlan, PlannedFile
from ropeconv.inspection.receipts.receipt import (
    BeforeRecord,
    CheckRecord,
    Receipt,
    ScheduleRecord,
    SourceRecord,
    TargetRecord,
)
from ropeconv.models.folder import FolderSource

SIZE = 300_000
SCHEDULE = ScheduleRecord(
    digest="d", inv_freq=(), attention_factor=1.0, context=64, original_context=64
)


@dataclass(frozen=True)
class SmallPlan(FilePlan):
    """A plan with a text, two copies and two made files, one of them in a folder. label: written
    into the text.
    """

    label: str = "first"

    @property
    def resume_key(self) -> str:
        return self.label

    def origin(self, file: PlannedFile) -> Path | None:
        return Path(self.source.reference) / file.name if file.action == "copy" else None

    def receipt(self) -> Receipt | None:
        return Receipt(
            ropeconv="0",
            source=SourceRecord("model", "folder"),
            recipe={"method": self.label},
            encoding="native",
            schedule=SCHEDULE,
            before=BeforeRecord("default", "yarn", 1.0, 64, 64, None, None),
            target=TargetRecord("safetensors"),
        )


def source_folder(root: Path) -> Path:
    """A folder with two files of random bytes and one of text."""
    folder = root / "model"
    (folder / "more").mkdir(parents=True)
    generator = np.random.default_rng(0)
    (folder / "model.safetensors").write_bytes(generator.bytes(SIZE))
    (folder / "more" / "weights.bin").write_bytes(generator.bytes(SIZE // 3))
    (folder / "LICENSE").write_text("terms")
    return folder


def small_plan(
    folder: Path, out: Path, label: str = "first", extra: tuple[PlannedFile, ...] = ()
) -> SmallPlan:
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
    return execute_plan(plan, ApplyOptions(**options)).path


class Killed(BaseException):
    """What no code catches, as a kill."""


def interrupted(plan: SmallPlan, **options: bool) -> Path:
    """The hidden folder of a run that was killed after its last file."""

    def stop(folder: Path) -> CheckRecord | None:
        raise Killed

    with pytest.raises(Killed):
        execute_plan(plan, ApplyOptions(**options), stop)
    return plan.out.parent / ".out.ropeconv-partial/new/out"


def tree(root: Path) -> dict[str, bytes]:
    """The content of every file in a folder by its name, hidden ones too, without receipts."""
    return {
        path.relative_to(root).as_posix(): path.read_bytes()
        for path in sorted(root.rglob("*"))
        if path.is_file() and path.name != "ropeconv.json"
    }


def beside(out: Path) -> list[str]:
    """Names in the folder of an output, besides itself and its source."""
    return sorted(
        path.name for path in out.parent.iterdir() if path.name not in (out.name, "model")
    )
