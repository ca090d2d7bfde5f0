"""Families of the user: TOML files that say what those of the package say, or an error that names file and field."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from ropeconv.engines.probe import Probe
from ropeconv.errors import BadSource
from ropeconv.models.registry import LONGEST, packaged, user_families

from ..conftest import Run
from ..support.corruptions import edit

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


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("name = ", "Invalid value"),
        (LLAMA_LIKE.replace('name = "mine"\n', "", 1), "missing required field `name`"),
        (LLAMA_LIKE + 'qq = "x"\n', "unknown field `qq` - at `$.weights`"),
        (LLAMA_LIKE.replace("context = 64", 'context = "64"'), "got `str` - at `$.defaults.context`"),
        (LLAMA_LIKE.replace("context = 64", "context = -1"), "`defaults` is invalid"),
        (LLAMA_LIKE.replace("context = 64", "theta = nan"), "`defaults.theta` is invalid"),
        (LLAMA_LIKE.replace('k = "self_attn.k_proj"', ""), "`weights` is invalid"),
        (LLAMA_LIKE + 'layer = ["{layer.__class__}."]\n', "`weights.layer` is invalid"),
        (LLAMA_LIKE + "[layers]\nblocks = 2\n", "`weights.layer` is invalid"),
        (LLAMA_LIKE + "[layers]\nblocks = 0\n", "`layers.blocks` is invalid"),
        (LLAMA_LIKE.replace('name = "mine"', 'name = "../mine"'), "`name` is invalid"),
        (LLAMA_LIKE.replace("[defaults]", 'origin = "elsewhere"\n[defaults]'), "`origin` is invalid"),
        ("x = " + "[" * 5000, "is not a family description"),
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
        (('name = "mine"', 'name = "llama"'), "describes the family 'llama', which the package already defines"),
        (('["mine"]', '["mine", "qwen3"]'), "describes the model_type 'qwen3', which the package already defines"),
    ],
)
def test_no_file_replaces_a_family_of_the_package(place: Path, change: tuple[str, str], words: str) -> None:
    with pytest.raises(BadSource, match=f"{words}; choose another name and other model_types"):
        read(place, LLAMA_LIKE.replace(*change))


@pytest.fixture
def mine(llama: Path) -> Path:
    """A tiny Llama of the model type that the file describes."""
    edit(llama, "config.json", lambda config: config.update(model_type="mine", architectures=None))
    return llama


def test_the_commands_know_it_and_say_what_could_not_be_compared(
    place: Path, mine: Path, run: Run, tmp_path: Path
) -> None:
    (place / "mine.toml").write_text(LLAMA_LIKE)
    listed = {row["name"]: row["origin"] for row in json.loads(run("list", "families", "--json").stdout)["families"]}
    assert {name: origin for name, origin in listed.items() if origin} == {"mine": str(place / "mine.toml")}
    seen = json.loads(run("inspect", mine, "--json").stdout)
    statuses = {row["runtime"]: row["status"] for row in seen["runtimes"]}
    assert (seen["family"], statuses.pop("transformers@5.21"), set(statuses.values())) == ("mine", "exact", {"unknown"})
    done = run("apply", mine, "--yarn", "4", "-o", "out")
    assert done.returncode == 0, done.stderr
    compared = "does not have this model type, so nothing was compared with" in " ".join(done.stderr.split())
    assert compared is Probe.available()
    written = json.loads((tmp_path / "out" / "config.json").read_text())
    assert (written["model_type"], written["rope_scaling"]["rope_type"]) == ("mine", "yarn")
