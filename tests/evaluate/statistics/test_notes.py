"""Sentences below the table."""

from __future__ import annotations

import re

import numpy as np

from ropeconv.evaluate.case import Observation
from ropeconv.evaluate.outcome import Refusal
from ropeconv.evaluate.statistics.chance import beyond

from .observed import observed, summary


def notes(values: np.ndarray, measure: str = "growth") -> str:
    return " ".join(summary({"base": observed(values, measure=measure)}).notes)


def test_fewer_than_five_texts_are_said() -> None:
    values = np.random.default_rng(0).normal(size=(5, 3))
    assert notes(values[:1]) == (
        "growth: one text, so errors are between places of the text, not between texts; give 5 or more to measure "
        "those."
    )
    assert "growth: 4 texts, so errors are between places of them" in notes(values[:4])
    assert notes(values) == ""
    assert notes(values[:3, :1]) == "", "one window of each text: that is between texts"


def test_a_single_window_is_said() -> None:
    assert notes(np.ones((1, 1))).startswith("growth: one window, so no error is known")


def test_the_number_expected_by_chance_is_the_number_that_comes() -> None:
    """Forty rows that differ by nothing but noise, with four windows, where three errors are often passed."""
    random = np.random.default_rng(3)
    rows = {"base": observed(np.zeros(4))}
    rows |= {f"row {number}": observed(random.normal(0, 1, 4)) for number in range(400)}
    found = summary(rows)
    note = next(one for one in found.notes if "judged" in one)
    count, expected = re.match(r"(\d+) differences .* about ([\d.]+) would", note).groups()  # type: ignore[union-attr]
    passed = sum(abs(c.difference) > 3 * c.difference_error for c in found.cells if c.difference is not None)
    assert int(count) == 400
    assert float(expected) == round(400 * beyond(3), 1)
    assert 0.6 < passed / float(expected) < 1.5
    assert passed > 5 * 400 * 0.0027, "a normal distribution would expect one"


def test_depths_are_not_counted_beside_their_mean() -> None:
    found = [
        Observation("passkey", "accuracy", 1024, 0, window, 1.0, depth)
        for window in (0, 1)
        for depth in (0.0, 0.5, 1.0)
    ]
    rows = dict.fromkeys(("base", "yarn:4"), found)
    assert any(note.startswith("1 difference to the first row") for note in summary(rows).notes)


def test_refusals_and_another_first_row_are_said() -> None:
    refusals = [Refusal("base", "it does not fit"), Refusal("linear:4", "one pass has one length", "yarn-grid")]
    found = summary({"base": [], "yarn:4": observed([1.0, 2.0]), "linear:4": observed([1.0, 2.5])}, refusals=refusals)
    assert found.rows[0].refused == "it does not fit"
    assert "linear:4, yarn-grid: one pass has one length." in found.notes
    assert "base did not run, so differences are to yarn:4." in found.notes
    assert [cell.row for cell in found.cells if cell.difference is not None] == ["linear:4"]
