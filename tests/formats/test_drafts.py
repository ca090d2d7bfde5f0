"""A file that gets its name has all of its content, whatever happens while it is written."""

import ast
import os
import threading
from pathlib import Path

import pytest

from ropeconv.formats.drafts import draft_of, write_file

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
SCRATCH = {"features/ui/preload.py"}
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
    assert modules.keys() >= WRITERS | SCRATCH
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
