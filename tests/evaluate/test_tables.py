"""Tables of a result, as terminal, report and card show them."""

from __future__ import annotations

import msgspec
import pytest

from ropeconv.evaluate.metric import METRICS, metric_of
from ropeconv.evaluate.tables import columns_of, headline, tables

from .results import LENGTHS, ROWS, made


def test_growth_has_lengths_price_and_holds_to() -> None:
    result = made(measures=["growth"])
    (table,) = tables(result)
    assert table.columns == ("1/4T", "1T", "2T", "4T", "8T", "price", "holds to")
    assert [name for name, _ in table.lines] == list(ROWS)
    base, yarn = (dict(zip(table.columns, entries, strict=True)) for _, entries in table.lines[:2])
    cell = result.cell("base", "growth", "loss", 8192)
    other = result.cell("yarn:4", "growth", "loss", 16384)
    assert cell is not None
    assert other is not None
    assert (base["1T"].text, base["1T"].decided) == (f"{cell.value:.3f}", None)
    assert (yarn["2T"].text, yarn["2T"].decided) == (f"{other.difference:+.3f}", True)
    assert yarn["2T"].error == f"±{other.difference_error:.3f}"
    assert (base["price"].text, base["holds to"].text) == ("-", "1T")
    assert yarn["price"] == yarn["1T"]
    assert yarn["holds to"].text == "4T"


def test_a_row_that_holds_to_the_longest_length_says_so() -> None:
    result = made(measures=["growth"])
    rows = [msgspec.structs.replace(row, holds_to=LENGTHS[-1]) for row in result.rows]
    (table,) = tables(msgspec.structs.replace(result, rows=rows))
    assert {entries[-1].text for _, entries in table.lines} == {"8T+"}


def test_a_difference_is_decided_beyond_three_errors_and_not_before() -> None:
    result = made(measures=["growth"])
    cell = result.cell("yarn:4", "growth", "loss", 8192)
    assert cell is not None
    for difference, decided in ((0.031, True), (-0.031, True), (0.029, False), (None, None)):
        changed = msgspec.structs.replace(cell, difference=difference, difference_error=0.01)
        assert changed.decided is decided
    assert msgspec.structs.replace(cell, difference=5.0, difference_error=None).decided is False, "a single window"


def test_retrieval_is_shares_with_their_intervals() -> None:
    result = made(measures=["passkey"])
    (table,) = tables(result)
    assert table.columns == ("1/4T", "1T", "2T", "4T", "8T")
    cell = result.cell("linear:4", "passkey", "accuracy", 2048)
    assert cell is not None
    shown = dict(table.lines)["linear:4"][0]
    assert shown.text == f"{100 * cell.value:.0f}"
    assert shown.error == f"{100 * (cell.low or 0):.0f}-{100 * (cell.high or 0):.0f}"
    assert shown.decided


def test_few_columns_are_kept_with_the_last_and_that_of_the_trained_context() -> None:
    result = made(measures=["position"])
    whole, few = tables(result)[0], tables(result, 6)[0]
    assert len(whole.columns) == 32
    assert len(few.columns) == 6
    assert "8,192" in few.columns
    assert few.columns[-1] == "65,536"
    assert set(few.columns) <= set(whole.columns)
    for name, entries in few.lines:
        assert entries == tuple(dict(zip(whole.columns, dict(whole.lines)[name], strict=True))[c] for c in few.columns)


def test_a_row_without_cells_has_no_line() -> None:
    result = made(measures=["growth", "passkey"])
    kept = [cell for cell in result.cells if (cell.row, cell.measure) != ("ntk:4", "passkey")]
    growth, passkey = tables(msgspec.structs.replace(result, cells=kept))
    assert "ntk:4" in dict(growth.lines)
    assert "ntk:4" not in dict(passkey.lines)


def test_the_headline_is_the_first_metric_that_a_measure_names() -> None:
    result = made(measures=["passkey", "growth"])
    assert headline(result, "passkey") == "accuracy"
    assert headline(result, "growth") == "loss"
    assert columns_of(result, "growth") == list(LENGTHS)


@pytest.mark.parametrize(
    ("error", "shown"), [(0.0123, "0.012"), (0.00049, "0.0005"), (0.00051, "0.001"), (0.0, "0.000"), (1.5, "1.500")]
)
def test_small_errors_are_not_rounded_to_nothing(error: float, shown: str) -> None:
    assert METRICS["loss"].error(error) == shown


def test_tables_are_in_the_order_that_was_asked_for() -> None:
    """A run interleaves measures, so cells come in another one."""
    result = made("base", ["position", "passkey", "growth"])
    asked = msgspec.structs.replace(result, measures=["growth", "passkey", "position"])
    assert [table.measure for table in tables(asked)] == ["growth", "passkey", "position"]
    assert [table.measure for table in tables(result)] == ["position", "passkey", "growth"]


def test_a_metric_that_is_not_known_has_its_name() -> None:
    assert metric_of("acc_norm").title == "acc_norm"
