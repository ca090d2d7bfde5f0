"""The same command after it has ended: it ends with 0 again, and no byte changes."""

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from ropeconv.bake import execution

from ...conftest import hashes
from ...support.gguf_files import write
from ...support.in_process import command
from ...support.models import make

COMMANDS = {
    "apply": "apply model --yarn 4 -o out",
    "apply --link": "apply model --yarn 4 -o out --link",
    "apply, buffers": "apply model --mixed 4 --encoding buffers -o out",
    "apply, GGUF": "apply file.gguf --mixed 4 -o out.gguf",
    "restore": "restore baked -o out",
    "restore, GGUF": "restore baked.gguf -o out.gguf",
    "profiles": "profiles model base yarn:4 -o out",
    "profiles --copy": "profiles model base yarn:4 --copy -o out",
    "profiles, GGUF": "profiles file.gguf yarn:4 mixed:4 -o out",
    "plot": "plot model --yarn 4 -o out.svg",
    "train-config": "train-config baked --for axolotl -o out.yml",
}


@pytest.fixture
def place(tmp_path: Path) -> Path:
    make("llama", tmp_path / "model")
    write(tmp_path / "file.gguf")
    command(tmp_path, "apply", "model", "--yarn", 4, "-o", "baked", "-q", code=0)
    command(tmp_path, "apply", "file.gguf", "--mixed", 4, "-o", "baked.gguf", "-q", code=0)
    return tmp_path


def inodes(folder: Path) -> dict[str, int]:
    return {str(path): path.stat().st_ino for path in folder.rglob("*")}


@pytest.mark.parametrize("line", COMMANDS.values(), ids=COMMANDS)
def test_the_same_command_again_finds_its_work_done(line: str, place: Path) -> None:
    command(place, *line.split(), code=0)
    before = hashes(place)
    files = inodes(place)
    command(place, *line.split(), code=0)
    assert hashes(place) == before
    if not line.startswith(("plot", "train-config")):  # which write one small file again
        assert inodes(place) == files


@pytest.mark.parametrize(
    "line", [line for line in COMMANDS.values() if not line.startswith(("plot", "train-config"))]
)
def test_a_dry_run_of_finished_work_ends_as_the_command_does(line: str, place: Path) -> None:
    command(place, *line.split(), code=0)
    command(place, *line.split(), "--dry-run", code=0)


APPLY = ("apply", "model", "--yarn", "4", "-o", "out")
OTHERS: dict[str, tuple[str, ...]] = {
    "another recipe": ("apply", "model", "--yarn", "8", "-o", "out"),
    "another encoding": (*APPLY, "--encoding", "buffers"),
    "another model": ("apply", "other", "--yarn", "4", "-o", "out"),
}


def change_last_byte(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)


EDITS: dict[str, Callable[[Path], object]] = {
    "an edited config": lambda out: change_last_byte(out / "config.json"),
    "an edited card": lambda out: change_last_byte(out / "README.md"),
    "other weights": lambda out: change_last_byte(out / "model.safetensors"),
    "a file of the user": lambda out: (out / "notes.txt").write_text("mine"),
    "a missing file": lambda out: (out / "config.json").unlink(),
}


def refused(place: Path, words: tuple[str, ...]) -> None:
    before = hashes(place)
    done = command(place, *words)
    assert (done.returncode, "another place" in done.stderr) == (1, True)
    assert "continues" not in done.stderr
    assert hashes(place) == before
    assert not [name for name in os.listdir(place) if name.startswith(".out")]


@pytest.mark.parametrize("words", OTHERS.values(), ids=OTHERS)
def test_another_output_at_the_place_is_refused(words: tuple[str, ...], place: Path) -> None:
    """The negative control: only exactly the same work is done already."""
    shutil.copytree(place / "model", place / "other")
    command(place, *APPLY, "-q", code=0)
    refused(place, words)


@pytest.mark.parametrize("edit", EDITS.values(), ids=EDITS)
def test_an_output_that_was_edited_since_is_refused(
    edit: Callable[[Path], object], place: Path
) -> None:
    command(place, *APPLY, "-q", code=0)
    edit(place / "out")
    refused(place, APPLY)


def test_results_that_were_added_since_stay(place: Path) -> None:
    command(place, "apply", "model", "--yarn", 4, "-o", "out", "-q", code=0)
    path = place / "out" / "ropeconv.json"
    receipt = json.loads(path.read_text())
    path.write_text(json.dumps(receipt | {"validation": {"agrees": True}}))
    before = hashes(place)
    command(place, "apply", "model", "--yarn", 4, "-o", "out", code=0)
    assert hashes(place) == before


def test_force_writes_it_again(place: Path) -> None:
    command(place, "apply", "model", "--yarn", 4, "-o", "out", "-q", code=0)
    before = inodes(place / "out")
    content = hashes(place / "out")
    command(place, "apply", "model", "--yarn", 4, "-o", "out", "-q", "--force", code=0)
    assert inodes(place / "out") != before
    assert hashes(place / "out") == content


@pytest.mark.parametrize("line", [COMMANDS["profiles"], COMMANDS["apply, GGUF"]])
def test_a_kill_while_it_is_written_again_leaves_the_first(
    line: str, place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    command(place, *line.split(), code=0)
    before = hashes(place)

    def killed(*given: object) -> bool:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(execution, "is_finished", killed)
        command(place, *line.split(), code=130)
    command(place, *line.split(), code=0)
    assert hashes(place) == before
    assert not [name for name in os.listdir(place) if name.startswith(".")]
