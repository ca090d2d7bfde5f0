"""Files beside a receipt: compared with it, and how a receipt gets to its place, whatever the disk does."""

from __future__ import annotations

import errno
import hashlib
import json
import os
from pathlib import Path
from typing import Any

import pytest

from ropeconv.errors import BadSource
from ropeconv.receipts import Receipt, read_receipt, write
from ropeconv.receipts.files import check_files
from ropeconv.receipts.original import SourceRecord
from ropeconv.receipts.receipt import FileRecord, ScheduleRecord
from ropeconv.receipts.write import add_validation, clear_drafts, write_receipt

from ..support.gguf_files import write as write_gguf

BESIDE, INSIDE = ".out.ropeconv.json.new", ".ropeconv.json.new"


def receipt(*files: FileRecord) -> Receipt:
    source, schedule = SourceRecord("model", "folder"), ScheduleRecord("d")
    recipe = {"method": "yarn"}
    return Receipt(
        ropeconv="1", source=source, recipe=recipe, encoding="native", schedule=schedule, files=files
    )  # fmt: skip


def record(path: Path, known: bool = True) -> FileRecord:
    digest = hashlib.sha256(path.read_bytes()).hexdigest() if known else None
    return FileRecord(path.name, "write", path.stat().st_size, digest)


@pytest.fixture
def out(tmp_path: Path) -> Path:
    folder = tmp_path / "out"
    folder.mkdir()
    for name in ("config.json", "code.py", "model.safetensors", "notes.txt"):
        (folder / name).write_text(f"{name} as written")
    return folder


# Files compared with a receipt


@pytest.mark.parametrize("name", ["config.json", "code.py", "model.safetensors"])
def test_a_file_that_was_edited_is_not_the_one_that_was_written(out: Path, name: str) -> None:
    one = receipt(*(record(path) for path in sorted(out.iterdir())))
    check_files(out, one)
    text = (out / name).read_text()
    (out / name).write_text(text + "!")
    for weights in (True, False):
        with pytest.raises(BadSource, match=f"{name} is not the file that ropeconv wrote; run apply again"):
            check_files(out, one, weights)
    (out / name).write_text(text[:-1] + "!")  # of the same size
    with pytest.raises(BadSource, match=f"{name} is not the file"):
        check_files(out, one)
    if name == "model.safetensors":
        check_files(out, one, weights=False)
    else:
        with pytest.raises(BadSource, match=f"{name} is not the file"):
            check_files(out, one, weights=False)
    (out / name).unlink()
    with pytest.raises(BadSource, match=f"{name} is not there any more; run apply again"):
        check_files(out, one, weights=False)


def test_files_without_a_digest_are_known_by_their_size(out: Path) -> None:
    one = receipt(*(record(path, known=False) for path in sorted(out.iterdir())))
    (out / "model.safetensors").write_text("another as writtens here")
    assert len("another as writtens here") != one.files[2].size
    with pytest.raises(BadSource, match=r"model\.safetensors is not the file"):
        check_files(out, one)
    (out / "model.safetensors").write_text("x" * one.files[2].size)
    check_files(out, one)


def test_other_kinds_of_files_are_not_compared_and_those_behind_them_are(out: Path) -> None:
    kinds = FileRecord("a.txt", "copy", 5, "0" * 64), FileRecord("b.bin", "copy", 5, None)
    check_files(out, receipt(*kinds, record(out / "config.json")))
    with pytest.raises(BadSource, match=r"gone\.json is not there any more"):
        check_files(out, receipt(*kinds, FileRecord("gone.json", "write", 5, None)))


def test_names_outside_of_the_folder_are_not_looked_at(out: Path) -> None:
    (out.parent / "secret.json").write_text("{}")
    for name in ("../secret.json", str(out.parent / "secret.json"), "../secret.txt"):
        with pytest.raises(BadSource, match=r"lists '.*secret.*', outside of it; do not trust it"):
            check_files(out, receipt(FileRecord(name, "write", 2, None)))


def test_a_gguf_file_without_a_receipt_is_said_to_have_none(tmp_path: Path) -> None:
    path = write_gguf(tmp_path / "model.gguf")
    with pytest.raises(BadSource, match=r"model\.gguf has no receipt among its keys, so it is not an output"):
        read_receipt(path)


# How a receipt gets to its place


@pytest.fixture
def moves(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What is synced and what is renamed, in order."""
    found: list[str] = []
    replace = os.replace

    def renamed(source: Path, target: Path) -> None:
        found.append(f"{Path(source).name} to {Path(target).name}")
        replace(source, target)

    monkeypatch.setattr(write, "sync_file", lambda path: found.append(f"sync {path.name}"))
    monkeypatch.setattr(write, "sync_folder", lambda path: found.append(f"sync {path.name}"))
    monkeypatch.setattr(os, "replace", renamed)
    return found


def test_a_receipt_is_on_the_disk_before_it_has_its_name(out: Path, moves: list[str]) -> None:
    write_receipt(out, receipt())
    assert moves[:2] == [f"sync {BESIDE}", f"{BESIDE} to ropeconv.json"]
    assert sorted(moves[2:]) == sorted([f"sync {out.parent.name}", "sync out"])
    moves.clear()
    write_receipt(out, receipt(record(out / "code.py")), fsync=False)
    assert moves == [f"{BESIDE} to ropeconv.json"]
    assert read_receipt(out).files == (record(out / "code.py"),)


@pytest.mark.parametrize("number", [errno.EXDEV, errno.EACCES, errno.EPERM, errno.EROFS])
def test_where_nothing_can_be_beside_a_folder_it_is_drafted_inside(
    out: Path, moves: list[str], monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    refuse_drafts(monkeypatch, BESIDE, number)
    write_receipt(out, receipt())
    assert read_receipt(out) == receipt()
    assert moves == [f"sync {INSIDE}", f"{INSIDE} to ropeconv.json", "sync out"]
    assert sorted(path.name for path in (*out.iterdir(), *out.parent.iterdir()) if "new" in path.name) == []


def test_other_errors_of_the_disk_are_errors(out: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    refuse_drafts(monkeypatch, BESIDE, errno.ENOSPC)
    with pytest.raises(OSError, match="No space left"):
        write_receipt(out, receipt())
    assert not (out / "ropeconv.json").exists()


def test_a_draft_that_cannot_be_finished_is_removed(out: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_receipt(out, receipt())
    before = (out / "ropeconv.json").read_bytes()

    def fails(path: Path) -> None:
        raise OSError(errno.EIO, "the disk fails")

    monkeypatch.setattr(write, "sync_file", fails)
    with pytest.raises(OSError, match="the disk fails"):
        write_receipt(out, receipt(record(out / "code.py")))
    assert (out / "ropeconv.json").read_bytes() == before
    assert not (out.parent / BESIDE).exists()


def refuse_drafts(monkeypatch: pytest.MonkeyPatch, name: str, number: int) -> None:
    opened = Path.open

    def refuse(path: Path, *given: Any, **named: Any) -> Any:
        if path.name == name:
            raise OSError(number, os.strerror(number), str(path))
        return opened(path, *given, **named)

    monkeypatch.setattr(Path, "open", refuse)


@pytest.mark.parametrize(("first", "stat"), [("busy", None), ("taken", FileNotFoundError)])
def test_a_draft_of_another_process_is_waited_for(
    out: Path, monkeypatch: pytest.MonkeyPatch, first: str, stat: type[OSError] | None
) -> None:
    """Another process has it locked, or moves it to its name between the two looks."""
    slept: list[float] = []
    lock, real = write.try_lock, write.os.path.samestat

    def busy(file: Any) -> str:
        return first if first == "busy" and not slept else lock(file)

    def gone(one: os.stat_result, other: os.stat_result) -> bool:
        if stat is not None and not slept:
            raise stat
        return real(one, other)

    monkeypatch.setattr(write, "try_lock", busy)
    monkeypatch.setattr(write.os.path, "samestat", gone)
    monkeypatch.setattr(write.time, "sleep", slept.append)
    before = len(os.listdir("/proc/self/fd"))
    write_receipt(out, receipt())
    assert slept == [write.PAUSE]
    assert read_receipt(out) == receipt()
    assert len(os.listdir("/proc/self/fd")) == before


def test_an_unexpected_error_of_a_lock_is_passed_on(out: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(file: Any) -> str:
        raise OSError(errno.EIO, "the disk fails")

    monkeypatch.setattr(write, "try_lock", fails)
    before = len(os.listdir("/proc/self/fd"))
    with pytest.raises(OSError, match="the disk fails"):
        write_receipt(out, receipt())
    assert len(os.listdir("/proc/self/fd")) == before


def test_links_in_the_place_of_a_draft_stay(out: Path) -> None:
    (out.parent / "kept").write_text("kept")
    (out / INSIDE).symlink_to(out.parent / "kept")
    (out.parent / BESIDE).mkdir()
    clear_drafts(out)
    assert (out / INSIDE).is_symlink()
    assert (out.parent / BESIDE).is_dir()
    assert (out.parent / "kept").read_text() == "kept"


def test_results_of_a_size_that_has_changed_are_not_kept(tmp_path: Path) -> None:
    path = write_gguf(tmp_path / "model.gguf")
    add_validation(path, receipt(), {"agrees": True})
    add_validation(path, receipt(), {"agrees": False}, "vllm")
    beside = json.loads((tmp_path / "model.gguf.validation.json").read_text())
    assert (beside["size"], beside["validation"]) == (path.stat().st_size, {"agrees": True})
    assert beside["servers"] == {"vllm": {"agrees": False}}
    with path.open("ab") as file:
        file.write(b"x")
    add_validation(path, receipt(), {"agrees": False}, "vllm")
    now = json.loads((tmp_path / "model.gguf.validation.json").read_text())
    assert "validation" not in now
    assert now["size"] == path.stat().st_size
