"""Families of the user: TOML files that say what those of the package say, or an error that names file and field."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path

import pytest

from ropeconv.bake import Target, apply, make_plan
from ropeconv.engines.probe import Probe
from ropeconv.errors import BadSource, Disagreement
from ropeconv.families import registry
from ropeconv.families.registry import packaged
from ropeconv.families.user import LONGEST, MOST_FILES, folder, user_families
from ropeconv.inspection import inspect_source
from ropeconv.rope.methods import REGISTRY
from ropeconv.rope.recipe import Recipe
from ropeconv.sources import open_source

from ..conftest import Run

LLAMA_LIKE = """
name = "mine"
display_name = "A model of mine"
model_types = ["mine"]
source = "its modelling file"

[defaults]
context = 64

[weights]
q = "self_attn.q_proj"
k = "self_attn.k_proj"
"""


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of a user's families."""
    found = tmp_path / "families"
    found.mkdir()
    monkeypatch.setenv("ROPECONV_FAMILIES", str(found))
    return found


def read(place: Path, text: str, name: str = "mine.toml") -> list[str]:
    (place / name).write_text(text)
    return [family.name for family in user_families(packaged())]


def test_a_file_is_a_family_and_says_where_it_is_from(place: Path) -> None:
    assert read(place, LLAMA_LIKE) == ["mine"]
    assert user_families(packaged())[0].origin == str(place / "mine.toml")


def test_the_folder_of_settings_is_where_they_are(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("ROPECONV_FAMILIES", raising=False)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    assert folder() == tmp_path / "ropeconv" / "families"
    assert user_families(packaged()) == ()
    monkeypatch.delenv("XDG_CONFIG_HOME")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert folder() == tmp_path / ".config" / "ropeconv" / "families"


def test_a_variable_that_names_no_folder_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ROPECONV_FAMILIES", str(tmp_path / "nowhere"))
    with pytest.raises(BadSource, match="ROPECONV_FAMILIES names .*nowhere, which is no folder; make it, or unset"):
        user_families(packaged())


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("name = ", "Invalid value"),
        (LLAMA_LIKE.replace('name = "mine"\n', "", 1), "missing required field `name`"),
        (LLAMA_LIKE + 'qq = "x"\n', "unknown field `qq` - at `$.weights`"),
        (LLAMA_LIKE.replace("context = 64", 'context = "64"'), "got `str` - at `$.defaults.context`"),
        (LLAMA_LIKE.replace("context = 64", "context = -1"), "its defaults cannot be used"),
        (LLAMA_LIKE.replace("context = 64", "theta = nan"), "its defaults.theta cannot be used"),
        (LLAMA_LIKE.replace('k = "self_attn.k_proj"', ""), "its weights cannot be used"),
        (LLAMA_LIKE + 'layer = ["{layer.__class__}."]\n', "its weights.layer cannot be used"),
        (LLAMA_LIKE + "[layers]\nblocks = 2\n", "its weights.layer cannot be used"),
        (LLAMA_LIKE + "[layers]\nblocks = 0\n", "its layers.blocks cannot be used"),
        (LLAMA_LIKE.replace('name = "mine"', 'name = "../mine"'), "its name cannot be used"),
        (LLAMA_LIKE.replace("[defaults]", 'origin = "elsewhere"\n[defaults]'), "its origin cannot be used"),
        ("x = " + "[" * 5000, "is not the description of a family"),
        ("#" * (LONGEST + 1), "is longer than 65,536 bytes"),
    ],
)  # fmt: skip
def test_a_wrong_file_is_named_with_its_field(place: Path, text: str, words: str) -> None:
    with pytest.raises(BadSource) as refused:
        read(place, text)
    assert words in str(refused.value)
    assert str(refused.value).startswith(str(place / "mine.toml"))
    assert str(refused.value).endswith("correct or remove it")


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (('name = "mine"', 'name = "llama"'), "describes the family 'llama', which the package has already"),
        (('["mine"]', '["mine", "qwen3"]'), "describes the model_type 'qwen3', which the package has already"),
    ],
)
def test_no_file_replaces_a_family_of_the_package(place: Path, change: tuple[str, str], words: str) -> None:
    with pytest.raises(BadSource, match=f"{words}; choose another name and other model_types"):
        read(place, LLAMA_LIKE.replace(*change))


def test_what_is_no_file_and_too_many_files_are_refused(place: Path) -> None:
    os.mkfifo(place / "fifo.toml")
    with pytest.raises(BadSource, match="is a FIFO, and a regular file is needed there"):
        user_families(packaged())
    (place / "fifo.toml").unlink()
    for number in range(MOST_FILES + 1):
        (place / f"{number}.toml").touch()
    with pytest.raises(BadSource, match="has more than 1,000 families"):
        user_families(packaged())


def test_every_family_of_the_package_could_be_one_of_the_user(place: Path) -> None:
    data = Path(__file__).parents[2] / "ropeconv" / "families" / "data"
    for file in data.glob("*.toml"):
        shutil.copy(file, place / file.name)
    assert [family.name for family in user_families(())] == sorted(family.name for family in packaged())


@pytest.fixture
def mine(llama: Path) -> Path:
    """A tiny Llama of the model type that the file describes."""
    config = json.loads((llama / "config.json").read_text())
    (llama / "config.json").write_text(json.dumps({**config, "model_type": "mine", "architectures": None}))
    return llama


def test_the_commands_know_it_and_say_what_could_not_be_compared(
    place: Path, mine: Path, run: Run, tmp_path: Path
) -> None:
    (place / "mine.toml").write_text(LLAMA_LIKE)
    listed = {row["name"]: row["origin"] for row in json.loads(run("families", "--json").stdout)["families"]}
    assert {name: origin for name, origin in listed.items() if origin} == {"mine": str(place / "mine.toml")}
    seen = json.loads(run("inspect", mine, "--json").stdout)
    statuses = {row["runtime"]: row["status"] for row in seen["runtimes"]}
    assert (seen["family"], statuses.pop("transformers@5.18"), set(statuses.values())) == ("mine", "exact", {"unknown"})
    done = run("apply", mine, "--yarn", "4", "-o", "out")
    assert done.returncode == 0, done.stderr
    compared = "has no such model type, so nothing was compared with" in " ".join(done.stderr.split())
    assert compared is Probe.available()
    written = json.loads((tmp_path / "out" / "config.json").read_text())
    assert (written["model_type"], written["rope_scaling"]["rope_type"]) == ("mine", "yarn")


@pytest.fixture
def unpackaged(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """A model type of transformers, one like Llama, whose family is taken out of the package."""
    others = tuple(family for family in packaged() if family.name != "internlm3")
    monkeypatch.setattr(registry, "packaged", lambda: others)
    caches = (registry.families, registry.by_name, registry.by_model_type)
    for cached in caches:
        cached.cache_clear()
    yield "internlm3"
    for cached in caches:
        cached.cache_clear()


@pytest.mark.parametrize(("more", "fits"), [("", True), ('[keys]\npartial = ["share"]\n', False)])
def test_a_file_is_checked_where_transformers_has_the_model_type(
    more: str, fits: bool, place: Path, mine: Path, unpackaged: str, tmp_path: Path, shared_probe: Probe
) -> None:
    """The class reads no key named `share`; a file that says so does not describe it."""
    pytest.importorskip("transformers")
    (place / "mine.toml").write_text(LLAMA_LIKE.replace('["mine"]', f'["{unpackaged}"]') + more)
    config = json.loads((mine / "config.json").read_text())
    (mine / "config.json").write_text(json.dumps({**config, "model_type": unpackaged, "share": 0.5}))
    source = open_source(str(mine))
    assert inspect_source(source).name == "mine"
    plan = make_plan(source, Recipe(REGISTRY["yarn"](4.0)), Target(out=tmp_path / "out"))
    with nullcontext() if fits else pytest.raises(Disagreement, match="computes other global frequencies"):
        apply(plan, probe=shared_probe)
    assert (tmp_path / "out").exists() == fits
