"""One process at a time writes an output."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

import pytest

from ropeconv.bake.execute import ApplyOptions, execute_plan
from ropeconv.bake.writing.hidden import LOCK, NEW, locked
from ropeconv.errors import RopeconvError
from ropeconv.receipts.receipt import CheckRecord

from .plans import small_plan, source_folder, tree, write

HOLD = """
import sys, time
from pathlib import Path
from ropeconv.bake.writing.hidden import locked
with locked(Path(sys.argv[1])):
    print("held", flush=True)
    time.sleep(60)
"""


def test_a_second_process_is_refused_until_the_first_has_gone(tmp_path: Path) -> None:
    folder, out = source_folder(tmp_path), tmp_path / "out"
    process = subprocess.Popen([sys.executable, "-c", HOLD, str(out)], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert process.stdout.readline() == "held\n"
    try:
        with pytest.raises(RopeconvError, match=r"another ropeconv is writing .*/out; wait for it, or choose"):
            write(small_plan(folder, out))
        assert not out.exists()
        write(small_plan(folder, tmp_path / "elsewhere"))  # the negative control: another output is no conflict
    finally:
        process.kill()  # which is no word to the lock: the system takes it back
        process.wait()
    write(small_plan(folder, out))
    assert tree(out)["config.json"] == b'{"label": "first"}\n'


def test_two_names_of_one_place_are_one_lock(tmp_path: Path) -> None:
    (tmp_path / "here").mkdir()
    (tmp_path / "there").symlink_to("here")
    with locked(tmp_path / "here" / "out"), pytest.raises(RopeconvError, match="another ropeconv"):
        write(small_plan(source_folder(tmp_path), tmp_path / "there" / "out"))
    assert list((tmp_path / "here").iterdir()) == []


def test_who_waited_for_a_folder_that_was_removed_makes_a_new_one(tmp_path: Path) -> None:
    """The lock of a folder that is gone protects nothing: many threads, and never two of them inside."""
    inside, most = [0], [0]

    def work() -> int:
        mine = 0
        while mine < 8:
            with suppress(RopeconvError), locked(tmp_path / "out"):
                inside[0] += 1
                most[0] = max(most[0], inside[0])
                time.sleep(0.0005)
                mine += 1
                inside[0] -= 1
        return mine

    with ThreadPoolExecutor(6) as pool:
        running = [pool.submit(work) for _ in range(6)]
    assert [future.result() for future in running] == [8] * 6
    assert most == [1]
    assert list(tmp_path.iterdir()) == []


def test_a_link_at_the_hidden_folder_is_not_followed(tmp_path: Path) -> None:
    other = tmp_path / "other"
    other.mkdir()
    (other / "notes.txt").write_text("of the user")
    (tmp_path / ".out.ropeconv-partial").symlink_to(other)
    with pytest.raises(RopeconvError, match="is a link"):
        write(small_plan(source_folder(tmp_path), tmp_path / "out"))
    assert [path.name for path in other.iterdir()] == ["notes.txt"]


@pytest.mark.parametrize("name", ["out", "out/notes.txt"])
def test_what_comes_while_it_is_written_is_not_replaced(tmp_path: Path, name: str) -> None:
    """The last look at the name is just before the rename; this comes while the receipt is on its way."""
    folder, out = source_folder(tmp_path), tmp_path / "out"

    def meanwhile(partial: Path) -> CheckRecord | None:
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("of the user")
        return None

    with pytest.raises(RopeconvError, match="exists; choose another place"):
        execute_plan(small_plan(folder, out), ApplyOptions(), meanwhile)
    with pytest.raises(RopeconvError, match="is not an output of ropeconv"):
        write(small_plan(folder, out), force=True)
    assert (tmp_path / name).read_text() == "of the user"


def test_a_filesystem_that_keeps_removed_files_until_they_are_closed_is_no_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """NFS renames an open file that is removed, and the folder around it cannot be removed until it is closed."""
    unlink, kept = Path.unlink, []

    def unlink_on_nfs(path: Path, missing_ok: bool = False) -> None:
        if path.name == LOCK:
            kept.append(path.rename(path.with_name(".nfs0001")))
        else:
            unlink(path, missing_ok)

    monkeypatch.setattr(Path, "unlink", unlink_on_nfs)
    out = write(small_plan(source_folder(tmp_path), tmp_path / "out"))
    assert tree(out)["LICENSE"] == b"terms"
    assert [path.name for path in kept] == [".nfs0001"]


@pytest.mark.parametrize("number", [errno.ENOTEMPTY, errno.EBUSY])
def test_the_hidden_folder_is_removed_once_its_lock_is_closed(
    tmp_path: Path, number: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    rmdir, calls = Path.rmdir, []

    def rmdir_on_nfs(path: Path) -> None:
        calls.append(path.name)
        if len(calls) == 1:
            raise OSError(number, os.strerror(number))
        rmdir(path)

    monkeypatch.setattr(Path, "rmdir", rmdir_on_nfs)
    with locked(tmp_path / "out"):
        pass
    assert calls == [".out.ropeconv-partial"] * 2
    assert list(tmp_path.iterdir()) == []


def test_what_could_not_be_cleared_is_said(tmp_path: Path) -> None:
    said = r"out is complete, and .*ropeconv-partial cannot be removed"
    with pytest.raises(RopeconvError, match=said), locked(tmp_path / "out") as hidden:
        hidden.new().mkdir()
    assert [path.name for path in hidden.root.iterdir()] == [NEW]
