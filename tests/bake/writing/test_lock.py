"""The hidden folder of an output: one process at a time, moves that were interrupted, and what is
counted.
"""

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from ropeconv.bake import execution
from ropeconv.bake import hidden as places
from ropeconv.bake.hidden import HiddenFolder, Move, Moves, OutputJournal, locked, settle
from ropeconv.rope.errors import RopeconvError

from .plans import SmallPlan, small_plan, source_folder, tree, write

HOLD = """
import sys, time
from pathlib import Path
from ropeconv.bake.hidden import locked
with locked(Path(sys.argv[1])):
    print("held", flush=True)
    time.sleep(60)
"""


def test_a_second_process_is_refused_until_the_first_has_gone(tmp_path: Path) -> None:
    folder = source_folder(tmp_path)
    out = tmp_path / "out"
    process = subprocess.Popen(
        [sys.executable, "-c", HOLD, str(out)], stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "held\n"
    try:
        with pytest.raises(RopeconvError, match=r"another ropeconv .*/out"):
            write(small_plan(folder, out))
        assert not out.exists()
        write(
            small_plan(folder, tmp_path / "elsewhere")
        )  # the negative control: another output is no conflict
    finally:
        process.kill()  # which is no word to the lock: the system takes it back
        process.wait()
    write(small_plan(folder, out))
    assert tree(out)["config.json"] == b'{"label": "first"}\n'


def test_a_link_at_the_hidden_folder_is_not_followed(tmp_path: Path) -> None:
    other = tmp_path / "other"
    other.mkdir()
    (other / "notes.txt").write_text("of the user")
    (tmp_path / ".out.ropeconv-partial").symlink_to(other)
    with pytest.raises(RopeconvError, match="is a link"):
        write(small_plan(source_folder(tmp_path), tmp_path / "out"))
    assert [path.name for path in other.iterdir()] == ["notes.txt"]


# What stood at a name is there again after moves that were interrupted, in each state in which they
# can be


@pytest.fixture
def hidden(tmp_path: Path) -> Iterator[HiddenFolder]:
    """An earlier output at its place, a new one in the hidden folder, and a journal that says they
    are to change.
    """
    out = tmp_path / "out"
    out.mkdir()
    (out / "model").write_text("earlier")
    with locked(out) as folder:
        (folder.new / "out").mkdir(parents=True)
        (folder.new / "out" / "model").write_text("later")
        folder.old.mkdir()
        inodes = [path.stat().st_ino for path in (folder.new / "out", out)]
        OutputJournal.read(folder.journal).add(Moves((Move("out", *inodes),)))
        yield folder
        folder.clear()


def settled(hidden: HiddenFolder) -> tuple[str, bool]:
    """What stands at the name after the next start, and whether the new output is still in the
    hidden folder.
    """
    settle(hidden, OutputJournal.read(hidden.journal))
    assert not (hidden.old / "out").exists()
    return (hidden.out / "model").read_text(), (hidden.new / "out").exists()


@pytest.mark.parametrize(
    ("moves", "expected"),
    [
        ([], ("earlier", True)),
        (
            [("out", "old")],
            ("earlier", True),
        ),  # as a kill leaves it where the system cannot exchange two names
        ([("new", "aside"), ("out", "new")], ("earlier", False)),
        ([("out", "old"), ("new", "out")], ("later", False)),
    ],
    ids=["nothing", "the earlier one away", "the earlier one to the place of the new one", "all"],
)
def test_what_some_of_the_moves_leave(
    hidden: HiddenFolder, moves: list[tuple[str, str]], expected: tuple[str, bool]
) -> None:
    places = {
        "out": hidden.out,
        "old": hidden.old / "out",
        "new": hidden.new / "out",
        "aside": hidden.root / "aside",
    }
    for source, target in moves:
        places[source].rename(places[target])
    assert settled(hidden) == expected


# What a run counts, records and needs of the disk; tests/faults takes the power away at every call


@pytest.fixture
def plan(tmp_path: Path) -> SmallPlan:
    return small_plan(source_folder(tmp_path), tmp_path / "out")


@pytest.mark.parametrize(("link", "shares"), [(False, False), (True, False), (False, True)])
def test_a_disk_needs_space_for_what_is_made(
    plan: SmallPlan, monkeypatch: pytest.MonkeyPatch, link: bool, shares: bool
) -> None:
    """Before anything is written. 16 MiB of the disk are left free."""
    copied = sum(file.size for file in plan.files if file.action == "copy")
    needed = plan.bytes - (copied if link or shares else 0) + (16 << 20)
    monkeypatch.setattr(places, "same_blocks", lambda source, folder: shares)
    monkeypatch.setattr(places, "free_bytes", lambda folder: needed - 1)
    with monkeypatch.context() as patch:
        patch.setattr(
            execution.Writer, "write", lambda *given: pytest.fail("something was written")
        )
        message = r"has 17\.\d MB free and the output needs 17\.\d MB; free some, use -o, or share"
        with pytest.raises(RopeconvError, match=message):
            write(plan, link=link)
    assert not plan.out.exists()
    monkeypatch.setattr(places, "free_bytes", lambda folder: needed)
    write(plan, link=link)
