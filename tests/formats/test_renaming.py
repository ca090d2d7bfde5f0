"""Renames that replace nothing, and exchanges of names: by renameat2, and on systems without it."""

from __future__ import annotations

import errno
from pathlib import Path

import pytest

from ropeconv.formats import renaming
from ropeconv.formats.renaming import TAKEN, exchange, rename_new


@pytest.fixture(params=["renameat2", "none"])
def system(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    if request.param == "none":
        monkeypatch.setattr(renaming, "_function", lambda: None)
    return str(request.param)


def place(path: Path, kind: str, text: str) -> Path:
    if kind == "file":
        path.write_text(text)
    else:
        path.mkdir()
        (path / "inside").write_text(text)
    return path


def text(path: Path) -> str:
    return (path / "inside" if path.is_dir() else path).read_text()


@pytest.mark.parametrize("kind", ["file", "folder"])
def test_a_free_name_is_taken(tmp_path: Path, system: str, kind: str) -> None:
    source = place(tmp_path / "a", kind, "new")
    rename_new(source, tmp_path / "b")
    assert text(tmp_path / "b") == "new"
    assert not source.exists()


@pytest.mark.parametrize("there", ["file", "folder"])
@pytest.mark.parametrize("kind", ["file", "folder"])
def test_a_name_that_is_taken_is_not_replaced(tmp_path: Path, system: str, kind: str, there: str) -> None:
    source, target = place(tmp_path / "a", kind, "new"), place(tmp_path / "b", there, "old")
    with pytest.raises(OSError) as caught:
        rename_new(source, target)
    assert caught.value.errno in TAKEN
    assert (text(source), text(target)) == ("new", "old")


def test_a_link_to_nowhere_is_a_taken_name(tmp_path: Path, system: str) -> None:
    (tmp_path / "b").symlink_to("nowhere")
    with pytest.raises(FileExistsError):
        rename_new(place(tmp_path / "a", "file", "new"), tmp_path / "b")


def test_without_hard_links_a_taken_name_is_not_replaced_either(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def link(source: Path, target: Path) -> None:
        raise OSError(errno.EPERM, "no links on FAT")

    monkeypatch.setattr(renaming, "_function", lambda: None)
    monkeypatch.setattr("os.link", link)
    source, target = place(tmp_path / "a", "file", "new"), place(tmp_path / "b", "file", "old")
    with pytest.raises(FileExistsError):
        rename_new(source, target)
    rename_new(source, tmp_path / "c")
    assert (text(target), text(tmp_path / "c")) == ("old", "new")


@pytest.mark.parametrize("other", ["file", "folder"])
@pytest.mark.parametrize("one", ["file", "folder"])
def test_two_names_are_exchanged(tmp_path: Path, system: str, one: str, other: str) -> None:
    first, second = place(tmp_path / "a", one, "one"), place(tmp_path / "b", other, "other")
    exchange(first, second, tmp_path / "spare")
    assert (text(first), text(second)) == ("other", "one")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a", "b"]


def test_a_failing_exchange_puts_the_names_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first, second = place(tmp_path / "a", "folder", "one"), place(tmp_path / "b", "folder", "other")
    rename = Path.rename

    def failing(self: Path, target: Path) -> Path:
        if self == first:
            raise OSError(errno.EIO, "the disk fails")
        return rename(self, target)

    monkeypatch.setattr(renaming, "_function", lambda: None)
    monkeypatch.setattr(Path, "rename", failing)
    with pytest.raises(OSError, match="the disk fails"):
        exchange(first, second, tmp_path / "spare")
    assert (text(first), text(second)) == ("one", "other")


def test_other_errors_of_the_system_are_errors(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        rename_new(tmp_path / "a", tmp_path / "b")
    with pytest.raises(FileNotFoundError):
        exchange(place(tmp_path / "a", "file", "new"), tmp_path / "b", tmp_path / "spare")


def test_linux_has_the_call_and_takes_names_relative_to_the_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert renaming._function() is not None
    monkeypatch.chdir(tmp_path)
    place(Path("a"), "file", "one")
    rename_new(Path("a"), Path("b"))
    exchange(place(Path("a"), "folder", "two"), Path("b"), Path("no/such/spare"))
    assert (text(Path("a")), text(Path("b"))) == ("one", "two")
    with pytest.raises(FileExistsError) as caught:
        rename_new(Path("a"), place(Path("c"), "file", "three"))
    assert (caught.value.errno, caught.value.filename, caught.value.filename2) == (errno.EEXIST, "a", "c")
