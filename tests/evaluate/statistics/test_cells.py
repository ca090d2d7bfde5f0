"""Cells of the table: over depths and for each, with differences to the first row."""

from __future__ import annotations

import pytest

from ropeconv.evaluate.case import Observation

from .observed import observed, summary


def passkeys(rights: dict[float, list[float]], column: int = 2048) -> list[Observation]:
    return [
        Observation("passkey", "accuracy", column, 0, window, value, depth, weight=5)
        for depth, values in rights.items()
        for window, value in enumerate(values)
    ]


def test_the_first_row_has_no_difference_and_the_others_have_theirs() -> None:
    found = summary({"base": observed([2.0, 4.0, 3.0]), "yarn:4": observed([2.5, 4.4, 3.6])})
    base, other = found.cells
    assert (base.value, base.difference, base.difference_error) == (3.0, None, None)
    assert other.value == pytest.approx(3.5)
    assert other.difference == pytest.approx(0.5)
    assert other.difference_error == pytest.approx(0.1 / 3**0.5)
    assert other.error == pytest.approx(0.953939 / 3**0.5, rel=1e-5)
    assert (other.windows, other.documents, other.low) == (3, 1, None)


def test_columns_rise_and_rows_keep_their_order() -> None:
    rows = {name: observed([1, 2], 4096) + observed([1, 2], 1024) for name in ("yarn:4", "base")}
    assert [(c.row, c.column) for c in summary(rows).cells] == [
        ("yarn:4", 1024), ("yarn:4", 4096), ("base", 1024), ("base", 4096),
    ]  # fmt: skip


def test_a_measure_with_depths_has_a_cell_for_each_and_one_for_all() -> None:
    rows = {"base": passkeys({0.0: [1, 1], 1.0: [0, 1]}), "linear:4": passkeys({0.0: [0, 1], 1.0: [0, 0]})}
    found = summary(rows).cells
    assert [(c.row, c.depth, c.value) for c in found] == [
        ("base", None, 0.75), ("base", 0.0, 1.0), ("base", 1.0, 0.5),
        ("linear:4", None, 0.25), ("linear:4", 0.0, 0.5), ("linear:4", 1.0, 0.0),
    ]  # fmt: skip
    assert found[3].difference == -0.5
    assert found[3].low is not None
    assert 0 < found[3].low < 0.25 < (found[3].high or 0) < 1


def test_other_measures_and_metrics_do_not_mix() -> None:
    rows = {"base": observed([1, 2]) + observed([5, 6], measure="position") + observed([-1, -1], metric="log_prob")}
    assert [(c.measure, c.metric, c.value) for c in summary(rows).cells] == [
        ("growth", "loss", 1.5), ("position", "loss", 5.5), ("growth", "log_prob", -1.0),
    ]  # fmt: skip


def test_differences_of_a_run_that_was_stopped_are_of_the_windows_that_both_have() -> None:
    found = summary({"base": observed([2.0, 4.0, 12.0]), "yarn:4": observed([2.5, 4.5])}, stopped=True)
    assert found.cells[1].difference == 0.5
    assert found.cells[1].value == 3.5
    assert "Stopped before the end: these are the cases that were finished." in found.notes
