"""Receipts: one shape for folders and GGUF, typed, and older ones read too."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from ropeconv.errors import BadSource
from ropeconv.receipts import Receipt, parse_receipt, read_receipt
from ropeconv.receipts.receipt import FoldRecord, LogNRecord, RuntimeRecord
from ropeconv.rope.methods import REGISTRY
from ropeconv.rope.recipe import Recipe

from ..support.baking import apply, make_plan
from ..support.gguf_files import write

DATA = Path(__file__).parent.parent / "data" / "receipts"
YARN = Recipe(REGISTRY["yarn"](4.0))


def old(name: str) -> Receipt:
    """A receipt that the first version wrote."""
    return parse_receipt((DATA / f"{name}-schema1.json").read_text(), name)


def keys(receipt: Receipt) -> set[str]:
    return set(receipt.to_dict())


def test_a_folder_and_a_gguf_file_have_one_shape(llama: Path, tmp_path: Path) -> None:
    folder = read_receipt(apply(make_plan(llama, YARN, tmp_path / "out")))
    gguf = read_receipt(apply(make_plan(write(tmp_path / "a.gguf", "llama"), YARN, tmp_path / "b.gguf")))
    assert keys(folder) == keys(gguf)
    assert folder.schema == gguf.schema == 2
    assert folder.recipe == gguf.recipe == YARN.to_dict()
    assert gguf.runtimes[0].status == "exact"
    assert len(gguf.schedule.inv_freq) > 0
    assert gguf.files == ()
    assert {file.name for file in folder.files} == {"config.json", "generation_config.json", "model.safetensors"}


def test_what_is_written_is_read_again(llama: Path, tmp_path: Path) -> None:
    out = apply(make_plan(llama, YARN, tmp_path / "out"))
    text = (out / "ropeconv.json").read_text()
    assert json.loads(json.dumps(read_receipt(out).to_dict())) == json.loads(text)


def test_the_first_versions_folder() -> None:
    receipt = old("folder")
    assert (receipt.ropeconv, receipt.schema, receipt.encoding) == ("0.1.0", 2, "native")
    assert Recipe.from_dict(receipt.recipe).method.name == "yarn"
    assert receipt.schedule.context == 1024
    assert receipt.runtimes[0].runtime == "transformers@4.45"
    assert receipt.runtimes[0].status == "ignored"
    assert receipt.runtimes[0].reason.startswith("it computes other frequencies")
    assert receipt.in_config is not None
    assert receipt.in_config.written_as == "native"
    assert receipt.validation is not None
    assert receipt.validation["agrees"]


def test_the_first_versions_fold_of_both_sides() -> None:
    fold = old("folded").fold
    assert isinstance(fold, FoldRecord)
    assert fold.fold_into == "qk"
    assert fold.tensors[0] == "model.layers.0.self_attn.k_proj.weight"


def test_the_first_versions_steps() -> None:
    receipt = old("approximated")
    assert isinstance(receipt.log_n_approximation, LogNRecord)
    assert receipt.log_n_approximation.length == 64
    assert receipt.schedule.log_n == {"kind": "clamped", "length": 64}


def test_the_first_versions_gguf() -> None:
    receipt = old("gguf")
    assert receipt.schedule.digest.startswith("86338962181e")
    assert receipt.schedule.context == 0
    assert receipt.runtimes == (RuntimeRecord("llama-cpp-gguf@2026.10", "exact"),)


def test_results_of_the_first_version_beside_a_gguf(tmp_path: Path) -> None:
    out = apply(make_plan(write(tmp_path / "a.gguf", "llama"), YARN, tmp_path / "b.gguf"))
    result = {"agrees": True, "third_kl": 0.5}
    beside = {"size": out.stat().st_size, "validation": result, "servers": {"vLLM 0.32": result}}
    (tmp_path / "b.gguf.validation.json").write_text(json.dumps(beside))
    receipt = read_receipt(out)
    assert receipt.validation == {"agrees": True, "config_reference_kl": 0.5}
    assert receipt.servers["vLLM 0.32"] == receipt.validation


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"schema": 3}, "is of a later ropeconv"),
        ({"recipe": None}, "is not a receipt"),
        ({"schedule": {}}, "is not a receipt"),
        ({"runtimes": 5}, "is not a receipt"),
        ({"fold": {"fold_into": "v", "tensors": [], "expected_kl": 0}}, "is not a receipt"),
    ],
)
def test_what_is_no_receipt(llama: Path, tmp_path: Path, change: dict[str, object], words: str) -> None:
    out = apply(make_plan(llama, YARN, tmp_path / "out"))
    data = json.loads((out / "ropeconv.json").read_text()) | change
    (out / "ropeconv.json").write_text(json.dumps(data))
    with pytest.raises(BadSource, match=words):
        read_receipt(out)


@pytest.mark.parametrize("value", ["NaN", "Infinity", "-Infinity", "1e999", "9" * 40, "-1" + "0" * 40])
def test_numbers_with_which_no_comparison_fails_are_refused(llama: Path, tmp_path: Path, value: str) -> None:
    """An attention factor of NaN would differ from none."""
    out = apply(make_plan(llama, YARN, tmp_path / "out"))
    text = (out / "ropeconv.json").read_text()
    data = json.loads(text)
    data["in_config"]["attention_factor"] = "HERE"
    with pytest.raises(BadSource, match="not a receipt of ropeconv"):
        parse_receipt(json.dumps(data).replace('"HERE"', value), "ropeconv.json")
    assert parse_receipt(text, "ropeconv.json").in_config is not None


@pytest.mark.parametrize(
    "odd",
    [
        {"validation": [1]},
        {"validation": "x"},
        {"servers": [1]},
        {"servers": {"vLLM": 3}},
        {"size": "x"},
        {"schema": {}},
    ],
)
@pytest.mark.parametrize("schema", [1, 2])
def test_results_of_other_types_beside_a_gguf_file(tmp_path: Path, odd: dict[str, object], schema: int) -> None:
    out = apply(make_plan(write(tmp_path / "a.gguf", "llama"), YARN, tmp_path / "b.gguf"))
    path = tmp_path / "b.gguf.validation.json"
    right = {"schema": schema, "size": out.stat().st_size, "validation": {"agrees": True}, "servers": {}}
    path.write_text(json.dumps(right))
    assert read_receipt(out).validation == {"agrees": True}
    path.write_text(json.dumps(right | odd))
    with pytest.raises(BadSource, match="b.gguf.validation.json is not as it has to be"):
        read_receipt(out)
