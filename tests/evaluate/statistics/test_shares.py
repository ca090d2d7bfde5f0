"""Wilson's interval, and differences of shares."""

from __future__ import annotations

import math

import numpy as np
import pytest

from ropeconv.evaluate.statistics.sample import sample_of
from ropeconv.evaluate.statistics.shares import difference_error, effective_count, share_error, wilson

from .observed import observed


@pytest.mark.parametrize(
    ("right", "count", "low", "high"),
    [(8, 10, 0.4902, 0.9433), (0, 20, 0.0, 0.1611), (81, 263, 0.2553, 0.3662), (15, 148, 0.0624, 0.1605)],
)
def test_it_is_the_published_interval(right: int, count: int, low: float, high: float) -> None:
    """The last two are in Newcombe 1998, table I."""
    assert wilson(right / count, count) == pytest.approx((low, high), abs=5e-5)


@pytest.mark.parametrize("errors", [1.0, 1.96, 3.0])
def test_its_ends_are_where_the_test_turns(errors: float) -> None:
    """At an end p, the share is just that many errors sqrt(p (1 - p) / n) away."""
    for end in wilson(0.3, 40, errors):
        assert abs(0.3 - end) / math.sqrt(end * (1 - end) / 40) == pytest.approx(errors)


def test_it_covers_the_truth_also_near_one_where_the_usual_error_is_nothing() -> None:
    """Over all outcomes of 20 answers, each with its probability."""
    for truth in (0.5, 0.9, 0.97):
        covered = usual = 0.0
        for right in range(21):
            probability = math.comb(20, right) * truth**right * (1 - truth) ** (20 - right)
            low, high = wilson(right / 20, 20)
            covered += probability * (low <= truth <= high)
            share = right / 20
            usual += probability * (abs(share - truth) <= 1.96 * math.sqrt(share * (1 - share) / 20))
        assert covered > 0.91
        assert truth < 0.97 or usual < 0.5


def test_a_share_of_all_is_not_certain() -> None:
    sample = sample_of(observed([1.0] * 10, metric="accuracy"), 0)
    assert sample.error == 0
    assert 0.04 < share_error(sample) < 0.06


def test_answers_that_are_alike_within_a_document_count_less() -> None:
    alike = np.repeat([[1.0], [0.0]], 3, axis=0) * np.ones((6, 10))
    mixed = np.tile([1.0, 0.0], (6, 5))
    assert effective_count(sample_of(observed(alike, metric="accuracy"), 0)) < 7
    assert effective_count(sample_of(observed(mixed, metric="accuracy"), 0)) == 60
    assert effective_count(sample_of(observed(alike[:4], metric="accuracy"), 0)) == 40, "too few documents to know"


@pytest.mark.parametrize(("lost", "decided"), [(8, False), (10, True)])
def test_lost_answers_are_judged_as_an_exact_test_judges_them(lost: int, decided: bool) -> None:
    """Three errors are a probability of 0.27 %; that of answers that are all lost is 2 in 2^n."""
    sample = sample_of(observed([-1.0] * lost, metric="accuracy"), 0)
    assert sample.error == 0, "their spread would say that two are certain"
    assert (abs(sample.mean) > 3 * difference_error(sample)) == decided
    assert (2 / 2**lost < 0.0027) == decided


def test_no_difference_has_an_error_too() -> None:
    assert difference_error(sample_of(observed([0.0] * 16, metric="accuracy"), 0)) == pytest.approx(1 / 16)


def test_differences_that_go_by_document_have_the_larger_error() -> None:
    def error(values: np.ndarray) -> float:
        return difference_error(sample_of(observed(values, metric="accuracy"), 0))

    # every document loses as many answers as another: the same counts, spread or gathered
    gathered = np.repeat([[-1.0], [0.0]], 3, axis=0) * np.ones((6, 10))
    spread = np.tile([-1.0, 0.0], (6, 5))
    assert error(gathered) > 2 * error(spread)
