"""An interrupted run goes on from its finished files, where they are still as it left them."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from ropeconv.bake.execute import ApplyOptions, execute_plan
from ropeconv.bake.planned import PlannedFile
from ropeconv.bake.writing import files
from ropeconv.errors import BadSource
from ropeconv.formats.identity import FileIdentity, identity
from ropeconv.receipts import read_receipt
from ropeconv.receipts.receipt import CheckRecord

from ...conftest import hashes
from .plans import SIZE, SmallPlan, small_plan, source_folder, tree, write

NEW = ".out.ropeconv-partial/new/out"
FILES = ["config.json", "LICENSE", "model.safetensors", "more/made.bin", "patched.bin"]


class Killed(BaseException):
    """What no code catches, as a kill."""


def interrupted(plan: SmallPlan, link: bool = False) -> Path:
    """The hidden folder of a run that was killed after its last file."""

    def stop(folder: Path) -> CheckRecord | None:
        raise Killed

    with pytest.raises(Killed):
        execute_plan(plan, ApplyOptions(link=link), stop)
    return plan.out.parent / NEW


def made_in(root: Path) -> dict[str, FileIdentity | None]:
    """Which file is there, by name: a file that is made again has another time, if not another inode."""
    return {name: identity(root / name) for name in FILES}


def test_finished_files_are_not_made_again(tmp_path: Path) -> None:
    plan = small_plan(source_folder(tmp_path), tmp_path / "out")
    made = made_in(interrupted(plan))
    write(plan)
    assert made_in(tmp_path / "out") == made


def emptied(path: Path) -> None:
    path.write_bytes(b"")


def zeroed(path: Path) -> None:
    size = path.stat().st_size
    path.write_bytes(bytes(size))


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-1])


def zeroed_at_the_same_time(path: Path) -> None:
    """As a disk does that lost power: the size and the time are right, and the bytes are not."""
    status = path.stat()
    with path.open("r+b") as file:
        file.write(bytes(status.st_size))
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))


def gone(path: Path) -> None:
    path.unlink()


def one_byte(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(bytes(data))


@pytest.mark.parametrize("damage", [emptied, zeroed, cut, zeroed_at_the_same_time, gone, one_byte])
@pytest.mark.parametrize("name", FILES)
def test_a_damaged_file_is_made_again(tmp_path: Path, name: str, damage: object) -> None:
    folder = source_folder(tmp_path)
    right = tree(write(small_plan(folder, tmp_path / "right")))
    plan = small_plan(folder, tmp_path / "out")
    root = interrupted(plan)
    made = made_in(root)
    damage(root / name)  # type: ignore[operator]
    write(plan)
    assert tree(tmp_path / "out") == right
    kept = {other: inode for other, inode in made.items() if other != name}
    now = made_in(tmp_path / "out")
    assert {other: now[other] for other in kept} == kept


def test_a_file_that_nobody_planned_does_not_get_into_the_output(tmp_path: Path) -> None:
    plan = small_plan(source_folder(tmp_path), tmp_path / "out")
    (interrupted(plan) / "model.safetensors.part.floats").write_text("half")
    write(plan)
    assert sorted(tree(tmp_path / "out")) == sorted(FILES)


def test_a_source_may_have_files_with_the_names_of_drafts(tmp_path: Path) -> None:
    folder = source_folder(tmp_path)
    names = [f"model.safetensors{ending}" for ending in (".part", ".part.part", ".new", ".draft", ".tmp")]
    for name in names:
        (folder / name).write_text(name)
    extra = tuple(PlannedFile("copy", name, len(name)) for name in names)
    for number in range(10):
        out = tmp_path / f"out-{number}"
        write(small_plan(folder, out, extra=extra))
        assert {name: (out / name).read_text() for name in names} == dict(zip(names, names, strict=True))
        assert (out / "model.safetensors").read_bytes() == (folder / "model.safetensors").read_bytes()


@pytest.mark.parametrize("damage", [emptied, cut, lambda path: path.write_bytes(os.urandom(200))])
def test_a_damaged_journal_means_to_start_again(tmp_path: Path, damage: object) -> None:
    plan = small_plan(source_folder(tmp_path), tmp_path / "out")
    root = interrupted(plan)
    made = made_in(root)
    damage(root.parent.parent / "journal")  # type: ignore[operator]
    write(plan)
    assert made_in(tmp_path / "out")["model.safetensors"] != made["model.safetensors"] or damage is cut
    assert sorted(tree(tmp_path / "out")) == sorted(FILES)


def test_a_line_that_was_cut_off_hides_none_that_come_after_it(tmp_path: Path) -> None:
    plan = small_plan(source_folder(tmp_path), tmp_path / "out")
    journal = interrupted(plan).parent.parent / "journal"
    journal.write_bytes(journal.read_bytes()[:-20])
    made = made_in(interrupted(plan))
    write(plan)
    assert made_in(tmp_path / "out") == made


def test_links_to_the_source_are_kept_as_links(tmp_path: Path) -> None:
    folder = source_folder(tmp_path)
    plan = small_plan(folder, tmp_path / "out")
    interrupted(plan, link=True)
    write(plan, link=True)
    assert (tmp_path / "out" / "model.safetensors").samefile(folder / "model.safetensors")


def test_another_plan_starts_again(tmp_path: Path) -> None:
    folder = source_folder(tmp_path)
    made = made_in(interrupted(small_plan(folder, tmp_path / "out")))
    write(small_plan(folder, tmp_path / "out", "second"))
    assert not set(made_in(tmp_path / "out").values()) & set(made.values())


def test_a_source_that_has_changed_starts_again(tmp_path: Path) -> None:
    folder = source_folder(tmp_path)
    interrupted(small_plan(folder, tmp_path / "out"))
    (folder / "model.safetensors").write_bytes(bytes(SIZE))
    write(small_plan(folder, tmp_path / "out"))
    assert tree(tmp_path / "out")["model.safetensors"] == bytes(SIZE)


def test_a_source_that_has_changed_at_the_same_time_and_size_starts_again(tmp_path: Path) -> None:
    """A patched file is not compared with its source, so only the plan can say what it was made of."""
    folder = source_folder(tmp_path)
    weights = folder / "model.safetensors"

    def make(target: Path, advance: Callable[[int], None]) -> None:
        target.write_bytes(weights.read_bytes()[::-1])

    def plan() -> SmallPlan:
        return small_plan(folder, tmp_path / "out", extra=(PlannedFile("patch", "folded", SIZE, make=make),))

    interrupted(plan())
    status, data = weights.stat(), weights.read_bytes()
    with weights.open("r+b") as file:
        file.write(data[1000::-1])
    os.utime(weights, ns=(status.st_atime_ns, status.st_mtime_ns))
    assert identity(weights) == FileIdentity(status.st_ino, status.st_size, status.st_mtime_ns)
    write(plan())
    assert tree(tmp_path / "out")["folded"] == weights.read_bytes()[::-1]


def test_the_receipt_says_what_was_planned_and_what_is_there(tmp_path: Path) -> None:
    plan = small_plan(source_folder(tmp_path), tmp_path / "out")
    interrupted(plan)
    found = {file.name: file for file in read_receipt(write(plan)).files}
    there = hashes(tmp_path / "out")
    assert {name: file.size for name, file in found.items()} == {file.name: file.size for file in plan.files}
    hashed = {name: file.sha256 for name, file in found.items() if file.sha256}
    assert hashed == {name: there[name] for name in ("config.json", "more/made.bin")}


def test_a_made_file_of_another_size_than_planned_is_an_error(tmp_path: Path) -> None:
    def make(target: Path, advance: object) -> None:
        target.write_bytes(b"12345")

    folder = source_folder(tmp_path)
    for size, estimated in ((6, False), (0, False), (6, True), (5, False)):
        out = tmp_path / f"out{size}{estimated}"
        plan = small_plan(folder, out, extra=(PlannedFile("convert", "new", size, make=make, estimated=estimated),))
        if (size, estimated) == (6, False):
            with pytest.raises(Exception, match="new changed while it was copied"):
                write(plan)
            assert not out.exists()
        else:
            assert {file.name: file.size for file in read_receipt(write(plan)).files}["new"] == 5


def test_a_copy_whose_size_the_hub_does_not_tell_is_taken_as_it_comes(tmp_path: Path) -> None:
    folder = source_folder(tmp_path)
    (folder / "README.md").write_text("what the Hub has")
    plan = small_plan(folder, tmp_path / "out", extra=(PlannedFile("copy", "README.md", 0),))
    found = {file.name: file.size for file in read_receipt(write(plan)).files}
    assert found["README.md"] == 16
    assert tree(tmp_path / "out")["README.md"] == b"what the Hub has"


@pytest.mark.parametrize("wrong", [bytes, lambda size: b"\1" * size])
def test_a_copy_with_other_bytes_than_the_source_is_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, wrong: Callable[[int], bytes]
) -> None:
    """As filesystems have given zeros for what was just written: https://github.com/openzfs/zfs/issues/15526."""
    plan = small_plan(source_folder(tmp_path), tmp_path / "out")

    def copied(source: Path, target: Path, advance: Callable[[int], None]) -> None:
        target.write_bytes(wrong(source.stat().st_size))

    with monkeypatch.context() as patched:
        patched.setattr(files, "copy_file", copied)
        with pytest.raises(BadSource, match="changed while it was copied"):
            write(plan)
    assert not plan.out.exists()
    write(plan)
    assert (plan.out / "model.safetensors").read_bytes() == (tmp_path / "model/model.safetensors").read_bytes()
