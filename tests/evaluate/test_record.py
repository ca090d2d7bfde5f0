"""Headlines of an evaluation in the receipt of the output that was evaluated."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from ropeconv.errors import BadSource, UsageError
from ropeconv.evaluate.record import record, recorded
from ropeconv.receipts import read_receipt, write_receipt

from ..receipts.test_folders import receipt
from .results import LENGTHS, made


def test_the_receipt_has_the_cells_over_all_depths(tmp_path: Path) -> None:
    write_receipt(tmp_path, receipt())
    result = msgspec.structs.replace(made("base,yarn:4"), texts=["/home/someone/private/book.txt"])
    record(result, "yarn:4", tmp_path)
    (found,) = read_receipt(tmp_path).evaluations
    assert [(one.measure, one.metric, one.length) for one in found.measured] == [
        *(("growth", "loss", length) for length in LENGTHS), *(("passkey", "right", length) for length in LENGTHS),
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


def test_an_output_without_a_receipt_and_a_row_without_numbers_are_refused(tmp_path: Path) -> None:
    with pytest.raises(BadSource, match=r"no ropeconv\.json"):
        record(made("base", ["growth"]), "base", tmp_path)
    write_receipt(tmp_path, receipt())
    with pytest.raises(UsageError, match="nothing of base was measured"):
        record(made("base", ["position"]), "base", tmp_path)
    assert read_receipt(tmp_path).evaluations == ()
