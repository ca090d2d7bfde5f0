"""The rule of proof: how often it marks a difference that is none, by simulation, and by hand."""

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import pytest
from numpy.random import Generator
from numpy.typing import NDArray
from scipy.stats import binom, binomtest, ttest_1samp

from ropeconv.bake.proof import (
    ALPHA,
    Sample,
    bootstrap_t,
    differences,
    effective_count,
    judge,
    judge_share,
    prove,
)

Numbers = NDArray[np.float64]


@dataclass(frozen=True)
class Number:
    value: float
    document: str = "a"
    window: int = 0
    weight: int = 1


def windows(values: Numbers) -> Sample:
    """Numbers of neighbouring windows of one text."""
    places = np.arange(len(values))
    return Sample(values, np.ones(len(values)), np.zeros(len(values), np.int64), places)


def texts(values: Numbers) -> Sample:
    """A number of each text."""
    places = np.arange(len(values))
    return Sample(values, np.ones(len(values)), places, places)


def exponential(draw: Generator, count: int) -> Numbers:
    """Skewed differences whose mean is 0, as where a row fails on some texts."""
    return draw.exponential(size=count) - 1


def normal(draw: Generator, count: int) -> Numbers:
    return draw.normal(size=count)


def neighbours(draw: Generator, count: int, correlation: float = 0.4) -> Numbers:
    """Windows that are like their neighbours: an autoregressive series."""
    values = [draw.normal() / math.sqrt(1 - correlation**2)]
    for noise in draw.normal(size=count - 1):
        values.append(correlation * values[-1] + noise)
    return np.array(values)


def false_marks(
    made: Callable[[Generator, int], Numbers],
    kind: Callable[[Numbers], Sample],
    count: int,
    draws: int,
) -> tuple[float, float]:
    """The shares of experiments that the rule marks, and that scipy's Student's t marks."""
    draw = np.random.default_rng(count)
    by_rule = 0
    by_student = 0
    for _ in range(draws):
        values = made(draw, count)
        by_rule += kind(values).decided
        by_student += bool(ttest_1samp(values, 0).pvalue < ALPHA)
    return by_rule / draws, by_student / draws


def allowed(draws: int) -> float:
    """The nominal level, and three errors of a simulation."""
    return ALPHA + 3 * math.sqrt(ALPHA / draws)


@pytest.mark.parametrize("count", [8, 20])
def test_skewed_differences_are_marked_as_seldom_as_the_level_says(count: int) -> None:
    by_rule, by_student = false_marks(exponential, texts, count, 2000)
    assert by_rule <= allowed(2000)
    assert by_student > 4 * ALPHA, "the negative control: Student's t alone does not hold it"


@pytest.mark.parametrize("count", [12, 32])
def test_windows_that_are_alike_are_marked_as_seldom_as_the_level_says(count: int) -> None:
    by_rule, by_student = false_marks(neighbours, windows, count, 2000)
    assert by_rule <= allowed(2000)
    assert by_student > 3 * ALPHA, "the negative control: as independent windows they are not"


@pytest.mark.parametrize("kind", [texts, windows])
def test_normal_differences_are_marked_as_seldom_as_the_level_says(
    kind: Callable[[Numbers], Sample],
) -> None:
    by_rule, _ = false_marks(normal, kind, 12, 2000)
    assert by_rule <= allowed(2000)


def of_weights(values: Numbers, weights: Numbers) -> Sample:
    """Means over different numbers of tokens, each of a text of its own."""
    places = np.arange(len(values))
    return Sample(values, weights, places, places)


@pytest.mark.parametrize("made", [normal, exponential])
@pytest.mark.parametrize("count", [12, 20])
def test_unequal_weights_are_marked_as_seldom_as_the_level_says(
    made: Callable[[Generator, int], Numbers], count: int
) -> None:
    """Such as those of LongPPL, whose key tokens are 1 to 28 in a window."""
    draw = np.random.default_rng(count)
    by_rule = 0
    by_student = 0
    for _ in range(2000):
        weights = np.maximum(draw.lognormal(1.5, 1.0, count).round(), 1)
        sample = of_weights(made(draw, count), weights)
        by_rule += sample.decided
        by_student += bool(ttest_1samp(sample.by_cluster, 0).pvalue < ALPHA)
    assert by_rule / 2000 <= allowed(2000)
    assert by_student / 2000 > 3 * ALPHA, "the negative control: as equal weights they are not"


def test_one_text_of_nearly_all_tokens_decides_nothing() -> None:
    """Twelve texts with 40 key tokens of 55 in one are worth 55^2 / 1625 = 1.9 equal ones."""
    weights = np.array([40.0, 3, 2, 2, *[1] * 8])
    draw = np.random.default_rng(7)
    sample = of_weights(draw.normal(5, 0.1, 12), weights)
    assert sample.equal_count == pytest.approx(55**2 / 1625)
    assert (sample.count, sample.margin, sample.decided) == (12, None, False)
    equal = of_weights(sample.values, np.full(12, 3.0))
    assert (equal.equal_count, equal.decided) == (12, True)


@pytest.mark.nightly
@pytest.mark.parametrize("count", [8, 12, 20, 50])
@pytest.mark.parametrize(
    ("made", "kind"), [(exponential, texts), (neighbours, windows), (normal, texts)]
)
def test_the_level_holds_in_long_simulations(
    made: Callable[[Generator, int], Numbers],
    kind: Callable[[Numbers], Sample],
    count: int,
) -> None:
    by_rule, _ = false_marks(made, kind, count, 20_000)
    assert by_rule <= allowed(20_000)


@pytest.mark.parametrize(("kind", "count"), [(texts, 12), (texts, 8), (windows, 20)])
def test_a_large_difference_is_marked(kind: Callable[[Numbers], Sample], count: int) -> None:
    draw = np.random.default_rng(5)
    marks = [kind(draw.normal(5, 1, count)).decided for _ in range(200)]
    assert np.mean(marks) > 0.8


def test_below_six_numbers_nothing_is_significant() -> None:
    draw = np.random.default_rng(1)
    assert [texts(draw.normal(9, 0.1, count)).margin for count in (2, 3, 5)] == [None] * 3
    assert windows(draw.normal(9, 0.1, 5)).margin is None
    assert texts(draw.normal(9, 0.1, 12)).decided


def test_the_bootstrap_is_wider_on_the_side_where_large_numbers_are_missed() -> None:
    """Few exponential numbers have too low a mean and too small an error at once."""
    values = np.random.default_rng(3).exponential(size=30)
    below = bootstrap_t(values - 5)
    assert below > 1.3 * bootstrap_t(values)
    assert bootstrap_t(5 - values) == pytest.approx(below), "the rule has no sides"
    # the quantile of every draw of normal numbers is near that of Student's t, 3.28 for n = 30
    assert 3 < bootstrap_t(np.random.default_rng(4).normal(size=30)) < 5


def test_effective_numbers_of_windows_are_fewer_where_neighbours_are_alike() -> None:
    draw = np.random.default_rng(2)
    one_text = np.zeros(400, np.int64)
    independent = effective_count(draw.normal(size=400), one_text)
    # (1 - r) / (1 + r) of 400 for r = 0.4 is 171; the correction adds 0.03 to r
    alike = effective_count(neighbours(draw, 400), one_text)
    assert independent > 340
    assert 120 < alike < 200


def test_only_windows_of_one_text_are_neighbours() -> None:
    values = np.repeat([1.0, 2.0, 3.0, 4.0], 2)
    alone = effective_count(values, np.arange(8))
    assert effective_count(values, np.repeat([0, 1, 2, 3], 2)) < alone


def test_rows_are_compared_on_the_items_that_both_have() -> None:
    own = {n: Number(3.0 + n + 0.1 * (n % 2), str(n)) for n in range(12)}
    other = {n: Number(2.0 + n, str(n)) for n in range(2, 20)}
    proof = prove(own, other)
    assert proof is not None
    assert (proof.count, proof.difference) == (10, pytest.approx(1.05))
    assert proof.decided
    assert prove(own, {30: Number(0.0)}) is None
    sample = differences(own, other)
    assert sample is not None
    assert sample.error == pytest.approx(np.std([0.0, 0.1] * 5, ddof=1) / math.sqrt(10))


def test_a_weight_counts_as_so_many_tokens() -> None:
    """The weighted mean and the error of a ratio, computed by hand."""
    values = np.array([1.0, 2.0, 4.0])
    weights = np.array([1.0, 1.0, 2.0])
    sample = Sample(values, weights, np.arange(3), np.arange(3))
    assert sample.mean == 2.75
    # m + n w (x - m) / sum w: 2.75 + 3 / 4 * (-1.75, -0.75, 2.5)
    assert sample.by_cluster == pytest.approx([1.4375, 2.1875, 4.625])
    # shares h = 1/4, 1/4, 1/2 and h e = -0.4375, -0.1875, 0.625; 1 - 2 h + sum h^2 = 0.875, 0.875,
    # 0.375
    squares = 0.4375**2 / 0.875 + 0.1875**2 / 0.875 + 0.625**2 / 0.375
    assert sample.error == pytest.approx(math.sqrt(squares))
    assert sample.equal_count == pytest.approx(16 / 6)
    assert sample.cluster_means == pytest.approx(values)


def test_the_bootstrap_of_equal_weights_needs_no_weights() -> None:
    values = np.random.default_rng(3).exponential(size=30)
    assert bootstrap_t(values, np.full(30, 1 / 30)) == bootstrap_t(values)
    unequal = np.random.default_rng(4).lognormal(1.5, 1.0, 30)
    assert bootstrap_t(values, unequal / unequal.sum()) != bootstrap_t(values)


def test_answers_need_mcnemars_test_too() -> None:
    few = judge(texts(np.full(9, -1.0)), share=True)
    many = judge(texts(np.full(10, -1.0)), share=True)
    assert (few.decided, many.decided) == (False, True)
    # ten of sixteen answers are lost
    some = judge(texts(np.array([-1.0] * 10 + [0.0] * 6)), share=True)
    assert some.decided


def answered(right: int, count: int) -> Sample:
    """So many right answers, each of a window of its own, in an order by chance."""
    answers = np.zeros(count)
    answers[:right] = 1
    return windows(np.random.default_rng(right).permutation(answers))


@pytest.mark.parametrize("number", [0.5, 0.9, 0.95])
@pytest.mark.parametrize("count", [12, 40, 50])
def test_a_share_that_is_the_number_is_marked_as_rarely_as_the_level_says(
    count: int, number: float
) -> None:
    """The probability of each number of right answers is that of the binomial distribution."""
    marked = sum(
        binom.pmf(right, count, number)
        for right in range(count + 1)
        if judge_share(answered(right, count), number).decided
    )
    assert marked <= ALPHA


def test_a_share_far_from_a_number_is_told_from_it() -> None:
    """By the intervals of scipy: 40 of 40 are above 0.8 and not above 0.9."""
    exact = binomtest(40, 40).proportion_ci(1 - ALPHA, "exact")
    assert 0.8 < exact.low < 0.9
    above = judge_share(answered(40, 40), 0.8)
    assert (above.decided, above.difference) == (True, pytest.approx(0.2))
    assert above.margin == pytest.approx(1 - exact.low)
    assert not judge_share(answered(40, 40), 0.9).decided
    assert judge_share(answered(20, 40), 0.9).decided
    assert judge_share(answered(5, 5), 0.01).margin is None, "too few questions"


def test_answers_of_one_text_that_are_alike_count_less() -> None:
    documents = np.repeat(np.arange(12), 5)
    places = np.arange(60)
    alike = Sample(np.repeat([1.0] * 9 + [0.0] * 3, 5), np.ones(60), documents, places)
    mixed = Sample(np.tile([1.0, 1.0, 1.0, 1.0, 0.0], 12)[:60], np.ones(60), documents, places)
    assert alike.mean == pytest.approx(0.75)
    assert not judge_share(alike, 0.5).decided
    assert judge_share(mixed, 0.5).decided
