"""The cells, rows and notes of a result."""

from __future__ import annotations

import re

import numpy as np
import pytest

from ropeconv.evaluate.case import Observation
from ropeconv.evaluate.outcome import Refusal
from ropeconv.evaluate.statistics.chance import beyond

from .observed import by_depth, observed, summary

TEXT = np.random.default_rng(8).normal(3, 0.8, 12)
"""How hard the targets of each window are."""


def curve(losses: dict[int, float], noise: float = 0.01, measure: str = "growth") -> list[Observation]:
    """losses: by length, what is added to the difficulty of each window."""
    random, found = np.random.default_rng(11), []
    for length, loss in losses.items():
        found += observed(TEXT + loss + random.normal(0, noise, len(TEXT)), length, measure)
    return found


def held(losses: dict[int, float], **settings: object) -> int | None:
    return summary({"base": curve(losses, **settings)}).rows[0].holds_to


def notes(values: np.ndarray) -> str:
    return " ".join(summary({"base": observed(values)}).notes)


def test_the_first_row_has_no_difference_and_the_others_have_theirs() -> None:
    base, other = summary({"base": observed([2.0, 4.0, 3.0]), "yarn:4": observed([2.5, 4.4, 3.6])}).cells
    assert (base.value, base.difference, base.difference_error) == (3.0, None, None)
    assert (other.value, other.difference) == (pytest.approx(3.5), pytest.approx(0.5))
    assert other.difference_error == pytest.approx(0.1 / 3**0.5)
    assert other.error == pytest.approx(0.953939 / 3**0.5, rel=1e-5)
    assert (other.windows, other.documents, other.low) == (3, 1, None)


def test_columns_rise_and_rows_keep_their_order() -> None:
    rows = {name: observed([1, 2], 4096) + observed([1, 2], 1024) for name in ("yarn:4", "base")}
    found = [(cell.row, cell.column) for cell in summary(rows).cells]
    assert found == [("yarn:4", 1024), ("yarn:4", 4096), ("base", 1024), ("base", 4096)]


def test_a_measure_with_depths_has_a_cell_for_each_and_one_for_all() -> None:
    rows = {"base": by_depth({0.0: [1, 1], 1.0: [0, 1]}), "linear:4": by_depth({0.0: [0, 1], 1.0: [0, 0]})}
    found = summary(rows).cells
    assert [(cell.row, cell.depth, cell.value) for cell in found] == [
        ("base", None, 0.75), ("base", 0.0, 1.0), ("base", 1.0, 0.5),
        ("linear:4", None, 0.25), ("linear:4", 0.0, 0.5), ("linear:4", 1.0, 0.0),
    ]  # fmt: skip
    assert found[3].difference == -0.5
    assert 0 < found[3].low < 0.25 < found[3].high < 1


def test_other_measures_and_metrics_do_not_mix() -> None:
    rows = {"base": observed([1, 2]) + observed([5, 6], measure="position") + observed([-1, -1], metric="log_prob")}
    assert [(cell.measure, cell.metric, cell.value) for cell in summary(rows).cells] == [
        ("growth", "loss", 1.5), ("position", "loss", 5.5), ("growth", "log_prob", -1.0),
    ]  # fmt: skip


def test_differences_of_a_run_that_was_stopped_are_of_the_windows_that_both_have() -> None:
    found = summary({"base": observed([2.0, 4.0, 12.0]), "yarn:4": observed([2.5, 4.5])}, stopped=True)
    assert (found.cells[1].difference, found.cells[1].value) == (0.5, 3.5)
    assert "Stopped before the end: these are the cases that were finished." in found.notes


@pytest.mark.parametrize(
    ("losses", "noise", "to"),
    [
        ({256: 0.5, 1024: 0.1, 2048: 0.0, 4096: 0.004, 8192: 2.0}, 0.01, 4096),
        ({256: 0.5, 1024: 0.1, 2048: 0.0, 4096: 0.1}, 0.01, 2048),
        ({256: 0.5, 1024: 0.1, 2048: 0.0}, 0.01, 2048),
        ({1024: 0.0, 2048: 1.0, 4096: 0.1}, 0.1, 1024),
        ({1024: 0.0, 4096: 0.1}, 0.1, 4096),  # without the length that fails before it
    ],
)
def test_a_row_holds_to_the_last_length_before_one_that_is_worse_than_its_best(
    losses: dict[int, float], noise: float, to: int
) -> None:
    assert held(losses, noise=noise) == to


def test_lengths_are_paired_by_window() -> None:
    """The loss grows by a twentieth of the spread of windows, which unpaired errors would not see."""
    losses = {1024: 0.0, 2048: 0.04}
    assert held(losses) == 1024
    short, long = ([one for one in curve(losses) if one.column == length] for length in losses)
    shuffled = observed(np.random.default_rng(1).permutation([one.value for one in long]), 2048)
    assert summary({"base": short + shuffled}).rows[0].holds_to == 2048


def test_it_is_not_known_without_growth_or_with_a_single_window() -> None:
    assert held({1024: 0.0, 2048: 0.0}, measure="position") is None
    assert summary({"base": observed([1.0]) + observed([2.0], 2048)}).rows[0].holds_to is None


def test_the_price_is_the_difference_of_growth_at_the_trained_length() -> None:
    rows = {"base": curve({1024: 0.0, 2048: 1.0}), "yarn:4": curve({1024: 0.125, 2048: 0.5})}
    assert summary(rows).rows[0].price is None
    prices = [summary(rows, trained=length).rows[1].price for length in (1024, 2048, 512)]
    assert prices == [pytest.approx(0.125), pytest.approx(-0.5), None]
    others = {name: curve({1024: 0.0}, measure="position") for name in ("base", "yarn:4")}
    assert summary(others).rows[1].price is None


def test_the_note_says_what_errors_are_between() -> None:
    values = np.random.default_rng(0).normal(size=(5, 3))
    assert notes(values[:1]) == (
        "growth: one text, so errors are between places of the text, not between texts; give 5 or more to measure "
        "those."
    )
    assert "growth: 4 texts, so errors are between places of them" in notes(values[:4])
    assert notes(values) == ""
    assert notes(values[:3, :1]) == "", "one window of each text: that is between texts"
    assert notes(values[:1, :1]).startswith("growth: one window, so no error is known")


def test_the_number_expected_by_chance_is_the_number_that_comes() -> None:
    """Rows that differ by nothing but noise, with four windows, where three errors are often passed."""
    random = np.random.default_rng(3)
    rows = {"base": observed(np.zeros(4))}
    rows |= {f"row {number}": observed(random.normal(0, 1, 4)) for number in range(400)}
    found = summary(rows)
    note = next(one for one in found.notes if "judged" in one)
    count, expected = re.match(r"(\d+) differences .* about ([\d.]+) would", note).groups()
    passed = sum(abs(c.difference) > 3 * c.difference_error for c in found.cells if c.difference is not None)
    assert (int(count), float(expected)) == (400, round(400 * beyond(3), 1))
    assert 0.6 < passed / float(expected) < 1.5
    assert passed > 5 * 400 * 0.0027, "a normal distribution would expect one"


def test_depths_are_not_counted_beside_their_mean() -> None:
    rows = dict.fromkeys(("base", "yarn:4"), by_depth({depth: [1.0, 1.0] for depth in (0.0, 0.5, 1.0)}))
    assert any(note.startswith("1 difference to the first row") for note in summary(rows).notes)


def test_refusals_and_another_first_row_are_said() -> None:
    refusals = [Refusal("base", "it does not fit"), Refusal("linear:4", "one pass has one length", "yarn-grid")]
    found = summary({"base": [], "yarn:4": observed([1.0, 2.0]), "linear:4": observed([1.0, 2.5])}, refusals=refusals)
    assert found.rows[0].refused == "it does not fit"
    assert {"linear:4, yarn-grid: one pass has one length.", "base did not run, so differences are to yarn:4."} <= {
        *found.notes
    }
    assert [cell.row for cell in found.cells if cell.difference is not None] == ["linear:4"]
