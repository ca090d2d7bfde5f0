"""Where an output may be, and what of an earlier one is replaced."""

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from ropeconv.bake import execution, hidden
from ropeconv.bake.plan import FilePlan
from ropeconv.formats import disk
from ropeconv.rope.errors import RopeconvError

from ...support.baking import apply, make_plan, recipe_of
from ...support.gguf_files import write as write_gguf
from .plans import beside, small_plan, source_folder, tree, write


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return source_folder(tmp_path)


@pytest.fixture
def out(folder: Path, tmp_path: Path) -> Path:
    return write(small_plan(folder, tmp_path / "out"))


def replaced(out: Path) -> Path:
    """The output of another plan in the place of an earlier one."""
    return write(small_plan(out.with_name("model"), out, "second"), force=True)


def is_replaced(out: Path) -> bool:
    return tree(replaced(out))["config.json"] == b'{"label": "second"}\n' and beside(out) == []


@pytest.mark.parametrize("force", [False, True])
@pytest.mark.parametrize("target", ["folder", "earlier", "nothing"])
def test_a_link_is_neither_replaced_nor_followed(
    tmp_path: Path, folder: Path, target: str, force: bool
) -> None:
    (tmp_path / "folder").mkdir()
    earlier = write(small_plan(folder, tmp_path / "earlier"))
    before = tree(earlier)
    out = tmp_path / "out"
    out.symlink_to(target)
    with pytest.raises(RopeconvError, match=rf"link to {target}"):
        write(small_plan(folder, out, "second"), force=force)
    assert os.readlink(out) == target
    assert tree(earlier) == before
    assert list((tmp_path / "folder").iterdir()) == []
    write(
        small_plan(folder, tmp_path / "folder", "second")
    )  # the negative control: the place itself


@pytest.mark.parametrize("there", [b"", b"GGUF", b"notes"])
def test_a_file_that_is_no_gguf_is_not_replaced(tmp_path: Path, there: bytes) -> None:
    write_gguf(tmp_path / "model.gguf")
    out = tmp_path / "out.gguf"
    out.write_bytes(there)
    plan = make_plan(tmp_path / "model.gguf", recipe_of("yarn", 4.0), out)
    with pytest.raises(
        RopeconvError,
        match="receipt.* --force",
    ):
        apply(plan, force=True)
    assert out.read_bytes() == there


# What force replaces


@pytest.mark.parametrize("name", ["README.md", "notes/more.txt", ".git/HEAD", "report.html"])
def test_force_does_not_delete_what_the_user_has_added(out: Path, name: str) -> None:
    (out / name).parent.mkdir(exist_ok=True)
    (out / name).write_text("of the user")
    before = tree(out)
    with pytest.raises(
        RopeconvError,
        match=rf"out has {name}, .*did not write",
    ):
        replaced(out)
    assert tree(out) == before
    assert beside(out) == []
    (out / name).unlink()
    assert is_replaced(out)


# What comes after the last look at the place


def before_the_moves(monkeypatch: pytest.MonkeyPatch, change: Callable[[], object]) -> None:
    """Has something happen once, after the last look at the place of an output and before the first
    move to it.
    """
    inner = hidden._move
    left = [change]

    def move(*given: Any) -> None:
        if left:
            left.pop()()
        inner(*given)

    monkeypatch.setattr(hidden, "_move", move)


def written(place: Path) -> None:
    place.parent.mkdir(exist_ok=True)
    place.write_text("of the user")


@pytest.mark.parametrize("name", ["out", "out/notes.txt"])
def test_without_force_nothing_is_replaced_that_comes_after_the_last_look(
    tmp_path: Path, folder: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "out"
    refuse = execution.refuse_occupied
    looks: Iterator[None] = iter([None])

    def then_it_comes(plan: FilePlan, force: bool) -> None:
        refuse(plan, force)
        if next(looks, out) is out:
            written(tmp_path / name)

    monkeypatch.setattr(execution, "refuse_occupied", then_it_comes)
    with pytest.raises(
        RopeconvError,
        match="out .*meanwhile",
    ):
        write(small_plan(folder, out))
    assert (tmp_path / name).read_text() == "of the user"
    assert out.is_file() or [path.name for path in out.iterdir()] == ["notes.txt"]


@pytest.mark.parametrize("without", ["", "exchange"])
def test_what_is_added_later_is_kept(
    out: Path, without: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The earlier output is back in its place, and the next run says the same or replaces it."""
    if without:
        monkeypatch.setattr(disk, "_renameat2", lambda source, target, flags: False)
    before = tree(out)
    before_the_moves(monkeypatch, lambda: written(out / "README.md"))
    with pytest.raises(RopeconvError, match=r"/out has README\.md, .*did not write"):
        replaced(out)
    assert tree(out) == {**before, "README.md": b"of the user"}
    (out / "README.md").unlink()
    assert is_replaced(out)
