"""What a receipt says where it says nothing, and evaluations of one text that are joined."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgspec
import pytest

from ropeconv.errors import BadSource, UsageError
from ropeconv.receipts import has_receipt, parse_receipt, read_recipe, write
from ropeconv.receipts.evaluation import EvaluationRecord, MeasuredRecord
from ropeconv.receipts.original import GgufRecord, TextRecord, ValueRecord
from ropeconv.receipts.read import Results
from ropeconv.receipts.receipt import BeforeRecord, ConfigRecord, Receipt, ScheduleRecord, TargetRecord
from ropeconv.receipts.write import add_evaluation, add_validation, write_receipt
from ropeconv.rope.errors import RecipeError
from ropeconv.rope.methods import REGISTRY
from ropeconv.rope.recipe import Recipe
from ropeconv.version import SCHEMA

from .test_evaluations import ONE
from .test_folders import receipt


def test_what_earlier_receipts_do_not_say() -> None:
    """Factors are 1, lengths and places 0, switches off."""
    before = BeforeRecord("default", "yarn", 1.0, 64)
    assert (before.original_context, before.effective_length, before.reach) == (0, None, 0)
    assert ConfigRecord("native", 1.5).softmax_scale == 1.0
    schedule = ScheduleRecord("d")
    assert (schedule.attention_factor, schedule.softmax_scale) == (1.0, 1.0)
    assert (schedule.context, schedule.original_context, schedule.inv_freq) == (0, 0, ())
    target = TargetRecord("gguf")
    assert [target.allow_approximate, target.all_files, target.replace, target.assume_arch_keys] == [False] * 4
    assert (TextRecord("a", "", "").prefix, TextRecord("a", "", "").suffix, ValueRecord(8).spaces) == (0, 0, 0)
    record = GgufRecord(())
    assert (record.head_dim, record.version, record.data_start, record.tail) == (0, 3, 0, 0)
    assert (Results().schema, Results().size) == (1, -1)
    bare = Receipt(ropeconv="1", source=receipt().source, recipe={}, encoding="native", schedule=schedule)
    assert (bare.schema, bare.method, bare.files, bare.evaluations) == (SCHEMA, "", (), ())


def test_the_largest_whole_numbers() -> None:
    def with_number(value: int) -> str:
        return json.dumps(receipt().to_dict() | {"recipe": {"method": "yarn", "x": value}})

    for most in (1 << 63, -(1 << 63)):
        assert parse_receipt(with_number(most), "x").recipe["x"] == most
    for more in ((1 << 63) + 1, -(1 << 63) - 1):
        with pytest.raises(BadSource, match="x is not a receipt of ropeconv"):
            parse_receipt(with_number(more), "x")


# Evaluations


def measured(measure: str, value: float = 1.0) -> MeasuredRecord:
    return MeasuredRecord(measure=measure, metric="loss", length=8192, value=value)


def evaluation(*measures: MeasuredRecord, **changes: Any) -> EvaluationRecord:
    given = {"price": None, "price_error": None, "holds_to": None, **changes, "measured": measures}
    return msgspec.structs.replace(ONE, **given)


def test_an_evaluation_keeps_the_measures_that_only_an_older_one_has() -> None:
    older = evaluation(measured("growth", 1.0), measured("niah", 2.0), price=0.5, price_error=0.1, holds_to=4096)
    found = evaluation(measured("growth", 3.0)).joined(older)
    assert [(one.measure, one.value) for one in found.measured] == [("niah", 2.0), ("growth", 3.0)]
    assert (found.price, found.price_error, found.holds_to) == (0.5, 0.1, 4096)


@pytest.mark.parametrize("own", [{"price": 0.2}, {"holds_to": 64}, {"price": 0.2, "holds_to": 64}])
def test_a_price_of_its_own_is_not_mixed_with_an_older_one(own: dict[str, Any]) -> None:
    older = evaluation(measured("niah"), price=0.5, price_error=0.1, holds_to=4096)
    found = evaluation(measured("growth"), **own).joined(older)
    assert len(found.measured) == 2
    assert (found.price, found.price_error, found.holds_to) == (own.get("price"), None, own.get("holds_to"))


def test_nothing_of_an_evaluation_that_is_replaced_as_a_whole_stays() -> None:
    older = evaluation(measured("growth"), price=0.5, holds_to=4096)
    new = evaluation(measured("growth", 3.0))
    assert new.joined(older) == new


def test_what_replaces_an_evaluation(tmp_path: Path) -> None:
    """Another runtime, precision, text or row to compare with is another evaluation."""
    one = evaluation(measured("growth"))
    add_evaluation(tmp_path, receipt(evaluations=(evaluation(measured("niah")),)), one)
    (kept,) = parse_receipt((tmp_path / "ropeconv.json").read_text(), "x").evaluations
    assert [found.measure for found in kept.measured] == ["niah", "growth"]
    for name in ("runtime", "dtype", "tokens_sha256", "against"):
        other = msgspec.structs.replace(one, **{name: "other"})
        add_evaluation(tmp_path, receipt(evaluations=(other,)), one)
        assert parse_receipt((tmp_path / "ropeconv.json").read_text(), "x").evaluations == (other, one)


def test_up_to_three_texts_are_named() -> None:
    assert msgspec.structs.replace(ONE, texts=("a", "b", "c")).described_texts == "a, b, c"


# Files


def test_results_beside_a_gguf_file_are_synced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    synced: list[str] = []
    monkeypatch.setattr(write, "sync_file", lambda path: synced.append(path.name))
    monkeypatch.setattr(write, "sync_folder", lambda path: synced.append(path.name))
    (tmp_path / "m.gguf").write_bytes(b"1234")
    add_validation(tmp_path / "m.gguf", receipt(), {"agrees": True})
    assert synced == [".m.gguf.validation.json.new", tmp_path.name]


def test_which_outputs_have_a_receipt(tmp_path: Path) -> None:
    assert has_receipt(tmp_path) is False
    write_receipt(tmp_path, receipt())
    assert has_receipt(tmp_path) is True
    assert has_receipt(str(tmp_path))
    (tmp_path / "ropeconv.json").write_text("{")
    assert not has_receipt(tmp_path)


def test_recipes_of_files_and_of_outputs(tmp_path: Path) -> None:
    recipe = Recipe(REGISTRY["yarn"](4.0), context=64)
    (tmp_path / "saved.json").write_text(json.dumps(recipe.to_dict()))
    assert read_recipe(tmp_path / "saved.json") == recipe
    write_receipt(tmp_path, receipt(recipe=recipe.to_dict()))
    assert read_recipe(tmp_path) == read_recipe(tmp_path / "ropeconv.json") == recipe
    for name, text, words in (
        ("odd.json", "{", "odd.json is not valid JSON"), ("byte.json", "", "byte.json is not valid JSON"),
        ("absent.json", None, "absent.json cannot be read; give a recipe, or the ropeconv.json of an earlier output"),
    ):  # fmt: skip
        if text is not None:
            (tmp_path / name).write_text(text)
        with pytest.raises(UsageError, match=words):
            read_recipe(tmp_path / name)
    for text in ("[]", "3", '{"method": "cubic"}'):
        (tmp_path / "odd.json").write_text(text)
        with pytest.raises(RecipeError):
            read_recipe(tmp_path / "odd.json")
    (tmp_path / "odd.json").write_text('{"ropeconv": "1"}')
    with pytest.raises(BadSource, match="is not a receipt of ropeconv"):
        read_recipe(tmp_path / "odd.json")
