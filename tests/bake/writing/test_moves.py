"""What stood at a name is there again after moves that were interrupted, in each state in which they can be."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from ropeconv.bake.writing.hidden import Hidden, locked
from ropeconv.bake.writing.journal import Journal, Move, Moves
from ropeconv.bake.writing.moves import settle


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
    assert not hidden.old("out").exists()
    return (hidden.out / "model").read_text(), hidden.new("out").exists()


@pytest.mark.parametrize(
    ("moves", "found"),
    [
        ([], ("earlier", True)),
        ([("out", "old")], ("earlier", True)),  # as a kill leaves it where the system cannot exchange two names
        ([("new", "aside"), ("out", "new")], ("earlier", False)),
        ([("out", "old"), ("new", "out")], ("later", False)),
    ],
    ids=["nothing", "the earlier one away", "the earlier one to the place of the new one", "all"],
)
def test_what_stands_at_the_name_after_some_of_the_moves(
    hidden: Hidden, moves: list[tuple[str, str]], found: tuple[str, bool]
) -> None:
    places = {"out": hidden.out, "old": hidden.old("out"), "new": hidden.new("out"), "aside": hidden.root / "aside"}
    for source, target in moves:
        places[source].rename(places[target])
    assert settled(hidden) == found


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
