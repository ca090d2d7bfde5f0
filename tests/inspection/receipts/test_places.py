"""Where the source of an output is: remembered on this machine, outside of the output."""

import json
import os
import shutil
import stat
from pathlib import Path

import pytest

from ropeconv.inspection.receipts import places
from ropeconv.inspection.receipts.places import find_source, state_folder, why_not_found

from ...conftest import hashes
from ...support.baking import AS_IS, YARN, apply, make_plan, replaced
from ...support.gguf_files import write
from ...support.in_process import command
from ...support.models import make


@pytest.fixture(autouse=True)
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A state of the test's own."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    return tmp_path / "state"


@pytest.fixture
def source(tmp_path: Path) -> Path:
    return make("llama", tmp_path / "data" / "model")


@pytest.fixture
def output(source: Path, tmp_path: Path) -> Path:
    (tmp_path / "out").mkdir()
    return apply(make_plan(source, YARN, tmp_path / "out" / "longer"))


def notes() -> list[Path]:
    return sorted(state_folder().glob("*"))


def test_a_source_elsewhere_is_found_from_every_folder(
    source: Path, output: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert find_source(output) == str(source)
    monkeypatch.chdir(tmp_path / "out")
    assert find_source(Path("longer")) == str(source)
    assert find_source(Path("longer"), use_state=False) == "", (
        "the control: it is not beside the output"
    )


def test_a_moved_output_finds_its_source_and_another_receipt_does_not(
    source: Path, output: Path, tmp_path: Path
) -> None:
    moved = output.rename(tmp_path / "moved")
    assert find_source(moved) == str(source)
    other = apply(make_plan(source, AS_IS, tmp_path / "out" / "other"), remember=False)
    assert find_source(other) == ""


def test_nothing_of_the_place_is_in_the_output(source: Path, output: Path) -> None:
    """What is published holds no folder of this machine; the state does, for its user alone."""
    texts = [path.read_bytes() for path in output.rglob("*") if path.is_file()]
    assert not any(str(source.parent).encode() in text for text in texts)
    (note,) = notes()
    assert str(source) in note.read_text(), "the control"
    assert stat.S_IMODE(state_folder().stat().st_mode) == 0o700


def test_results_that_are_added_to_a_receipt_do_not_lose_the_place(
    source: Path, output: Path
) -> None:
    replaced(output / "ropeconv.json", '"validation": null', '"validation": {"agrees": true}')
    assert find_source(output) == str(source)


def test_a_source_that_was_changed_or_removed_is_not_taken(source: Path, output: Path) -> None:
    """A touched file and a new one beside the weights are no change; other numbers are."""
    os.utime(source / "config.json")
    (source / "README.md").write_text("mine")
    (source / "checkpoint-1").mkdir()
    (source / "checkpoint-1" / "config.json").write_text("{}")
    assert find_source(output) == str(source)

    weights = bytearray((source / "model.safetensors").read_bytes())
    weights[-1] ^= 1
    (source / "model.safetensors").write_bytes(weights)
    assert find_source(output) == ""
    assert str(source) in why_not_found(output)

    shutil.rmtree(source)
    assert find_source(output) == ""
    assert "--against" in why_not_found(output)


def test_another_model_of_the_name_beside_the_output_does_not_go_before_the_source(
    source: Path, output: Path
) -> None:
    make("qwen2", output.parent / "model")
    assert find_source(output) == str(source)
    assert find_source(output, use_state=False) == str(output.parent / "model"), "the control"


def test_of_two_equal_outputs_each_finds_its_own_source(source: Path, tmp_path: Path) -> None:
    """Weights are not in the receipt of a folder, so that two fine-tunes of a name have equal
    ones.
    """
    other = make("llama", tmp_path / "elsewhere" / "model")
    weights = bytearray((other / "model.safetensors").read_bytes())
    weights[-1] ^= 1
    (other / "model.safetensors").write_bytes(weights)
    first = apply(make_plan(source, YARN, tmp_path / "first"))
    second = apply(make_plan(other, YARN, tmp_path / "second"))
    assert len(notes()) == 1, "the receipts are the same"
    assert [find_source(first), find_source(second)] == [str(source), str(other)]

    shutil.rmtree(other)
    assert find_source(second) == "", "not the other fine-tune"
    other.mkdir()
    copy = shutil.copytree(source, tmp_path / "copies" / "model")
    apply(make_plan(copy, YARN, tmp_path / "third"))
    shutil.rmtree(source)
    assert find_source(first) == str(copy), "a copy of its own source"


@pytest.mark.parametrize(
    "damage",
    [
        "",
        "[]",
        "{",
        '{"places": 3}',
        '{"places": [{"output": "x"}]}',
        "\0" * 100,
        '{"places": [{"output": "out", "source": "model", "files": {}}]}',
    ],
)
def test_a_damaged_state_is_an_empty_one(output: Path, source: Path, damage: str) -> None:
    (note,) = notes()
    note.write_text(damage)
    assert find_source(output) == ""
    apply(make_plan(source, YARN, output), force=True)
    assert find_source(output) == str(source), "it is written anew"


def test_a_state_that_cannot_be_read_or_written_breaks_nothing(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "file"))
    output = apply(make_plan(source, YARN, tmp_path / "longer"))
    assert find_source(output) == ""

    monkeypatch.delenv("XDG_STATE_HOME")
    monkeypatch.delenv("HOME")
    monkeypatch.setattr("pwd.getpwuid", {}.__getitem__)  # a user without a name
    assert find_source(apply(make_plan(source, YARN, tmp_path / "again"))) == ""


def test_the_state_is_where_the_specification_of_the_desktop_says(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", "/state")
    assert state_folder() == Path("/state/ropeconv/sources")
    for value in ("", "relative"):
        monkeypatch.setenv("XDG_STATE_HOME", value)
        assert state_folder() == Path.home() / ".local/state/ropeconv/sources"


def test_the_state_stays_small(
    source: Path, output: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(places.MOST_PLACES + 2):
        apply(make_plan(source, YARN, tmp_path / f"out{number}"))
    (note,) = notes()
    kept = [place["output"] for place in json.loads(note.read_text())["places"]]
    assert len(kept) == places.MOST_PLACES
    assert kept[-1] == str(tmp_path / f"out{places.MOST_PLACES + 1}")

    monkeypatch.setattr(places, "MOST_RECEIPTS", 3)
    for number in range(6):
        (state_folder() / f"{number}.json").write_text("{}")
        os.utime(state_folder() / f"{number}.json", (number, number))
    apply(make_plan(source, AS_IS, tmp_path / "new"))
    assert len(notes()) == 3
    assert [path.stem for path in notes() if len(path.stem) == 1] == ["5"], (
        "with the two of the outputs"
    )


def test_outputs_that_lie_where_they_were_written_find_their_source_without_the_state(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The receipt names the source without its folder; it is searched for in the folder of the
    output, in those of the profiles, and above.
    """
    monkeypatch.chdir(source.parent)
    write(Path("file.gguf"))
    Path("sub").mkdir()
    for line in (
        "profiles file.gguf yarn:4 -o pg",
        "profiles model base yarn:4 -o pf",
        "apply model --yarn 4 -o sub/longer",
        "apply file.gguf --yarn 4 -o sub/longer.gguf",
        "apply pg/base/file-00001-of-00002.gguf --yarn 4 -o pg/base/longer.gguf",
        "apply sub/longer.gguf --yarn 2 --on-top -o sub/top.gguf",
    ):
        command(source.parent, *line.split(), "-q", code=0)
    shutil.rmtree(state_folder())
    for output, expected in {
        "pf/base": "model",
        "pf/yarn4": "model",
        "sub/longer": "model",
        "sub/longer.gguf": "file.gguf",
        "sub/top.gguf": "sub/longer.gguf",
        "pg/yarn4/file-yarn4-00001-of-00002.gguf": "pg/base/file-00001-of-00002.gguf",
        "pg/base/longer-00001-of-00002.gguf": "pg/base/file-00001-of-00002.gguf",
    }.items():
        found = find_source(Path(output))
        assert found, output
        assert Path(found).samefile(expected), output
    Path("file.gguf").unlink()
    assert find_source(Path("sub/longer.gguf")) == "", "the control"


def test_a_gguf_file_and_a_file_in_place(tmp_path: Path) -> None:
    """A file that was changed in place has no source any more, and is told how to get one."""
    (tmp_path / "data").mkdir()
    source = write(tmp_path / "data" / "model.gguf")
    output = apply(make_plan(source, YARN, tmp_path / "longer.gguf"))
    assert find_source(output) == str(source)

    before = hashes(state_folder())
    apply(make_plan(source, YARN, in_place=True))
    assert hashes(state_folder()) == before
    assert find_source(source) == ""
    assert "restore" in why_not_found(source)
    assert find_source(output) == "", "its source is another file by now"
