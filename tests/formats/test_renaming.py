"""Renames that replace nothing, and exchanges of names: by renameat2, and on systems without it."""

from __future__ import annotations

import ctypes
import errno
from pathlib import Path

import pytest

from ropeconv.formats import renaming
from ropeconv.formats.renaming import TAKEN, exchange, rename_new

from .conftest import fails


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
    monkeypatch.setattr(renaming, "_function", lambda: None)
    monkeypatch.setattr("os.link", fails(errno.EPERM))  # as on FAT
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
    call = renaming._function()
    assert [ctypes.sizeof(kind) for kind in call.argtypes] == [4, 8, 4, 8, 4], "folder, name, folder, name, flags"
    monkeypatch.chdir(tmp_path)
    place(Path("a"), "file", "one")
    rename_new(Path("a"), Path("b"))
    exchange(place(Path("a"), "folder", "two"), Path("b"), Path("no/such/spare"))
    assert (text(Path("a")), text(Path("b"))) == ("one", "two")
    with pytest.raises(FileExistsError) as caught:
        rename_new(Path("a"), place(Path("c"), "file", "three"))
    assert (caught.value.errno, caught.value.filename, caught.value.filename2) == (errno.EEXIST, "a", "c")


def answers(monkeypatch: pytest.MonkeyPatch, number: int) -> list[int]:
    """Lets renameat2 fail with an error number; the list gets the flags that it is called with."""
    flags: list[int] = []

    def call(*given: int) -> int:
        flags.append(given[-1])
        ctypes.set_errno(number)
        return -1

    monkeypatch.setattr(renaming, "_function", lambda: call)
    return flags


@pytest.mark.parametrize("number", [errno.ENOSYS, errno.EINVAL, errno.EOPNOTSUPP])
def test_a_filesystem_that_does_not_know_these_renames_gets_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    flags = answers(monkeypatch, number)
    one, other = place(tmp_path / "a", "file", "one"), place(tmp_path / "b", "file", "other")
    exchange(one, other, tmp_path / "spare")
    assert (text(one), text(other)) == ("other", "one")
    rename_new(one, tmp_path / "c")
    assert text(tmp_path / "c") == "other"
    assert flags == [2, 1], "RENAME_EXCHANGE and RENAME_NOREPLACE of linux/fs.h"


@pytest.mark.parametrize("number", [errno.EIO, errno.EROFS, errno.ENOSPC])
def test_what_a_disk_answers_is_no_reason_to_try_another_way(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    answers(monkeypatch, number)
    one, other = place(tmp_path / "a", "file", "one"), place(tmp_path / "b", "file", "other")
    for attempt in (lambda: exchange(one, other, tmp_path / "spare"), lambda: rename_new(one, tmp_path / "c")):
        with pytest.raises(OSError) as caught:
            attempt()
        assert caught.value.errno == number
        assert caught.value.filename == str(one)
    assert (text(one), text(other)) == ("one", "other")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a", "b"]
