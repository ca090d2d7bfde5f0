"""What stood at a name is there again after moves that were interrupted, in each state in which they can be."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

import pytest

from ropeconv.bake.writing import hidden as hidden_folder
from ropeconv.bake.writing.hidden import Hidden, locked
from ropeconv.bake.writing.journal import Journal, Move, Moves
from ropeconv.bake.writing.moves import settle
from ropeconv.errors import RopeconvError


@pytest.fixture
def hidden(tmp_path: Path) -> Iterator[Hidden]:
    """An earlier output at its place, a new one in the hidden folder, and a journal that says they are to change."""
    out = tmp_path / "out"
    out.mkdir()
    (out / "model").write_text("earlier")
    with locked(out) as found:
        found.new("out").mkdir(parents=True)
        (found.new("out") / "model").write_text("later")
        found.old().mkdir()
        inodes = [path.stat().st_ino for path in (found.new("out"), out)]
        Journal.read(found.journal).add(Moves((Move("out", *inodes),)))
        yield found
        found.clear()


def settled(hidden: Hidden) -> tuple[str, bool]:
    """What stands at the name after the next start, and whether the new output is still in the hidden folder."""
    settle(hidden, Journal.read(hidden.journal))
    return (hidden.out / "model").read_text(), hidden.new("out").exists()


def test_nothing_was_moved(hidden: Hidden) -> None:
    assert settled(hidden) == ("earlier", True)


def test_the_earlier_output_was_moved_away_and_the_new_one_not_yet_there(hidden: Hidden) -> None:
    """As a kill leaves it where the system cannot exchange two names."""
    hidden.out.rename(hidden.old("out"))
    assert settled(hidden) == ("earlier", True)
    assert not hidden.old("out").exists()


def test_the_earlier_output_was_moved_to_the_place_of_the_new_one_alone(hidden: Hidden) -> None:
    hidden.new("out").rename(hidden.root / "aside")
    hidden.out.rename(hidden.new("out"))
    assert settled(hidden) == ("earlier", False)


def test_all_moves_were_made(hidden: Hidden) -> None:
    hidden.out.rename(hidden.old("out"))
    hidden.new("out").rename(hidden.out)
    assert settled(hidden) == ("later", False)
    assert not hidden.old("out").exists()


def test_one_of_two_moves_was_made(hidden: Hidden) -> None:
    """Shards of GGUF have a name each: what was not replaced yet decides that all are as they were."""
    second = hidden.new("second")
    second.write_text("second")
    journal = Journal.read(hidden.journal)
    journal.add(Moves((*journal.moves, Move("second", second.stat().st_ino, None))))
    hidden.out.rename(hidden.old("out"))
    hidden.new("out").rename(hidden.out)
    assert settled(hidden) == ("earlier", True)
    assert not hidden.final("second").exists()
    assert (hidden.new("out") / "model").read_text() == "later"


def test_everything_but_the_lock_is_cleared_and_no_link_is_followed(tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere" / "kept").write_text("")
    with locked(tmp_path / "out") as found:
        for folder in (found.drafts, found.new("out"), found.old("out"), found.root / "stray"):
            (folder / "inner").mkdir(parents=True)
        (found.root / "file").write_text("")
        (found.root / "link").symlink_to(tmp_path / "elsewhere")
        found.clear()
        assert [path.name for path in found.root.iterdir()] == ["lock"]
    assert [path.name for path in tmp_path.rglob("*")] == ["elsewhere", "kept"]


def test_files_of_an_output_are_gone_also_where_the_rest_cannot_be_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with locked(tmp_path / "out") as found:
        for folder in (found.drafts, found.new("out"), found.old("out")):
            folder.mkdir(parents=True)
        found.journal.write_text("")
        with monkeypatch.context() as patched:
            patched.setattr(hidden_folder.Path, "iterdir", lambda self: iter([found.journal]))
            patched.setattr(hidden_folder.Path, "unlink", lambda self: (_ for _ in ()).throw(OSError("no")))
            found.clear()
        assert sorted(path.name for path in found.root.iterdir()) == ["journal", "lock"]
        found.clear()


def test_a_lock_that_another_process_has_is_not_kept_open(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    opened: list[BinaryIO] = []
    monkeypatch.setattr(hidden_folder, "try_lock", lambda file: opened.append(file) or "busy")
    with pytest.raises(RopeconvError, match="another ropeconv is writing .*out; wait for it"), locked(tmp_path / "out"):
        pass
    assert [file.closed for file in opened] == [True]
