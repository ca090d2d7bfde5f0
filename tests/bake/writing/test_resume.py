"""An interrupted run goes on from its finished files; a source that is written to meanwhile makes
no output.
"""

import os
import time
from collections.abc import Callable
from itertools import product
from pathlib import Path
from typing import Any

import pytest

from ropeconv.bake import execution
from ropeconv.bake.execution import ApplyOptions, execute_plan
from ropeconv.bake.plan import Plan, PlannedFile
from ropeconv.errors import BadSource
from ropeconv.formats.disk import FileIdentity, identity
from ropeconv.inspection.receipts.receipt import CheckRecord
from ropeconv.inspection.receipts.storage import read_receipt

from ...faults.scenes import checkpoint
from ...support.baking import YARN, make_plan
from ...support.extent import sample
from ...support.gguf_files import write as write_gguf
from .plans import SmallPlan, beside, interrupted, small_plan, source_folder, tree, write

FILES = ["config.json", "LICENSE", "model.safetensors", "more/made.bin", "patched.bin"]


@pytest.fixture
def plan(tmp_path: Path) -> SmallPlan:
    return small_plan(source_folder(tmp_path), tmp_path / "out")


def made_in(root: Path) -> dict[str, FileIdentity | None]:
    """Which file is there, by name: a file that is made again has another time, if not another
    inode.
    """
    return {name: identity(root / name) for name in FILES}


@pytest.mark.parametrize(
    ("first", "second", "started", "goes_on"),
    [
        ({}, {"force": True}, True, True),
        ({"link": True}, {"link": True}, True, True),
        ({"link": True}, {}, True, False),
        ({"checksum": True}, {}, True, False),
        ({"fsync": False}, {}, True, False),
        ({}, {}, False, True),
        ({"fsync": False}, {"fsync": False}, True, True),
        ({"fsync": False}, {"fsync": False}, False, False),
    ],
)
def test_which_options_go_on_from_each_other(
    plan: SmallPlan,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    first: dict[str, bool],
    second: dict[str, bool],
    started: bool,
    goes_on: bool,
) -> None:
    """started: in the same start of the machine. Another one may have lost what was not synced."""
    (tmp_path / "boot").write_text("first start")
    monkeypatch.setattr(execution, "BOOT", tmp_path / "boot")
    identities = made_in(interrupted(plan, **first))
    (tmp_path / "boot").write_text("first start" if started else "second start")
    write(plan, **second)
    assert (made_in(plan.out) == identities) is goes_on
    linked = (plan.out / "model.safetensors").samefile(tmp_path / "model" / "model.safetensors")
    assert linked is second.get("link", False)


DAMAGES: dict[str, Callable[[bytes], bytes | None]] = {
    "emptied": lambda data: b"",
    "zeros": lambda data: bytes(len(data)),
    "zeros at the same time": lambda data: bytes(len(data)),  # as a disk does that lost power
    "cut": lambda data: data[:-1],
    "one byte": lambda data: data[:2] + bytes([data[2] ^ 1]) + data[3:],
    "gone": lambda data: None,
}


def damaged(path: Path, damage: str) -> None:
    status = path.stat()
    data = DAMAGES[damage](path.read_bytes())
    if data is None:
        path.unlink()
        return
    path.write_bytes(data)
    if damage == "zeros at the same time":
        os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))


@pytest.mark.parametrize(("name", "damage"), sample([*product(FILES, DAMAGES)], 6))
def test_a_damaged_file_is_made_again(plan: SmallPlan, name: str, damage: str) -> None:
    right = tree(write(small_plan(Path(plan.source.reference), plan.out.with_name("right"))))
    root = interrupted(plan)
    identities = made_in(root)
    damaged(root / name, damage)
    write(plan)
    assert tree(plan.out) == right
    now = made_in(plan.out)
    assert {other for other in FILES if now[other] == identities[other]} == {*FILES} - {name}


def test_a_file_that_nobody_planned_does_not_get_into_the_output(plan: SmallPlan) -> None:
    (interrupted(plan) / "model.safetensors.part.floats").write_text("half")
    write(plan)
    assert sorted(tree(plan.out)) == sorted(FILES)


def test_another_plan_starts_again(plan: SmallPlan) -> None:
    identities = made_in(interrupted(plan))
    write(small_plan(Path(plan.source.reference), plan.out, "second"))
    assert not set(made_in(plan.out).values()) & set(identities.values())


# Files with other contents than were planned


@pytest.mark.parametrize(
    ("size", "estimated", "fits"), [(6, False, False), (0, False, True), (6, True, True)]
)
def test_a_made_file_has_the_planned_size(
    tmp_path: Path, size: int, estimated: bool, fits: bool
) -> None:
    def make(target: Path, advance: object) -> None:
        target.write_bytes(b"12345")

    file = PlannedFile("convert", "new", size, make=make, estimated=estimated)
    plan = small_plan(source_folder(tmp_path), tmp_path / "out", extra=(file,))
    if fits:
        assert {file.name: file.size for file in read_receipt(write(plan)).files}["new"] == 5
        return
    with pytest.raises(BadSource, match="new changed"):
        write(plan)
    assert not plan.out.exists()


@pytest.mark.parametrize("wrong", [bytes, lambda size: b"\1" * size])
def test_a_copy_has_the_bytes_of_the_source(
    plan: SmallPlan, monkeypatch: pytest.MonkeyPatch, wrong: Callable[[int], bytes]
) -> None:
    """As filesystems have given zeros for what was just written:
    https://github.com/openzfs/zfs/issues/15526.
    """

    def copied(source: Path, target: Path, advance: Callable[[int], None]) -> None:
        target.write_bytes(wrong(source.stat().st_size))

    with monkeypatch.context() as patched:
        patched.setattr(execution, "copy_file", copied)
        with pytest.raises(BadSource, match="changed while"):
            write(plan)
    assert not plan.out.exists()
    assert (
        tree(write(plan))["model.safetensors"]
        == tree(plan.out.with_name("model"))["model.safetensors"]
    )


# A source that is written to while it is read makes no output


def rewritten(path: Path) -> None:
    """Other bytes of the same length, in the same file."""
    time.sleep(0.02)
    with path.open("r+b") as file:
        first = file.read(1)
        file.seek(0)
        file.write(bytes([first[0] ^ 1]))


def replaced(path: Path) -> None:
    """Another file of the same size and time, under the same name."""
    status = path.stat()
    data = path.read_bytes()
    draft = path.with_name("draft")
    draft.write_bytes(data[::-1])
    os.utime(draft, ns=(status.st_atime_ns, status.st_mtime_ns))
    draft.replace(path)


WAYS = [
    *product(
        ["LICENSE", "model.safetensors", "more/weights.bin"],
        [rewritten, replaced, Path.unlink],
        [False, True],
    )
]


@pytest.mark.parametrize(("name", "change", "link"), sample(WAYS, 5))
def test_a_change_meanwhile_keeps_nothing(
    tmp_path: Path, name: str, change: Callable[[Path], None], link: bool
) -> None:
    """Copies, and what is made from the source: `more/weights.bin` is not copied, only read."""
    folder = source_folder(tmp_path)
    out = tmp_path / "out"

    def meanwhile(partial: Path) -> CheckRecord | None:
        change(folder / name)
        return None

    with pytest.raises(BadSource, match="changed while"):
        execute_plan(small_plan(folder, out), ApplyOptions(link=link), meanwhile)
    assert not out.exists()
    assert beside(out) == []


MAKES: dict[str, dict[str, Any]] = {
    "weights": {"encoding": "weights"},
    "to gguf": {"to": "gguf"},
    "gguf": {},
}


def plan_of(kind: str, root: Path) -> Plan:
    """A plan of every kind that reads a source."""
    source = root / ("model.gguf" if kind == "gguf" else "model")
    return make_plan(
        source, YARN, root / ("out" if kind == "weights" else "out.gguf"), **MAKES[kind]
    )


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

    with pytest.raises(BadSource, match="changed while"):
        execute_plan(plan, ApplyOptions(), advance=meanwhile)
    assert done
    assert not plan.out.exists()
    rewritten(name)  # as it was, and the negative control: the same plan of what is there now
    execute_plan(plan_of(kind, tmp_path), ApplyOptions())


SKIPPED, LOG, READ = "original/consolidated.00.pth", "trainer_log.jsonl", "tokenizer_config.json"


@pytest.mark.parametrize(
    ("kind", "name", "is_read"),
    [
        ("weights", SKIPPED, False),
        ("weights", "model.bin", False),
        ("to gguf", LOG, False),
        ("weights", LOG, True),
        ("weights", READ, True),
        ("to gguf", READ, True),
        ("to gguf", "README.md", True),
    ],
)
def test_only_files_that_something_is_made_of_have_to_stay(
    tmp_path: Path, kind: str, name: str, is_read: bool
) -> None:
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
        with pytest.raises(BadSource, match=f"{path.name} changed while"):
            execute_plan(plan, ApplyOptions())
    else:
        execute_plan(plan, ApplyOptions())
    assert plan.out.exists() != is_read
