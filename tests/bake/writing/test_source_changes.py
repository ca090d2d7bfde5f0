"""A source that is written to while it is read makes no output."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from itertools import product
from pathlib import Path
from typing import Any

import pytest

from ropeconv.bake.execution import ApplyOptions, execute_plan
from ropeconv.bake.plan import Plan
from ropeconv.errors import BadSource
from ropeconv.inspection.receipts.receipt import CheckRecord

from ...faults.scenes import checkpoint
from ...support.baking import YARN, make_plan
from ...support.extent import sample
from ...support.gguf_files import write as write_gguf
from .plans import beside, small_plan, source_folder


def rewritten(path: Path) -> None:
    """Other bytes of the same length, in the same file."""
    time.sleep(0.02)
    with path.open("r+b") as file:
        first = file.read(1)
        file.seek(0)
        file.write(bytes([first[0] ^ 1]))


def replaced(path: Path) -> None:
    """Another file of the same size and time, under the same name."""
    status, data = path.stat(), path.read_bytes()
    draft = path.with_name("draft")
    draft.write_bytes(data[::-1])
    os.utime(draft, ns=(status.st_atime_ns, status.st_mtime_ns))
    draft.replace(path)


WAYS = [
    *product(["LICENSE", "model.safetensors", "more/weights.bin"], [rewritten, replaced, Path.unlink], [False, True])
]


@pytest.mark.parametrize(("name", "change", "link"), sample(WAYS, 5))
def test_a_change_meanwhile_keeps_nothing(
    tmp_path: Path, name: str, change: Callable[[Path], None], link: bool
) -> None:
    """Copies, and what is made from the source: `more/weights.bin` is not copied, only read."""
    folder, out = source_folder(tmp_path), tmp_path / "out"

    def meanwhile(partial: Path) -> CheckRecord | None:
        change(folder / name)
        return None

    with pytest.raises(BadSource, match="changed while it was read; leave the source unchanged and run again"):
        execute_plan(small_plan(folder, out), ApplyOptions(link=link), meanwhile)
    assert not out.exists()
    assert beside(out) == []


MAKES: dict[str, dict[str, Any]] = {"weights": {"encoding": "weights"}, "to gguf": {"to": "gguf"}, "gguf": {}}


def plan_of(kind: str, root: Path) -> Plan:
    """A plan of every kind that reads a source."""
    source = root / ("model.gguf" if kind == "gguf" else "model")
    return make_plan(source, YARN, root / ("out" if kind == "weights" else "out.gguf"), **MAKES[kind])


@pytest.mark.parametrize("kind", MAKES)
def test_sources_of_folds_and_conversions_and_gguf_are_watched(tmp_path: Path, kind: str) -> None:
    checkpoint(tmp_path)
    write_gguf(tmp_path / "model.gguf")
    plan = plan_of(kind, tmp_path)
    name = tmp_path / ("model.gguf" if kind == "gguf" else "model/model-00001-of-00002.safetensors")
    done: list[int] = []

    def meanwhile(size: int) -> None:
        if not done:
            rewritten(name)
        done.append(size)

    with pytest.raises(BadSource, match="changed while it was"):
        execute_plan(plan, ApplyOptions(), advance=meanwhile)
    assert done
    assert not plan.out.exists()
    rewritten(name)  # as it was, and the negative control: the same plan of what is there now
    execute_plan(plan_of(kind, tmp_path), ApplyOptions())


SKIPPED, LOG, READ = "original/consolidated.00.pth", "trainer_log.jsonl", "tokenizer_config.json"


@pytest.mark.parametrize(
    ("kind", "name", "is_read"),
    [
        ("weights", SKIPPED, False), ("weights", "model.bin", False), ("to gguf", LOG, False),
        ("weights", LOG, True), ("weights", READ, True), ("to gguf", READ, True), ("to gguf", "README.md", True),
    ],
)  # fmt: skip
def test_only_files_that_something_is_made_of_have_to_stay(tmp_path: Path, kind: str, name: str, is_read: bool) -> None:
    """A log that training goes on writing is copied into a folder, and no part of a GGUF file."""
    checkpoint(tmp_path)
    path = tmp_path / "model" / name
    if not path.exists():
        path.parent.mkdir(exist_ok=True)
        path.write_text("# Tiny\n")
    plan = plan_of(kind, tmp_path)
    time.sleep(0.02)
    with path.open("a") as file:
        file.write("more\n")
    if is_read:
        with pytest.raises(BadSource, match=f"{path.name} changed while it was read"):
            execute_plan(plan, ApplyOptions())
    else:
        execute_plan(plan, ApplyOptions())
    assert plan.out.exists() != is_read
