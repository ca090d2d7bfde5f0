"""The profiles of one command are a set: `validate OUT` checks all of them, and names one that
differs.
"""

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from ropeconv.inspection.receipts.companion import read_companion

from ...conftest import hashes
from ...support.gguf_files import write
from ...support.in_process import Done, command
from ...support.models import make

Damage = Callable[[Path], object]
RECEIPT = "ropeconv.json"


def flip(path: Path, place: int = -8) -> None:
    """Another bit of a file, which no link of it has."""
    content = bytearray(path.read_bytes())
    content[place] ^= 1
    path.unlink()
    path.write_bytes(content)


def edit(path: Path, **changes: object) -> None:
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


def forget(path: Path, name: str) -> None:
    """A receipt that no longer names a profile."""
    members = json.loads(path.read_text())["members"]
    del members[name]
    edit(path, members=members)


def swap(one: Path, other: Path) -> None:
    """The contents of two profiles, each under the name of the other."""
    spare = one.with_name("spare")
    one.rename(spare)
    other.rename(one)
    spare.rename(other)


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Models with their profiles: `out` of a checkpoint, `gguf` of a GGUF file."""
    folder = tmp_path_factory.mktemp("sets")
    make("llama", folder / "model")
    write(folder / "model.gguf")
    line = ("base,yarn:4,linear:2", "-o")
    command(folder, "profiles", "model", *line, "out", "-q", code=0)
    command(folder, "profiles", "model.gguf", *line, "gguf", "-q", code=0)
    return folder


@pytest.fixture
def place(written: Path, tmp_path: Path) -> Path:
    # links stay links, as in a set
    shutil.copytree(written, tmp_path, dirs_exist_ok=True)
    return tmp_path


def validated(place: Path, name: str, *more: str) -> Done:
    return command(place, "validate", name, *more)


def first(folder: Path) -> Path:
    return next(folder.glob("*-00001-of-00002.gguf"))


def second(folder: Path) -> Path:
    return next(folder.glob("*-00002-of-00002.gguf"))


@pytest.mark.parametrize("name", ["out", "gguf"])
def test_the_receipt_of_a_set_has_every_file_and_the_digest_of_every_profile(
    place: Path, name: str
) -> None:
    receipt = read_companion(place / name)
    assert receipt is not None
    assert set(receipt.members) == {"yarn4", "linear2", *(["base"] if name == "out" else [])}
    files = {file: digest for file, digest in hashes(place / name).items() if RECEIPT not in file}
    assert {file.name for file in receipt.files} == set(files)
    for file in receipt.files:
        assert file.sha256 == (None if file.name.endswith(".safetensors") else files[file.name])
    assert any(file.name.startswith("base/") for file in receipt.files)


@pytest.mark.parametrize("name", ["out", "gguf"])
def test_a_right_set_is_accepted(place: Path, name: str) -> None:
    for more in ((), ("--against", "model" if name == "out" else "model.gguf")):
        done = validated(place, name, *more)
        assert (done.returncode, "each profile" in done.stdout) == (0, True), done.stderr
    document = json.loads(validated(place, name, "--json").stdout)
    assert document["agrees"] is True
    assert validated(place, name, "--tokens", "8").returncode == 2


def test_without_its_source_a_set_says_that_weights_were_not_compared(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(place / "state"))  # which knows no source
    (place / "model").rename(place / "moved")
    done = validated(place, "out")
    assert (done.returncode, "were not compared" in done.stdout) == (0, True)
    assert "each profile" in validated(place, "out", "--against", "moved").stdout


def test_a_profile_that_was_added_later_is_accepted(place: Path) -> None:
    line = ("apply", "model", "--linear", "4", "--link", "-o", "out/linear4", "--validate", "off")
    command(place, *line, "-q", code=0)
    assert validated(place, "out").returncode == 0


def test_the_same_command_finds_the_set_done(place: Path) -> None:
    before = hashes(place)
    command(place, "profiles", "model", "base,yarn:4,linear:2", "-o", "out", code=0)
    command(place, "profiles", "model.gguf", "base,yarn:4,linear:2", "-o", "gguf", code=0)
    assert hashes(place) == before


WRONG: dict[str, tuple[str, Damage, str]] = {
    "a number of a profile": ("out", lambda it: flip(it / "yarn4/model.safetensors"), "yarn4"),
    "a config": ("out", lambda it: edit(it / "linear2/config.json", rope_theta=5.0), "linear2"),
    "a config of base": ("out", lambda it: edit(it / "base/config.json", rope_theta=5.0), "base"),
    "no profile": ("out", lambda it: shutil.rmtree(it / "yarn4"), "yarn4"),
    "no receipt": ("out", lambda it: (it / "yarn4" / RECEIPT).unlink(), "yarn4"),
    "two profiles": ("out", lambda it: swap(it / "yarn4", it / "linear2"), "linear2"),
    "code": ("out", lambda it: (it / "yarn4/helper.py").write_text("x = 1"), "yarn4/helper.py"),
    "weights beside": ("out", lambda it: (it / "model.gguf").write_bytes(b"GGUF"), "model.gguf"),
    "no members": ("out", lambda it: edit(it / RECEIPT, members={}), "names no profile"),
    "a member less": (
        "out",
        lambda it: (flip(it / "yarn4/model.safetensors"), forget(it / RECEIPT, "yarn4")),
        "yarn4",
    ),
    "a member outside": ("out", lambda it: edit(it / RECEIPT, members={"../out": "x"}), "../out"),
    "a tensor of base": ("gguf", lambda it: flip(second(it / "base")), "base"),
    "a key of base": ("gguf", lambda it: flip(first(it / "base"), 200), "base"),
    "a tensor of a profile": ("gguf", lambda it: flip(second(it / "yarn4")), "yarn4"),
    "no base": ("gguf", lambda it: shutil.rmtree(it / "base"), "base"),
    "a shard": ("gguf", lambda it: second(it / "linear2").unlink(), "linear2"),
    "two GGUF profiles": ("gguf", lambda it: swap(it / "yarn4", it / "linear2"), "linear2"),
}


@pytest.mark.parametrize(("name", "damage", "words"), WRONG.values(), ids=WRONG)
def test_a_wrong_member_is_named(name: str, damage: Damage, words: str, place: Path) -> None:
    damage(place / name)
    done = validated(place, name)
    assert (done.returncode, words in done.stderr) == (3, True), done.stderr


def test_a_set_is_not_an_output_of_its_own(place: Path) -> None:
    for words in (("push", "out", "me/x"), ("restore", "out")):
        assert "a set of profiles" in command(place, *words, code=1).stderr
