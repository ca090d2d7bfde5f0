"""An interrupted run goes on from its finished files, where they are still as it left them."""

from __future__ import annotations

import os
from collections.abc import Callable
from itertools import product
from pathlib import Path

import pytest

from ropeconv.bake import execution
from ropeconv.bake.plan import PlannedFile
from ropeconv.errors import BadSource
from ropeconv.formats.disk import FileIdentity, identity
from ropeconv.inspection.receipts.storage import read_receipt

from ...support.extent import sample
from .plans import SmallPlan, interrupted, small_plan, source_folder, tree, write

FILES = ["config.json", "LICENSE", "model.safetensors", "more/made.bin", "patched.bin"]


@pytest.fixture
def plan(tmp_path: Path) -> SmallPlan:
    return small_plan(source_folder(tmp_path), tmp_path / "out")


def made_in(root: Path) -> dict[str, FileIdentity | None]:
    """Which file is there, by name: a file that is made again has another time, if not another inode."""
    return {name: identity(root / name) for name in FILES}


@pytest.mark.parametrize(
    ("first", "second", "started", "goes_on"),
    [
        ({}, {"force": True}, True, True), ({"link": True}, {"link": True}, True, True),
        ({"link": True}, {}, True, False), ({"checksum": True}, {}, True, False), ({"fsync": False}, {}, True, False),
        ({}, {}, False, True), ({"fsync": False}, {"fsync": False}, True, True),
        ({"fsync": False}, {"fsync": False}, False, False),
    ],
)  # fmt: skip
def test_which_options_go_on_from_each_other(
    plan: SmallPlan, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, first: dict[str, bool], second: dict[str, bool],
    started: bool, goes_on: bool,
) -> None:  # fmt: skip
    """started: in the same start of the machine. Another one may have lost what was not synced."""
    (tmp_path / "boot").write_text("first start")
    monkeypatch.setattr(execution, "BOOT", tmp_path / "boot")
    made = made_in(interrupted(plan, **first))
    (tmp_path / "boot").write_text("first start" if started else "second start")
    write(plan, **second)
    assert (made_in(plan.out) == made) is goes_on
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


def damaged(path: Path, how: str) -> None:
    status, data = path.stat(), DAMAGES[how](path.read_bytes())
    if data is None:
        path.unlink()
        return
    path.write_bytes(data)
    if how == "zeros at the same time":
        os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))


@pytest.mark.parametrize(("name", "damage"), sample([*product(FILES, DAMAGES)], 6))
def test_a_damaged_file_is_made_again(plan: SmallPlan, name: str, damage: str) -> None:
    right = tree(write(small_plan(Path(plan.source.reference), plan.out.with_name("right"))))
    root = interrupted(plan)
    made = made_in(root)
    damaged(root / name, damage)
    write(plan)
    assert tree(plan.out) == right
    now = made_in(plan.out)
    assert {other for other in FILES if now[other] == made[other]} == {*FILES} - {name}


def test_a_file_that_nobody_planned_does_not_get_into_the_output(plan: SmallPlan) -> None:
    (interrupted(plan) / "model.safetensors.part.floats").write_text("half")
    write(plan)
    assert sorted(tree(plan.out)) == sorted(FILES)


def test_another_plan_starts_again(plan: SmallPlan) -> None:
    made = made_in(interrupted(plan))
    write(small_plan(Path(plan.source.reference), plan.out, "second"))
    assert not set(made_in(plan.out).values()) & set(made.values())


# Files with other contents than were planned


@pytest.mark.parametrize(("size", "estimated", "fits"), [(6, False, False), (0, False, True), (6, True, True)])
def test_a_made_file_has_the_planned_size(tmp_path: Path, size: int, estimated: bool, fits: bool) -> None:
    def make(target: Path, advance: object) -> None:
        target.write_bytes(b"12345")

    file = PlannedFile("convert", "new", size, make=make, estimated=estimated)
    plan = small_plan(source_folder(tmp_path), tmp_path / "out", extra=(file,))
    if fits:
        assert {file.name: file.size for file in read_receipt(write(plan)).files}["new"] == 5
        return
    with pytest.raises(BadSource, match="new changed while it was copied"):
        write(plan)
    assert not plan.out.exists()


@pytest.mark.parametrize("wrong", [bytes, lambda size: b"\1" * size])
def test_a_copy_has_the_bytes_of_the_source(
    plan: SmallPlan, monkeypatch: pytest.MonkeyPatch, wrong: Callable[[int], bytes]
) -> None:
    """As filesystems have given zeros for what was just written: https://github.com/openzfs/zfs/issues/15526."""

    def copied(source: Path, target: Path, advance: Callable[[int], None]) -> None:
        target.write_bytes(wrong(source.stat().st_size))

    with monkeypatch.context() as patched:
        patched.setattr(execution, "copy_file", copied)
        with pytest.raises(BadSource, match="changed while it was copied"):
            write(plan)
    assert not plan.out.exists()
    assert tree(write(plan))["model.safetensors"] == tree(plan.out.with_name("model"))["model.safetensors"]
