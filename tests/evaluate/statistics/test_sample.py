"""Means, shares and their errors: by hand, by simulation, and against published numbers."""

from __future__ import annotations

import dataclasses
import math

import mpmath
import numpy as np
import pytest

from ropeconv.evaluate.statistics.chance import beyond
from ropeconv.evaluate.statistics.sample import Sample, differences, sample_of
from ropeconv.evaluate.statistics.shares import difference_error, effective_count, share_error, wilson

from .observed import by_depth, observed

GATHERED = np.repeat([[1.0], [0.0]], 3, axis=0) * np.ones((6, 10))
"""Answers of six documents that are alike within each."""
SPREAD = np.tile([1.0, 0.0], (6, 5))
"""As many right answers, in every document."""


def answers(values: object) -> Sample:
    return sample_of(observed(values, metric="accuracy"), 0)


def paired(of: object, to: object, column: int = 1024) -> Sample | None:
    own, first = ({one.pair: one for one in found} for found in (observed(of, column), observed(to)))
    return differences(own, first, 0)


def test_windows_of_one_text_give_the_mean_and_the_error_of_a_textbook() -> None:
    values = np.random.default_rng(1).normal(3, 0.5, 8)
    sample = sample_of(observed(values), 0)
    assert sample.mean == pytest.approx(values.mean())
    assert sample.error == pytest.approx(values.std(ddof=1) / math.sqrt(8))
    assert not sample.by_document
    assert sample_of(observed([2.0]), 0).error is None, "a single window has no error"


def test_weights_are_tokens() -> None:
    """As if every token were there by itself: the mean of 1 x 4.0 and 3 x 2.0 is 2.5."""
    first, second = observed([4.0, 2.0])
    assert sample_of([first, dataclasses.replace(second, weight=3)], 0).mean == 2.5
    assert sample_of([first, second], 0).mean == 3.0


def test_from_five_documents_on_they_are_the_units() -> None:
    """The bootstrap of equal documents is the textbook's error of their means, up to the noise of its draws."""
    values = np.random.default_rng(2).normal(3, 0.1, (9, 4)) + np.random.default_rng(3).normal(0, 1, (9, 1))
    sample, four = sample_of(observed(values), 7), sample_of(observed(values[:4]), 7)
    assert (sample.by_document, sample.count, four.by_document, four.count) == (True, 9, False, 16)
    assert sample.error == pytest.approx(values.mean(1).std(ddof=1) / 3, rel=0.06)
    assert sample_of(observed(values), 7).error == sample.error, "the same seed gives the same table"
    assert sample_of(observed(values), 8).error != sample.error


def test_depths_of_a_window_are_one_unit_where_windows_are_enough() -> None:
    six = sample_of(by_depth({depth: list(range(6)) for depth in (0.0, 0.5, 1.0)}, "log_prob"), 0)
    assert six.count == 6
    assert six.error == pytest.approx(np.arange(6).std(ddof=1) / math.sqrt(6))
    two = sample_of(by_depth({depth: [0.0, 1.0] for depth in (0.0, 0.5, 1.0)}, "log_prob"), 0)
    assert two.count == 6, "two windows are too few, so all six numbers count"


def test_differences_are_of_the_same_windows() -> None:
    found = paired([1.5, 2.5], [1.0, 2.0, 9.0])
    assert found is not None
    assert (found.mean, found.error) == (0.5, 0), "the window that one row does not have is left out"
    assert paired([1.0], [1.0, 2.0, 9.0], column=9) is None


def test_pairs_take_the_difficulty_of_the_text_out() -> None:
    random = np.random.default_rng(4)
    text = random.normal(3, 1, 32)
    base, other = text + random.normal(0, 0.01, 32), text + 0.02 + random.normal(0, 0.01, 32)
    same, shuffled = (paired(other, to).error for to in (base, random.permutation(base)))
    assert same < 0.02 / 3
    assert shuffled > max(0.02, 30 * same)


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
        clustered += abs(sample.mean) < 2 * sample.error
        by_window += abs(sample.mean) < 2 * values.std(ddof=1) / math.sqrt(values.size)
    assert 0.89 < clustered / 400 < 0.965
    assert (by_window / 400 > 0.9) == covers


@pytest.mark.parametrize(
    ("right", "count", "low", "high"),
    [(8, 10, 0.4902, 0.9433), (0, 20, 0.0, 0.1611), (81, 263, 0.2553, 0.3662), (15, 148, 0.0624, 0.1605)],
)
def test_the_interval_of_a_share_is_the_published_one(right: int, count: int, low: float, high: float) -> None:
    """The last two are in Newcombe 1998, table I."""
    assert wilson(right / count, count) == pytest.approx((low, high), abs=5e-5)


def test_a_share_of_all_is_not_certain() -> None:
    sample = answers([1.0] * 10)
    assert sample.error == 0
    assert 0.04 < share_error(sample) < 0.06


def test_answers_that_are_alike_within_a_document_count_less() -> None:
    assert effective_count(answers(GATHERED)) < 7
    assert effective_count(answers(SPREAD)) == 60
    assert effective_count(answers(GATHERED[:4])) == 40, "too few documents to know"
    assert difference_error(answers(-GATHERED)) > 2 * difference_error(answers(-SPREAD))


@pytest.mark.parametrize(("lost", "decided"), [(8, False), (10, True)])
def test_lost_answers_are_judged_as_an_exact_test_judges_them(lost: int, decided: bool) -> None:
    """Three errors are a probability of 0.27 %; that of answers that are all lost is 2 in 2^n."""
    sample = answers([-1.0] * lost)
    assert (abs(sample.mean) > 3 * difference_error(sample)) == decided == (2 / 2**lost < 0.0027)
    assert difference_error(answers([0.0] * 16)) == pytest.approx(1 / 16), "no difference has an error too"


@pytest.mark.parametrize("freedom", [1, 2, 3, 7, 30, 231, math.inf])
def test_three_errors_are_passed_by_chance_as_often_as_students_t_says(freedom: float) -> None:
    wanted = 0.0026998
    if freedom < math.inf:
        wanted = float(mpmath.betainc(freedom / 2, 0.5, 0, freedom / (freedom + 9), regularized=True))
    assert beyond(freedom) == pytest.approx(wanted, rel=1e-4)
