"""Means and their errors, by hand, by simulation, and against what they would be without pairs and clusters."""

from __future__ import annotations

import dataclasses
import math

import numpy as np
import pytest

from ropeconv.evaluate.case import Observation
from ropeconv.evaluate.statistics.sample import differences, sample_of

from .observed import observed


def test_windows_of_one_text_give_the_mean_and_the_error_of_a_textbook() -> None:
    values = np.random.default_rng(1).normal(3, 0.5, 8)
    sample = sample_of(observed(values), 0)
    assert sample.mean == pytest.approx(values.mean())
    assert sample.error == pytest.approx(values.std(ddof=1) / math.sqrt(8))
    assert not sample.by_document


def test_weights_are_tokens() -> None:
    """As if every token were there by itself: the mean of 1 x 4.0 and 3 x 2.0 is 2.5."""
    found = observed([4.0, 2.0])
    found[1] = dataclasses.replace(found[1], weight=3)
    assert sample_of(found, 0).mean == 2.5
    assert sample_of(observed([4.0, 2.0]), 0).mean == 3.0


def test_a_single_window_has_no_error() -> None:
    assert sample_of(observed([2.0]), 0).error is None
    assert sample_of(observed([2.0, 2.0]), 0).error == 0


def test_from_five_documents_on_they_are_the_units() -> None:
    """The bootstrap of equal documents is the textbook's error of their means, up to the noise of its draws."""
    values = np.random.default_rng(2).normal(3, 0.1, (9, 4)) + np.random.default_rng(3).normal(0, 1, (9, 1))
    sample = sample_of(observed(values), 7)
    assert sample.by_document
    assert sample.count == 9
    assert sample.error == pytest.approx(values.mean(1).std(ddof=1) / 3, rel=0.06)
    assert sample_of(observed(values), 7).error == sample.error, "the same seed gives the same table"
    assert sample_of(observed(values), 8).error != sample.error
    four = sample_of(observed(values[:4]), 7)
    assert not four.by_document
    assert four.count == 16


def test_depths_of_a_window_are_one_unit_where_windows_are_enough() -> None:
    def found(windows: int) -> list[Observation]:
        return [
            Observation("passkey", "log_prob", 1024, 0, window, float(window), depth)
            for window in range(windows)
            for depth in (0.0, 0.5, 1.0)
        ]

    six = sample_of(found(6), 0)
    assert six.count == 6
    assert six.error == pytest.approx(np.arange(6).std(ddof=1) / math.sqrt(6))
    assert sample_of(found(2), 0).count == 6, "two windows are too few, so all six numbers count"


def test_differences_are_of_the_same_windows() -> None:
    first, other = observed([1.0, 2.0, 9.0]), observed([1.5, 2.5])
    paired = differences({one.pair: one for one in reversed(other)}, {one.pair: one for one in first}, 0)
    assert paired is not None
    assert paired.mean == 0.5, "the window that one row does not have is left out"
    assert paired.error == 0
    assert differences({one.pair: one for one in observed([1.0], column=9)}, {o.pair: o for o in first}, 0) is None


def test_pairs_take_the_difficulty_of_the_text_out() -> None:
    random = np.random.default_rng(4)
    text = random.normal(3, 1, 32)
    base, other = text + random.normal(0, 0.01, 32), text + 0.02 + random.normal(0, 0.01, 32)

    def error(of: np.ndarray, to: np.ndarray) -> float:
        found = differences({one.pair: one for one in observed(of)}, {one.pair: one for one in observed(to)}, 0)
        assert found is not None
        assert found.error is not None
        return found.error

    paired, shuffled = error(other, base), error(other, random.permutation(base))
    assert 0.02 / paired > 3
    assert 0.02 / shuffled < 1
    assert shuffled > 30 * paired


@pytest.mark.parametrize(("between", "covers"), [(1.0, False), (0.0, True)])
def test_errors_by_document_cover_the_truth_where_errors_by_window_do_not(between: float, covers: bool) -> None:
    """Two standard errors hold the true mean as often as Student's t says: 93 % with 12 documents.

    between: the spread of documents, beside which windows of one document are alike. covers: whether errors by window
    would do too.
    """
    random, clustered, by_window = np.random.default_rng(5), 0, 0
    for _ in range(400):
        values = random.normal(0, between, (12, 1)) + random.normal(0, 0.7, (12, 6))
        sample = sample_of(observed(values), 0)
        assert sample.error is not None
        clustered += abs(sample.mean) < 2 * sample.error
        by_window += abs(sample.mean) < 2 * values.std(ddof=1) / math.sqrt(values.size)
    assert 0.89 < clustered / 400 < 0.965
    assert (by_window / 400 > 0.9) == covers
