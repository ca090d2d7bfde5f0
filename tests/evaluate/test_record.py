"""Headlines of an evaluation in the receipt of the output that was evaluated."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from ropeconv.evaluate.record import record, recorded
from ropeconv.evaluate.row import Row
from ropeconv.receipts import read_receipt, write_receipt

from ..receipts.test_folders import receipt
from .results import LENGTHS, made


def test_the_receipt_has_the_cells_over_all_depths(tmp_path: Path) -> None:
    write_receipt(tmp_path, receipt())
    result = msgspec.structs.replace(made("base,yarn:4"), texts=["/home/someone/private/book.txt"])
    assert record(result, [Row("base"), Row("yarn:4", path=tmp_path)]) == [tmp_path]
    (found,) = read_receipt(tmp_path).evaluations
    assert [(one.measure, one.metric, one.length) for one in found.measured] == [
        *(("growth", "loss", length) for length in LENGTHS), *(("passkey", "accuracy", length) for length in LENGTHS),
    ]  # fmt: skip
    cell, row = result.cell("yarn:4", "growth", "loss", 16384), result.rows[1]
    assert cell is not None
    one = found.measured[2]
    assert (one.value, one.error, one.difference, one.difference_error) == (
        cell.value, cell.error, cell.difference, cell.difference_error,
    )  # fmt: skip
    assert found.measured[-1].low is not None
    assert (found.against, found.price, found.holds_to) == ("base", row.price, row.holds_to)
    assert found.texts == ("book.txt",), "receipts are published, and folders of this machine are not"


def test_a_row_by_itself_is_against_nothing() -> None:
    found = recorded(made("yarn:4", ["growth"]), "yarn:4")
    assert found.against == ""
    assert found.price is None
    assert found.measured[0].difference is None


@pytest.mark.parametrize("measure", ["growth", "position"])
def test_models_without_a_receipt_and_rows_without_headlines_are_left_out(tmp_path: Path, measure: str) -> None:
    if measure == "position":
        write_receipt(tmp_path, receipt())
    assert record(made("base", [measure]), [Row("base", path=tmp_path)]) == []
    assert record(made("base", [measure]), [Row("base")]) == []
    if measure == "position":
        assert read_receipt(tmp_path).evaluations == ()


def test_measures_of_two_evaluations_of_the_same_text_are_kept_together(tmp_path: Path) -> None:
    write_receipt(tmp_path, receipt())
    rows = [Row("base"), Row("yarn:4", path=tmp_path)]
    for measures in (["growth"], ["passkey"], ["passkey"]):
        record(made("base,yarn:4", measures), rows)
    (found,) = read_receipt(tmp_path).evaluations
    assert [one.measure for one in found.measured] == ["growth"] * len(LENGTHS) + ["passkey"] * len(LENGTHS)
    assert found.holds_to is not None
    record(msgspec.structs.replace(made("base,yarn:4", ["growth"]), tokens_sha256="f" * 64), rows)
    assert len(read_receipt(tmp_path).evaluations) == 2
