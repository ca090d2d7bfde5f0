"""A file that gets its name has all of its content, whatever happens while it is written."""

import ast
import errno
import os
import threading
from pathlib import Path

import pytest

from ropeconv.formats import drafts
from ropeconv.formats.drafts import draft_of, together, write_file
from ropeconv.rope.errors import RopeconvError

ROOT = Path(__file__).parents[2] / "ropeconv"


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


@pytest.mark.parametrize("content", ["a result\n", b"\x00\x01", "ä"])
def test_a_file_has_its_content_and_nothing_is_beside_it(
    tmp_path: Path, content: str | bytes
) -> None:
    place = tmp_path / "out.json"
    write_file(place, content)
    assert place.read_bytes() == (content.encode() if isinstance(content, str) else content)
    assert names(tmp_path) == ["out.json"]


def test_an_error_leaves_the_earlier_file_and_no_draft(tmp_path: Path) -> None:
    place = tmp_path / "out.svg"
    write_file(place, "earlier")

    def fail_halfway() -> None:
        with draft_of(place) as draft:
            draft.write_text("a part")
            raise ValueError

    with pytest.raises(ValueError):
        fail_halfway()
    assert place.read_text() == "earlier"
    assert names(tmp_path) == ["out.svg"]


def test_the_draft_that_a_kill_left_is_written_over(tmp_path: Path) -> None:
    place = tmp_path / "out.svg"
    place.with_name(".out.svg.ropeconv-partial").write_text("a longer part of an earlier run")
    write_file(place, "new")
    assert place.read_text() == "new"
    assert names(tmp_path) == ["out.svg"]


def test_the_permissions_of_a_replaced_file_stay(tmp_path: Path) -> None:
    place = tmp_path / "out.json"
    write_file(place, "first")
    place.chmod(0o640)
    write_file(place, "second")
    assert place.stat().st_mode & 0o777 == 0o640


def test_a_link_stays_and_its_target_is_replaced(tmp_path: Path) -> None:
    target = tmp_path / "kept.json"
    target.write_text("first")
    link = tmp_path / "out.json"
    link.symlink_to("kept.json")
    write_file(link, "second")
    assert link.is_symlink()
    assert target.read_text() == "second"


def test_a_fifo_is_written_to_and_not_replaced(tmp_path: Path) -> None:
    fifo = tmp_path / "pipe"
    os.mkfifo(fifo)
    received: list[str] = []
    reader = threading.Thread(target=lambda: received.append(fifo.read_text()))
    reader.start()
    write_file(fifo, "through the pipe")
    reader.join(10)
    assert received == ["through the pipe"]
    assert fifo.is_fifo()


def test_an_error_names_the_file_that_was_asked_for(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(NotADirectoryError) as problem:
        write_file(tmp_path / "file" / "out.json", "text")
    assert problem.value.filename == str(tmp_path / "file" / "out.json")


def test_a_missing_folder_is_made_and_stays_only_with_the_file_in_it(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="stopped"), draft_of(tmp_path / "a" / "b" / "out.json"):
        raise ValueError("stopped")
    assert names(tmp_path) == []
    write_file(tmp_path / "a" / "b" / "out.json", "text")
    assert (tmp_path / "a" / "b" / "out.json").read_text() == "text"


def test_two_writers_at_once_leave_one_whole_file(tmp_path: Path) -> None:
    place = tmp_path / "out.txt"
    contents = [letter * 2_000_000 for letter in "ab"]
    writers = [threading.Thread(target=write_file, args=(place, content)) for content in contents]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join()
    assert place.read_text() in contents
    assert names(tmp_path) == ["out.txt"]


# Who may write: the modules that give names, and functions that fill a draft or a target that they
# are given

WRITERS = {
    "formats/disk.py",
    "formats/drafts.py",
    "formats/journal.py",
    "formats/gguf/edit.py",
    "formats/gguf/inplace.py",
    "bake/execution.py",
    "bake/hidden.py",
}
GIVEN = {"target", "draft", "place", "floats"}
"""Names of parameters and variables that hold a file without its final name."""
WRITING = {"write_text", "write_bytes", "rename"}
MOVING = {
    ("os", "rename"),
    ("os", "replace"),
    ("shutil", "move"),
    ("shutil", "copy"),
    ("shutil", "copyfile"),
}
SCRATCH = {
    "engines/probes/programs/ask_exllamav3.py",
    "engines/probes/programs/ask_mlx_lm.py",
    "engines/probes/programs/ask_transformers.py",
    "engines/probes/programs/ask_vllm.py",
    "features/ui/preload.py",
}
"""Modules that write into a temporary folder of their own, which they remove."""


def direct_writes(source: str) -> list[str]:
    """Return the calls of a module that give a file a name or content without a draft."""
    calls = [node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.Call)]
    direct = []
    for call in calls:
        words = ast.unparse(call.func)
        if isinstance(call.func, ast.Attribute):
            holder = ast.unparse(call.func.value)
            if call.func.attr in WRITING and holder not in GIVEN:
                direct.append(words)
            if (holder, call.func.attr) in MOVING:
                direct.append(words)
        if words == "open" or words.endswith(".open"):
            modes = [ast.unparse(argument) for argument in call.args]
            holder = words.removesuffix(".open")
            if (
                any(mode in ("'w'", "'wb'", "'x'", "'xb'") for mode in modes)
                and holder not in GIVEN
            ):
                direct.append(words)
    return direct


def test_no_module_gives_a_file_its_name_without_a_draft() -> None:
    modules = {path.relative_to(ROOT).as_posix(): path for path in ROOT.rglob("*.py")}
    others = {name: path for name, path in modules.items() if name not in WRITERS | SCRATCH}
    of_core = {name for name in WRITERS | SCRATCH if not name.startswith("features/")}
    assert modules.keys() >= of_core
    found = {
        name: calls for name, path in others.items() if (calls := direct_writes(path.read_text()))
    }
    assert found == {}


@pytest.mark.parametrize(
    "line",
    [
        "path.write_text('x')",
        "(folder / name).write_bytes(b'x')",
        "open(path, 'w')",
        "path.open('wb')",
        "os.replace(a, b)",
        "shutil.move(a, b)",
        "a.rename(b)",
    ],
)
def test_a_direct_write_is_found(line: str) -> None:
    assert direct_writes(line) != []


# Several files that get their names together


def write_three(folder: Path, stop: bool = False) -> None:
    with together():
        for name in ("a.json", "b.svg", "c.html"):
            write_file(folder / name, f"new {name}")
            assert not (folder / name).exists() or (folder / name).read_text() == "earlier"
        if stop:
            raise ValueError("stopped")


def test_files_of_a_set_get_their_names_at_its_end(tmp_path: Path) -> None:
    (tmp_path / "b.svg").write_text("earlier")
    write_three(tmp_path)
    assert names(tmp_path) == ["a.json", "b.svg", "c.html"]
    assert {path.read_text() for path in tmp_path.iterdir()} == {
        f"new {name}" for name in names(tmp_path)
    }


def test_an_error_in_a_set_leaves_all_files_as_they_were(tmp_path: Path) -> None:
    (tmp_path / "b.svg").write_text("earlier")
    with pytest.raises(ValueError, match="stopped"):
        write_three(tmp_path, stop=True)
    assert names(tmp_path) == ["b.svg"]
    assert (tmp_path / "b.svg").read_text() == "earlier"


def test_a_full_disk_at_the_last_file_of_a_set_leaves_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced: list[str] = []

    def full(path: Path) -> None:
        synced.append(path.name)
        if len(synced) == 3:
            raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(drafts, "sync_file", full)
    with pytest.raises(OSError, match=r"c\.html"):
        write_three(tmp_path)
    assert names(tmp_path) == []


def test_a_name_twice_in_a_set_is_written_once_more(tmp_path: Path) -> None:
    with together():
        write_file(tmp_path / "a.json", "first")
        write_file(tmp_path / "a.json", "second")
    assert (tmp_path / "a.json").read_text() == "second"
    assert names(tmp_path) == ["a.json"]


def test_a_set_in_a_set_ends_with_the_outer_one(tmp_path: Path) -> None:
    with together():
        write_three(tmp_path)
        assert [name for name in names(tmp_path) if not name.startswith(".")] == []
    assert names(tmp_path) == ["a.json", "b.svg", "c.html"]


def test_a_fifo_in_a_set_is_written_to_at_once(tmp_path: Path) -> None:
    with together():
        write_file(Path("/dev/null"), "nothing")
        write_file(tmp_path / "a.json", "new")
    assert names(tmp_path) == ["a.json"]


def test_two_sets_that_wait_for_each_other_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(drafts, "PATIENCE_SECONDS", 0.2)
    barrier = threading.Barrier(2)
    problems = list[str]()

    def write(first: str, second: str) -> None:
        try:
            with together():
                write_file(tmp_path / first, f"{first} of {second}")
                barrier.wait(10)
                write_file(tmp_path / second, f"{second} of {first}")
        except RopeconvError as problem:
            problems.append(str(problem))

    threads = [threading.Thread(target=write, args=pair) for pair in ("ab", "ba")]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert problems
    assert "another ropeconv" in problems[0]
    assert names(tmp_path) in ([], ["a", "b"])


def test_all_drafts_that_a_broken_disk_leaves_are_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*given: object, **more: object) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    def write_two() -> None:
        with together():
            write_file(Path("a.json"), "a")
            write_file(Path("b.json"), "b")
            monkeypatch.setattr(Path, "replace", fail)
            monkeypatch.setattr(Path, "unlink", fail)

    monkeypatch.chdir(tmp_path)
    with pytest.raises(RopeconvError) as raised:
        write_two()
    monkeypatch.undo()
    left = sorted(path.name for path in tmp_path.iterdir())
    assert left == [".a.json.ropeconv-partial", ".b.json.ropeconv-partial"]
    assert all(name in str(raised.value) for name in left)
