"""Families of the user: TOML files that say what those of the package say, or an error that names
file and field.
"""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ropeconv.bake.apply import apply, make_plan
from ropeconv.bake.restore import restore, restore_plan
from ropeconv.convert.target import Target
from ropeconv.engines.probe import Probe
from ropeconv.errors import BadSource, UnknownModelType
from ropeconv.inspection.inspection import inspect_source
from ropeconv.inspection.receipts.storage import read_receipt
from ropeconv.models.config import detect
from ropeconv.models.open import open_source
from ropeconv.models.registry import (
    LONGEST,
    best_family,
    package_families,
    suggestion,
    user_families,
)
from ropeconv.rope.recipe import Recipe

from ..conftest import CONFIGS, Run
from ..support.baking import MIXED, YARN, inspected
from ..support.corruptions import edit
from ..support.in_process import command

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
    folder = tmp_path / "families"
    folder.mkdir()
    monkeypatch.setenv("ROPECONV_FAMILIES", str(folder))
    return folder


def read(place: Path, text: str, name: str = "mine.toml") -> list[str]:
    (place / name).write_text(text)
    return [family.name for family in user_families(package_families())]


def test_a_file_is_a_family_and_says_where_it_is_from(place: Path) -> None:
    assert read(place, LLAMA_LIKE) == ["mine"]
    assert user_families(package_families())[0].origin == str(place / "mine.toml")


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("name = ", "Invalid value"),
        (LLAMA_LIKE.replace('name = "mine"\n', "", 1), "missing required field `name`"),
        (LLAMA_LIKE + 'qq = "x"\n', "unknown field `qq` - at `$.weights`"),
        (
            LLAMA_LIKE.replace("context = 64", 'context = "64"'),
            "got `str` - at `$.defaults.context`",
        ),
        (LLAMA_LIKE.replace("context = 64", "context = -1"), "`defaults` is invalid"),
        (LLAMA_LIKE.replace("context = 64", "hidden = 0"), "`defaults` is invalid"),
        (LLAMA_LIKE.replace("context = 64", "theta = nan"), "`defaults.theta` is invalid"),
        (LLAMA_LIKE.replace('k = "self_attn.k_proj"', ""), "`weights` is invalid"),
        (LLAMA_LIKE + 'layer = ["{layer.__class__}."]\n', "`weights.layer` is invalid"),
        (LLAMA_LIKE + "[layers]\nblocks = 2\n", "`weights.layer` is invalid"),
        (LLAMA_LIKE + "[layers]\nblocks = 0\n", "`layers.blocks` is invalid"),
        (LLAMA_LIKE.replace('name = "mine"', 'name = "../mine"'), "`name` is invalid"),
        (
            LLAMA_LIKE.replace("[defaults]", 'origin = "elsewhere"\n[defaults]'),
            "`origin` is invalid",
        ),
        ("x = " + "[" * 5000, "is not a family description"),
        ("#" * (LONGEST + 1), "is longer than 65,536 bytes"),
    ],
)
def test_a_wrong_file_is_named_with_its_field(place: Path, text: str, words: str) -> None:
    with pytest.raises(BadSource) as refused:
        read(place, text)
    assert words in str(refused.value)
    assert str(refused.value).startswith(str(place / "mine.toml"))
    assert str(refused.value).endswith("remove it")


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (
            ('name = "mine"', 'name = "llama"'),
            "describes the family 'llama', which the package already defines",
        ),
        (
            ('["mine"]', '["mine", "qwen3"]'),
            "describes the model_type 'qwen3', which the package already defines",
        ),
    ],
)
def test_no_file_replaces_a_family_of_the_package(
    place: Path, change: tuple[str, str], words: str
) -> None:
    with pytest.raises(BadSource, match=f"{words}; choose another"):
        read(place, LLAMA_LIKE.replace(*change))


@pytest.fixture
def mine(llama: Path) -> Path:
    """A tiny Llama of the model type that the file describes."""
    edit(llama, "config.json", lambda config: config.update(model_type="mine", architectures=None))
    return llama


def test_the_commands_know_it_and_say_what_could_not_be_compared(
    place: Path, mine: Path, process: Run, tmp_path: Path
) -> None:
    (place / "mine.toml").write_text(LLAMA_LIKE)
    listed = json.loads(process("list", "families", "--json").stdout)["families"]
    assert {row["name"]: row["origin"] for row in listed if row["origin"]} == {
        "mine": str(place / "mine.toml")
    }
    data = json.loads(process("inspect", mine, "--json").stdout)
    statuses = {row["runtime"]: row["status"] for row in data["runtimes"]}
    assert (data["family"], statuses.pop("transformers@5.21"), set(statuses.values())) == (
        "mine",
        "exact",
        {"unknown"},
    )
    done = process("apply", mine, "--yarn", "4", "-o", "out")
    assert done.returncode == 0, done.stderr
    compared = "does not have this model type, so nothing was compared with" in " ".join(
        done.stderr.split()
    )
    assert compared is Probe.available()
    written = json.loads((tmp_path / "out" / "config.json").read_text())
    assert (written["model_type"], written["rope_scaling"]["rope_type"]) == ("mine", "yarn")


# `--family`: a model type that nobody knows is treated as a family, which is said, recorded and
# checked


Tiny = Callable[[str], Path]
STAND_INS = {"renamed_deepseek": "deepseek_v3", "renamed_llama": "llama"}


@pytest.fixture
def stand_in(tiny: Tiny, tmp_path: Path) -> Callable[[str], Path]:
    """A tiny checkpoint with a model type that neither ropeconv nor transformers knows."""

    def make(model_type: str) -> Path:
        folder = tmp_path / model_type
        shutil.copytree(tiny(STAND_INS[model_type]), folder)
        edit(
            folder,
            "config.json",
            lambda config: config.update(model_type=model_type, architectures=None),
        )
        return folder

    return make


@pytest.mark.parametrize(
    ("model_type", "words"),
    [
        (
            "renamed_deepseek",
            ["treated as deepseek_v3", "(2i, 2i + 1)", "kv_a_proj_with_mqa", "every layer"],
        ),
        (
            "renamed_llama",
            ["treated as llama", "(i, i + r/2)", "self_attn.q_proj and self_attn.k_proj"],
        ),
    ],
)
def test_what_is_assumed_is_what_the_file_of_the_family_says(
    model_type: str, words: list[str], stand_in: Callable[[str], Path], tiny: Tiny
) -> None:
    inspection = inspect_source(open_source(str(stand_in(model_type)), STAND_INS[model_type]))
    real = inspected(tiny(STAND_INS[model_type]))
    assert np.array_equal(inspection.spec.current().inv_freq, real.spec.current().inv_freq)
    assert inspection.spec.layers == real.spec.layers
    assert [word for word in words if word not in inspection.assumption] == []
    assert inspection.assumption in inspection.spec.notes
    assert (real.assumption, inspection.to_dict()["assumption"]) == ("", inspection.assumption)
    exact = [verdict for verdict in inspection.verdicts if verdict.status == "exact"]
    assert exact
    assert all(verdict.evidence.grade == "" and model_type in verdict.reason for verdict in exact)


@pytest.mark.parametrize(
    ("model_type", "recipe"),
    [("renamed_deepseek", MIXED), pytest.param("renamed_llama", YARN, marks=pytest.mark.nightly)],
)
def test_it_is_baked_checked_and_brought_back_without_naming_the_family_again(
    model_type: str,
    recipe: Recipe,
    stand_in: Callable[[str], Path],
    tmp_path: Path,
    shared_probe: Probe,
) -> None:
    folder = stand_in(model_type)
    before = (folder / "config.json").read_text()
    plan = make_plan(
        open_source(str(folder), STAND_INS[model_type]), recipe, Target(out=tmp_path / "baked")
    )
    assert any("is treated as" in note for note in plan.notes)
    done = apply(plan, probe=shared_probe)
    assert done.check is not None
    assert done.check.max_ulp <= 2
    receipt = read_receipt(tmp_path / "baked")
    assert receipt.source.family == STAND_INS[model_type]
    assert json.loads((tmp_path / "baked" / "config.json").read_text())["model_type"] == model_type
    baked = open_source(str(tmp_path / "baked"))
    assert inspect_source(baked).name == STAND_INS[model_type]
    again = make_plan(baked, MIXED, Target(out=tmp_path / "again", replace=True))
    assert again.receipt().source.family == STAND_INS[model_type]
    restore(restore_plan(open_source(str(tmp_path / "baked")), tmp_path / "restored"))
    assert (tmp_path / "restored" / "config.json").read_text() == before


PUBLISHED = {
    "deepseek-ai--DeepSeek-V3": "deepseek_v3",
    "Qwen--Qwen2-7B": "qwen2",
    "01-ai--Yi-34B": "llama",
    "meta-llama--Llama-3.2-1B-Instruct": "llama",
    "openai--gpt-oss-20b": "gpt_oss",
}
FEWEST = {
    "hidden_size": 2048,
    "intermediate_size": 8192,
    "num_attention_heads": 32,
    "num_hidden_layers": 16,
    "num_key_value_heads": 8,
    "rms_norm_eps": 1e-5,
    "rope_theta": 500000.0,
    "vocab_size": 128256,
    "hidden_act": "silu",
}


@pytest.mark.parametrize(("name", "family"), PUBLISHED.items())
def test_an_unknown_model_type_gets_the_family_that_fits_as_a_suggestion(
    name: str, family: str
) -> None:
    config = json.loads((CONFIGS / f"{name}.json").read_text())
    for classes in (config["architectures"], None):
        with pytest.raises(UnknownModelType, match=f"pass --family {family} "):
            detect({**config, "model_type": "something_new", "architectures": classes})
    sentence = suggestion({**FEWEST, "model_type": "new"}, {})
    assert (
        "pass --family llama to treat it as that, where pairs (i, i + r/2) rotate, and" in sentence
    )


TENSORS = "model.layers.0.self_attn."


@pytest.mark.parametrize(
    ("fields", "tensors", "family"),
    [
        (FEWEST, {"q_proj": 2048, "k_proj": 512}, "llama"),
        (FEWEST, {"q_proj": 2048, "k_proj": 512, "q_norm": 64, "k_norm": 64}, "qwen3"),
        (FEWEST, {"query_key_value": 3072}, ""),
    ],
)
def test_tensors_decide_between_families_with_the_same_fields(
    fields: dict[str, Any], tensors: dict[str, int], family: str
) -> None:
    shapes = {f"{TENSORS}{name}.weight": (rows, 2048) for name, rows in tensors.items()}
    shapes["model.layers.0.input_layernorm.weight"] = (2048,)
    assert best_family({**fields, "model_type": "new"}, shapes) == family


def test_the_commands_take_it(stand_in: Callable[[str], Path], tmp_path: Path) -> None:
    folder = stand_in("renamed_deepseek")
    family = ("--family", "deepseek_v3")
    command(tmp_path, "inspect", folder, code=1)
    near = command(tmp_path, "inspect", folder, "--family", "deepsek_v3", code=2).stderr
    assert "did you mean deepseek_v3" in near
    document = json.loads(command(tmp_path, "inspect", folder, *family, "--json", code=0).stdout)
    assert (document["family"], document["mla"], document["layout"]) == (
        "deepseek_v3",
        True,
        "interleaved",
    )
    for words in (
        ("apply", folder, "--yarn", "4", "-o", "out", "--dry-run"),
        ("advise", folder, "--context", "256"),
        ("compare", folder, folder),
    ):
        process = command(tmp_path, *words, *family, code=0)
        assert "is treated as deepseek_v3" in " ".join((process.stdout + process.stderr).split())
