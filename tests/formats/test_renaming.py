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


@pytest.mark.parametrize("there", ["nothing", "file", "folder", "link to nowhere"])
@pytest.mark.parametrize("kind", ["file", "folder"])
def test_a_free_name_is_taken_and_another_is_not_replaced(tmp_path: Path, system: str, kind: str, there: str) -> None:
    source, target = place(tmp_path / "a", kind, "new"), tmp_path / "b"
    if there == "nothing":
        rename_new(source, target)
        assert (text(target), source.exists()) == ("new", False)
        return
    if there == "link to nowhere":
        target.symlink_to("nowhere")
    else:
        place(target, there, "old")
    with pytest.raises(OSError) as caught:
        rename_new(source, target)
    assert caught.value.errno in TAKEN
    assert text(source) == "new"
    assert target.is_symlink() or text(target) == "old"


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
    rename, broken = Path.rename, fails(errno.EIO)
    monkeypatch.setattr(renaming, "_function", lambda: None)
    monkeypatch.setattr(Path, "rename", lambda self, target: (broken if self == first else rename)(self, target))
    with pytest.raises(OSError, match="Input/output error"):
        exchange(first, second, tmp_path / "spare")
    assert (text(first), text(second)) == ("one", "other")


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


UNKNOWN = (errno.ENOSYS, errno.EINVAL, errno.EOPNOTSUPP)


@pytest.mark.parametrize("number", [*UNKNOWN, errno.EIO, errno.EROFS, errno.ENOSPC])
def test_another_way_is_tried_where_a_filesystem_does_not_know_these_renames_and_not_where_a_disk_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    flags: list[int] = []

    def call(*given: int) -> int:
        flags.append(given[-1])
        ctypes.set_errno(number)
        return -1

    monkeypatch.setattr(renaming, "_function", lambda: call)
    one, other = place(tmp_path / "a", "file", "one"), place(tmp_path / "b", "file", "other")
    for attempt in (lambda: exchange(one, other, tmp_path / "spare"), lambda: rename_new(one, tmp_path / "c")):
        if number in UNKNOWN:
            attempt()
            continue
        with pytest.raises(OSError) as caught:
            attempt()
        assert (caught.value.errno, caught.value.filename) == (number, str(one))
    assert flags == [2, 1], "RENAME_EXCHANGE and RENAME_NOREPLACE of linux/fs.h"
    found = {path.name: text(path) for path in tmp_path.iterdir()}
    assert found in ({"b": "one", "c": "other"}, {"a": "one", "b": "other"})
    assert ("c" in found) == (number in UNKNOWN)
