"""Receipts: one shape for folders and GGUF, typed."""

import json
from pathlib import Path
from typing import Any

import msgspec
import pytest

import ropeconv
from ropeconv.bake.restore import restore, restore_plan
from ropeconv.errors import BadSource, UsageError
from ropeconv.inspection.receipts.receipt import (
    OriginalRecord,
    Receipt,
    SourceRecord,
    StepRecord,
    TargetRecord,
)
from ropeconv.inspection.receipts.storage import (
    add_validation,
    commands,
    describe_recipe,
    describe_settings,
    parse_receipt,
    read_receipt,
    read_recipe,
    write_receipt,
)
from ropeconv.rope.errors import RecipeError
from ropeconv.views.reports import ChangedKey, changed_keys

from ...support.baking import YARN, apply, make_plan, recipe_of
from ...support.corruptions import edit, verified
from ...support.gguf_files import write
from .test_folders import BEFORE, receipt


def test_an_output_of_a_version_with_other_options_is_verified(llama: Path, tmp_path: Path) -> None:
    out = apply(make_plan(llama, YARN, tmp_path / "out"))
    edit(
        out,
        "ropeconv.json",
        lambda data: data["target"].update(fold_dtype=data["target"].pop("adapter") or None),
    )
    assert read_receipt(out).to_dict()["target"]["adapter"] == ""
    assert verified(out, llama).files == 4


# What is not a receipt


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"schema": 3}, "is of a later ropeconv"),
        *(({"schema": schema}, "its schema is") for schema in (None, 1, "2")),
        ({"target": None}, "is not a receipt"),
        ({"recipe": None}, "is not a receipt"),
        ({"schedule": {}}, "is not a receipt"),
        ({"runtimes": 5}, "is not a receipt"),
        ({"fold": {"fold_into": "v", "tensors": [], "expected_kl": 0}}, "is not a receipt"),
        ({"ropeconv": "\ud800"}, "half of a character"),
    ],
)
def test_what_is_no_receipt(change: dict[str, object], words: str) -> None:
    assert parse_receipt(json.dumps(receipt().to_dict()), "ropeconv.json") == receipt()
    with pytest.raises(BadSource, match=words):
        parse_receipt(json.dumps(receipt().to_dict() | change), "ropeconv.json")


@pytest.mark.parametrize(
    ("value", "fits"),
    [
        *(
            (number, False)
            for number in ("NaN", "-Infinity", "1e999", "-1" + "0" * 40, str((1 << 63) + 1))
        ),
        (str(1 << 63), True),
    ],
)
def test_numbers_with_which_no_comparison_fails_are_refused(value: str, fits: bool) -> None:
    """An attention factor of NaN would differ from none."""
    data = receipt().to_dict() | {"recipe": {"method": "yarn", "x": "HERE"}}
    text = json.dumps(data).replace('"HERE"', value)
    if fits:
        assert parse_receipt(text, "ropeconv.json").recipe["x"] == int(value)
        return
    with pytest.raises(BadSource, match="not a receipt"):
        parse_receipt(text, "ropeconv.json")


# Results beside a GGUF file


ODD = {"validation": [1], "servers": {"vLLM": 3}, "size": "x"}


@pytest.mark.parametrize("name", ODD)
def test_results_of_other_types_beside_a_gguf_file(tmp_path: Path, name: str) -> None:
    out = apply(make_plan(write(tmp_path / "a.gguf", "llama"), YARN, tmp_path / "b.gguf"))
    path = tmp_path / "b.gguf.validation.json"
    add_validation(out, read_receipt(out), {"agrees": True})
    right = json.loads(path.read_text()) | {"servers": {}}
    path.write_text(json.dumps(right))
    assert read_receipt(out).validation == {"agrees": True}
    path.write_text(json.dumps(right | {name: ODD[name]}))
    with pytest.raises(BadSource, match="b.gguf.validation.json"):
        read_receipt(out)


def test_results_go_with_the_gguf_file_that_they_are_of(tmp_path: Path) -> None:
    """Also where the file that replaces it has the same header, as that of a fine-tune has."""
    source = write(tmp_path / "a.gguf", "llama")
    plan = make_plan(source, YARN, tmp_path / "b.gguf")
    out = apply(plan)
    results = tmp_path / "b.gguf.validation.json"

    def validate() -> None:
        add_validation(out, read_receipt(out), {"agrees": True})
        assert results.exists()

    validate()
    apply(plan)  # which finds the output complete
    assert read_receipt(out).validation == {"agrees": True}
    apply(plan, force=True)
    assert not results.exists()

    validate()
    out.unlink()
    apply(plan)
    assert not results.exists()

    validate()
    apply(make_plan(out, recipe_of("ntk", 4.0), in_place=True, replace=True))
    assert not results.exists()

    validate()
    restore(restore_plan(ropeconv.open_source(str(out)), in_place=True))
    assert not results.exists()


# Which outputs have a receipt, and the recipes of files


def test_recipes_of_files_and_of_outputs(tmp_path: Path) -> None:
    recipe = recipe_of("yarn", 4.0, context=64)
    (tmp_path / "saved.json").write_text(json.dumps(recipe.to_dict()))
    write_receipt(tmp_path, receipt(recipe=recipe.to_dict()))
    assert [read_recipe(tmp_path / name) for name in ("saved.json", "", "ropeconv.json")] == [
        recipe
    ] * 3


@pytest.mark.parametrize(
    ("text", "error", "words"),
    [
        (
            None,
            UsageError,
            "odd.json cannot be read; give a recipe, or the ropeconv.json of an earlier output",
        ),
        ("{", UsageError, "odd.json is not valid JSON"),
        ('{"ropeconv": "1"}', BadSource, "is not a receipt of ropeconv"),
        *((text, RecipeError, ".") for text in ("[]", '{"method": "cubic"}')),
    ],
)
def test_files_without_a_recipe(
    tmp_path: Path, text: str | None, error: type[Exception], words: str
) -> None:
    if text is not None:
        (tmp_path / "odd.json").write_text(text)
    with pytest.raises(error, match=words):
        read_recipe(tmp_path / "odd.json")


# The command lines of a receipt: every bake from the first source on


HUB = SourceRecord("tiny", "hub", "base/tiny", "c" * 40)
YARN_16: dict[str, Any] = {"method": "yarn", "parameters": {"factor": 16.0}}
AS_IS: dict[str, Any] = {"method": "as-is", "parameters": {}}
PLAIN = TargetRecord("safetensors")


def made(recipe: dict[str, Any], target: TargetRecord = PLAIN, **more: Any) -> Receipt:
    return msgspec.structs.replace(
        receipt(), **{"source": HUB, "recipe": recipe, "target": target, "original": None, **more}
    )


FILE = SourceRecord("m", "gguf")
FOLDED = TargetRecord("safetensors", "weights", fold_into="k", all_files=True, replace=True)
LISTS = {"method": "inv-freq", "parameters": {"values": [1.0, 0.5]}}


@pytest.mark.parametrize(
    ("receipt", "command"),
    [
        (made(YARN_16), "base/tiny --yarn 16"),
        (
            made(YARN_16, TargetRecord("safetensors", "factors", ("vllm", "sglang"))),
            "base/tiny --yarn 16 --encoding factors --runtime vllm --runtime sglang",
        ),
        (
            made(YARN_16, TargetRecord("gguf", outtype="q8_0", pre="llama-bpe")),
            "base/tiny --yarn 16 --to gguf --outtype q8_0 --pre llama-bpe",
        ),
        (
            made(YARN_16, FOLDED),
            "base/tiny --yarn 16 --encoding weights --fold-into k --all-files --replace",
        ),
        (made(YARN_16, source=SourceRecord("my model", "folder")), "'my model' --yarn 16"),
        (made(AS_IS, TargetRecord("safetensors"), source=FILE), "m.gguf --as-is --to safetensors"),
        (
            made(YARN_16, source=SourceRecord("x", "folder", family="llama")),
            "x --family llama --yarn 16",
        ),
        (made(LISTS), "base/tiny --recipe ropeconv.json"),  # no flags give it
        (
            made({"method": "of another version", "parameters": {}}),
            "base/tiny --recipe ropeconv.json",
        ),
    ],
)
def test_a_single_bake(receipt: Receipt, command: str) -> None:
    assert commands(receipt) == [f"ropeconv apply {command}"]


def test_several_bakes_are_commands_one_after_another() -> None:
    first = OriginalRecord(HUB, steps=(StepRecord(YARN_16, PLAIN, BEFORE),))
    last = made(
        AS_IS,
        TargetRecord("gguf", outtype="q8_0"),
        source=SourceRecord("tiny-yarn16", "folder"),
        original=first,
    )
    assert last.extension.method == "yarn"
    assert last.first == HUB
    assert commands(last) == [
        "ropeconv apply base/tiny --yarn 16 -o step1",
        "ropeconv apply step1 --as-is --to gguf --outtype q8_0",
    ]
    assert made(AS_IS).extension.method == "as-is"


# What a bake changed in config.json, or among the keys of a GGUF file, for display


def changes(baked: Path) -> dict[str, ChangedKey]:
    return {key.name: key for key in changed_keys(baked, read_receipt(baked))}


def test_keys_of_a_config_that_changed_were_added_or_stayed(llama: Path, tmp_path: Path) -> None:
    changed = changes(apply(make_plan(llama, YARN, tmp_path / "out")))
    assert changed["max_position_embeddings"] == ChangedKey("max_position_embeddings", "64", "256")
    assert changed["rope_scaling.factor"] == ChangedKey("rope_scaling.factor", "", "4.0")
    assert changed["rope_scaling.rope_type"].after == '"yarn"'
    assert not {"hidden_size", "model_type", "vocab_size"} & changed.keys()


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        ({}, "{}"),
        (list(range(8)), "[0, 1, 2, 3, 4, 5, 6, 7]"),
        (list(range(9)), "9 values, 0 to 8"),
        ("é" * 99, f'"{"é" * 99}...'),
    ],
)
def test_edits_are_changes_too_and_long_values_are_cut(
    llama: Path, tmp_path: Path, value: object, shown: str
) -> None:
    """Up to eight numbers are shown, and the first hundred characters of a text, its quotation
    marks among them.
    """
    baked = apply(make_plan(llama, YARN, tmp_path / "out"))
    edit(baked, "config.json", lambda config: config.update(edited=value))
    assert changes(baked)["edited"] == ChangedKey("edited", "", shown)


# Recipes as people read them


def test_a_recipe_is_described_by_its_method_and_what_was_set() -> None:
    """Numbers without needless digits, switches as on and off, lists by their length, names as on
    the command line.
    """
    assert (
        describe_recipe({"method": "linear", "parameters": {"factor": 4.0}}, 64)
        == "linear: factor 4"
    )
    settings = {"factor": "128k", "beta_fast": 32.0, "truncate": False, "share": 1 / 3}
    text = describe_settings(
        {"method": "yarn", "parameters": settings, "keep_short": True, "context": 131072}
    )
    assert (
        text
        == "factor 128k, beta-fast 32, truncate off, share 0.333333333333, keep-short on, context"
        " 131072"
    )
    assert (
        describe_settings({"parameters": {"inv_freq": [1.0, 0.1, 0.01]}}) == "inv-freq of 3 values"
    )
