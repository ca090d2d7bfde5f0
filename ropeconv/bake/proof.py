"""The rule by which two rows of numbers differ, for `eval`, `tune`, `--fail-if` and `advise` alike.

Two rows are compared on the items that both have: the same tokens of the same text, or the same
question. `prove` pairs them and is the function to read first; `Sample.margin` is the rule.

A difference counts where its mean is farther from 0 than `Sample.margin`:

- Items of one text are alike, so a text is one number where there are enough texts. With few texts
  the numbers are windows, and neighbours in a text may be alike too: `effective_count` of them are
  independent. Where they have different weights, such as numbers of tokens, `equal_count` of equal
  ones are worth as much.
- Student's t assumes a normal distribution. Losses of a model that fails on some texts are skewed,
  so the bootstrap-t distribution of the mean (Efron and Tibshirani 1993, chapter 12.5) counts where
  it is wider.
- A difference of shares passes McNemar's test too.

`scripts/research/coverage.py` simulates how often the rule marks a difference that is none.
"""

import math
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, cached_property, lru_cache
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

ALPHA = math.erfc(3 / math.sqrt(2))
"""The level of a test: the two-sided probability of more than three standard errors in a normal
distribution.
"""
FEWEST = 6
"""Texts or windows of equal weight below which no difference is tested."""
LEAST_FREEDOM = 3
"""Degrees of freedom of windows that are much alike: their error has grown enough by then."""
FEWEST_DOCUMENTS = 6
"""Texts from which errors are between texts, otherwise between windows."""

DRAWS = 20_000
"""Draws of the bootstrap-t. 2.7 of them lie beyond the quantile that is read."""
TAIL = 20
"""The bootstrap-t quantile is read at ALPHA / TAIL on the side of the mean.

That is a tenth of ALPHA / 2. With 6 to 50 skewed numbers the distribution of the draws is too
narrow in its tail; read at ALPHA / 2 it marks 0.8 to 2 % instead of 0.27 %.
"""
MOST_DRAWN = 512
"""Numbers from which on the mean is taken as normal, and the bootstrap is left out."""


@cache
def critical(freedom: float, alpha: float = ALPHA) -> float:
    """Return the two-sided critical value of Student's t.

    It is 9.22 for 3 degrees of freedom, and 3.00 for many.
    """
    from scipy.stats import t as student  # takes a second to import

    return float(student.isf(alpha / 2, freedom))


class Measured(Protocol):
    """A number with its place: an observation of `eval`, or an item of the record."""

    @property
    def value(self) -> float:
        """The number."""

    @property
    def weight(self) -> int:
        """How many tokens it is a mean over, where items differ in that."""

    @property
    def document(self) -> Hashable:
        """The text."""

    @property
    def window(self) -> int:
        """The place in the text, or the number of the question."""


@dataclass(frozen=True, eq=False)
class Sample:
    """Numbers that are averaged."""

    values: NDArray[np.float64]
    """float64 [n]"""

    weights: NDArray[np.float64]
    """float64 [n]"""

    documents: NDArray[np.int64]
    """The code of the text of each number, from 0 on, int [n]."""

    windows: NDArray[np.int64]
    """The code of the window in the text of each number, from 0 on, int [n]."""

    @property
    def mean(self) -> float:
        """The weighted mean."""
        return float(np.average(self.values, weights=self.weights))

    @cached_property
    def by_document(self) -> bool:
        """Whether the clusters are texts."""
        return bool(self.documents.max(initial=-1) + 1 >= FEWEST_DOCUMENTS)

    @property
    def clusters(self) -> NDArray[np.int64]:
        """Codes of what is one number: texts if there are enough, else windows."""
        return self.documents if self.by_document else self.windows

    @cached_property
    def count(self) -> int:
        """The number of clusters."""
        return int(self.clusters.max(initial=-1)) + 1

    @cached_property
    def by_cluster(self) -> NDArray[np.float64]:
        """A number for each cluster whose plain mean is the weighted mean, float64 [count].

        With the weights w_i, the values x_i, the mean m and n clusters, that of cluster c is

            m + n sum_{i in c} w_i (x_i - m) / sum_i w_i
        """
        mean = self.mean
        deviations = np.bincount(self.clusters, self.weights * (self.values - mean))
        numbers: NDArray[np.float64] = mean + self.count * deviations / self.weights.sum()
        return numbers

    @cached_property
    def shares(self) -> NDArray[np.float64]:
        """The weight of each cluster over the sum of all weights, float64 [count]."""
        shares: NDArray[np.float64] = np.bincount(self.clusters, self.weights) / self.weights.sum()
        return shares

    @property
    def cluster_means(self) -> NDArray[np.float64]:
        """The weighted mean of each text, or of each window where there are few texts."""
        sums = np.bincount(self.clusters, self.weights * self.values)
        means: NDArray[np.float64] = sums / np.bincount(self.clusters, self.weights)
        return means

    @cached_property
    def equal_count(self) -> float:
        """How many clusters of equal weight the mean is worth (Kish 1965): `count` for equal ones.

        With the shares h_c of the weights it is 1 / sum h_c^2: 1.9 for a text of 40 key tokens
        beside eleven of one to three.
        """
        return round(1 / float((self.shares**2).sum()), 9)

    @cached_property
    def error(self) -> float | None:
        """The standard error of the mean between clusters; None for a single cluster.

        With the share h_c of the weights, the difference e_c of a cluster to the mean, and S = sum
        h_c^2, its square is

            sum_c h_c^2 e_c^2 / (1 - 2 h_c + S)

        since the mean of e_c^2 is the variance of a cluster times that divisor: the mean follows a
        cluster of much weight, whose e_c is then small. For n clusters of equal weight this is s /
        sqrt(n).
        """
        if self.count < 2:
            return None
        parts = (self.by_cluster - self.mean) / self.count  # h_c e_c
        divisors = 1 - 2 * self.shares + float((self.shares**2).sum())
        return math.sqrt(float((parts**2 / divisors).sum()))

    @cached_property
    def independent_share(self) -> float:
        """The share of the clusters that are independent of others; texts all are."""
        if self.by_document:
            return 1.0
        documents_of_windows = np.zeros(self.count, np.int64)
        documents_of_windows[self.windows] = self.documents
        return effective_count(self.by_cluster, documents_of_windows) / self.count

    @property
    def effective_count(self) -> float:
        """How many independent clusters of equal weight the mean is worth."""
        return self.equal_count * self.independent_share

    @cached_property
    def student_margin(self) -> float | None:
        """The margin of Student's t without the bootstrap; None where nothing can be tested."""
        if self.error is None or self.equal_count < FEWEST:
            return None
        freedom = max(self.effective_count - 1, LEAST_FREEDOM)
        return critical(freedom) * self.error / math.sqrt(self.independent_share)

    @cached_property
    def margin(self) -> float | None:
        """How far from 0 the mean must be to be significant; None for too few numbers.

        It is the larger of the margin of Student's t test and the margin of a bootstrap. The
        bootstrap also holds for skewed numbers, but takes time.
        """
        student_margin = self.student_margin
        if student_margin is None or self.error is None:
            return None

        # no bootstrap where the mean is not significant by Student's t test, or where all numbers
        # are equal and so have no skew
        is_significant_by_student = abs(self.mean) > student_margin
        has_spread = self.by_cluster.std() > 0
        if not is_significant_by_student or not has_spread:
            return student_margin

        # The standard error s / sqrt(n) is for n independent numbers. Numbers from one text are
        # alike, so n numbers count as fewer independent numbers, n_eff. The standard error is then
        # s / sqrt(n_eff) = s / sqrt(n) / sqrt(n_eff / n).
        standard_error = self.error / math.sqrt(self.independent_share)
        standard_errors_from_0 = bootstrap_t(self.cluster_means, self.shares)
        return max(student_margin, standard_errors_from_0 * standard_error)

    @property
    def decided(self) -> bool:
        """Whether the mean is significantly different from 0."""
        return self.margin is not None and abs(self.mean) > self.margin


def effective_count(values: NDArray[np.float64], documents: NDArray[np.int64]) -> float:
    """Return how many independent numbers the correlated windows of a few texts are worth.

    n windows, each with the correlation r to the window before it, are worth n (1 - r) / (1 + r)
    independent numbers. A measured r is too small by (1 + 4 r) / n in the mean (Marriott and Pope
    1954). This bias is added to r, and half a standard error, 0.5 / sqrt(n).

    Args:
        values: A number for each window, in the order of the text, float64 [n].
        documents: The number of the text of each window, int [n].
    """
    # the correlation of each window with the one before it in its text
    count = len(values)
    deviations = values - values.mean()
    squares = float((deviations**2).sum())
    if squares == 0.0:
        return float(count)
    is_of_same_text = documents[1:] == documents[:-1]
    products = deviations[1:] * deviations[:-1]
    measured = float(products[is_of_same_text].sum()) / squares

    # add the bias and half a standard error
    bias = (1 + 4 * max(measured, 0.0)) / count
    half_error = 0.5 / math.sqrt(count)
    correlation = min(max(measured + (bias + half_error), 0.0), 0.95)
    return count * (1 - correlation) / (1 + correlation)


@lru_cache(4)
def _draws(count: int) -> NDArray[np.float64]:
    """How often each of `count` numbers is drawn, float64 [DRAWS, count]; always the same."""
    random = np.random.default_rng((0, count))
    return random.multinomial(count, np.full(count, 1 / count), DRAWS).astype(np.float64)


def bootstrap_t(values: NDArray[np.float64], shares: NDArray[np.float64] | None = None) -> float:
    """Return how many standard errors from 0 a mean must be to be significant, by a bootstrap.

    This is the bootstrap-t of Efron and Tibshirani 1993, chapter 12.5. From n numbers with the mean
    m, n numbers are drawn with replacement, many times. A draw with the mean m' and the standard
    error s' gives

        t = (m' - m) / s'

    The result is a high quantile of t, since the mean m must be further from 0 than nearly all
    draws are from m. For 30 normal numbers it is about 4, and for skewed numbers it is larger on
    one side.

    Args:
        values: The numbers, float64 [n].
        shares: The weight of each number over the sum of the weights, float64 [n]; None for equal
            weights. A number that is drawn twice has its weight twice.

    Returns:
        The quantile; 0 for more than MOST_DRAWN numbers, for which Student's t test is enough.
    """
    count = len(values)  # n
    if count > MOST_DRAWN:
        return 0.0
    if shares is None:
        shares = np.full(count, 1 / count)
    # m' - m is the mean of a draw from these; for m < 0 the signs are changed, so that the quantile
    # is always on the high side
    mean = float(shares @ values)
    deviations = values - mean
    if mean < 0:
        deviations = -deviations

    # how often each number is in each draw, [draws, n]
    draws = _draws(count)
    drawn_weight = draws @ shares  # 1 for equal weights, [draws]
    means = draws @ (shares * deviations) / drawn_weight  # m' - m

    # s'^2 = n / (n - 1) sum w^2 (d - d')^2 / (sum w)^2, over the numbers of a draw with the weights
    # w, the deviations d and their mean d': the variance over n for equal weights, [draws]
    squared_shares = shares**2
    sums = draws @ (squared_shares * deviations**2)
    sums -= 2 * means * (draws @ (squared_shares * deviations))
    sums += means**2 * (draws @ squared_shares)
    variances = sums / drawn_weight**2 * count / (count - 1)

    # A draw that is n times the same number has s' = 0, for which t would be infinite. So s' is at
    # least a share of 1 / n of the standard error of all numbers.
    variance = float((squared_shares * deviations**2).sum()) * count / (count - 1)
    errors = np.sqrt(np.maximum(variances, variance / count**2))

    # The level of the tests is ALPHA (0.0027), or ALPHA / 2 for each side. Draws of few skewed
    # numbers have too few extreme values, so the quantile is taken at ALPHA / 20 (TAIL).
    quantile = 1 - ALPHA / TAIL
    return float(np.quantile(means / errors, quantile, method="higher"))


def sample_of(measured: Sequence[Measured], values: Iterable[float] | None = None) -> Sample:
    """Return numbers with the text and the window of each, for the statistics of their mean.

    Args:
        measured: The numbers with their texts and windows, in the order of the text.
        values: Other numbers for the same windows; None for the numbers in `measured`.
    """
    if values is None:
        values = [item.value for item in measured]
    # each text numbers its windows from 0, so a window is named by both: ("book.txt", 3)
    documents = [item.document for item in measured]
    windows = [(item.document, item.window) for item in measured]
    return Sample(
        values=np.array(list(values), np.float64),
        weights=np.array([item.weight for item in measured], np.float64),
        documents=codes(documents),
        windows=codes(windows),
    )


def codes(names: Iterable[Hashable]) -> NDArray[np.int64]:
    """Return a number from 0 on for each different name, int64 [n]: 0, 1, 0 for a, b, a."""
    known: dict[Hashable, int] = {}
    numbers = []
    for name in names:
        if name not in known:
            known[name] = len(known)
        numbers.append(known[name])
    return np.array(numbers, np.int64)


def differences(own: Mapping[Any, Measured], other: Mapping[Any, Measured]) -> Sample | None:
    """Return a sample of differences, `own` minus `other`; None where nothing can be paired.

    Args:
        own: Numbers by the key that pairs them, such as text and window.
        other: The numbers of another row or length.
    """
    common_keys = [key for key in own if key in other]
    if not common_keys:
        return None
    # texts one after the other, and each from its beginning: neighbours may be alike
    common_keys.sort(key=lambda key: (str(own[key].document), own[key].window))
    values = [own[key].value - other[key].value for key in common_keys]
    return sample_of([own[key] for key in common_keys], values)


@dataclass(frozen=True)
class Proof:
    """A paired difference of two rows."""

    difference: float
    """The first minus the second."""

    error: float | None
    """Its standard error; None for a single text or window."""

    margin: float | None
    """How far from 0 the difference must be to count; None where that cannot be tested."""

    count: int
    """The number of texts, or of windows where there are few texts."""

    @property
    def decided(self) -> bool:
        """Whether the difference counts."""
        return self.margin is not None and abs(self.difference) > self.margin


def prove(
    own: Mapping[Any, Measured], other: Mapping[Any, Measured], share: bool = False
) -> Proof | None:
    """Compare two rows of numbers on what both have; None where that is nothing.

    Args:
        own: Numbers of the first row, by the key that pairs them.
        other: Numbers of the second row.
        share: Whether they are shares of right answers.
    """
    sample = differences(own, other)
    return None if sample is None else judge(sample, share)


def judge(sample: Sample, share: bool = False) -> Proof:
    """Return the mean of the differences between two methods, with its error and its margin.

    The margin is how far from 0 the mean must be to be significant.

    Args:
        sample: The differences, one for each window of a text or for each question.
        share: False for differences of losses. True for differences of answers: 1 if only the first
            method is right, -1 if only the second is right, 0 otherwise.
    """
    # losses: the larger margin of Student's t test and a bootstrap
    if not share:
        return Proof(sample.mean, sample.error, sample.margin, sample.count)

    # Answers: the larger margin of Student's t test and McNemar's test, which counts the questions
    # that only one method answers. McNemar's test also works if all differences are 1, so that
    # they have no spread for Student's t test.
    error_by_mcnemar = mcnemar_error(sample)
    error = max(error_by_mcnemar, sample.error or 0.0)
    margin = sample.student_margin  # None for too few differences
    if margin is not None:
        margin = max(3 * error_by_mcnemar, margin)  # 3 standard errors are the level ALPHA
    return Proof(sample.mean, error, margin, sample.count)


def mcnemar_error(sample: Sample) -> float:
    """Return the standard error of a paired difference of shares if there is no difference.

    McNemar's test has this error. Ten answers that are all lost are three errors, as in an
    exact test; the spread of their differences is 0. At least one answer is taken to differ.
    """
    share = sample.weights / sample.weights.sum()
    squares = float(((share * sample.values) ** 2).sum())
    of_one_answer = float((share**2).mean())
    return math.sqrt(max(squares, of_one_answer))


def judge_share(answers: Sample, number: float) -> Proof:
    """Compare a share of right answers with a number, such as 57 of 60 with 0.9.

    The number must be outside the exact interval of the share (Clopper and Pearson 1934,
    https://doi.org/10.1093/biomet/26.4.404), and farther from it than the margin of Student's t.

    Args:
        answers: Shares of right answers, one for each question.
        number: The number, from 0 to 1.

    Raises:
        ValueError: The number is outside these.
    """
    from scipy.stats import beta  # takes a second to import

    share = answers.mean
    count = _surely_independent_answers(answers)
    right = share * count
    if share > number:
        low = float(beta.ppf(ALPHA / 2, right, count - right + 1))
        exact_margin = share - low
    else:
        # a share of 1 is 1 at most
        high = float(beta.isf(ALPHA / 2, right + 1, count - right)) if share < 1 else 1.0
        exact_margin = high - share

    margin = answers.student_margin  # None for too few questions
    if margin is not None:
        margin = max(margin, exact_margin)
    error = max(math.sqrt(number * (1 - number) / count), answers.error or 0.0)
    return Proof(share - number, error, margin, answers.count)


def _surely_independent_answers(answers: Sample) -> float:
    """Return how many independent answers a share is worth, with a margin for what is not known.

    m answers of each of n texts, any two of a text with the correlation r, are worth
    n m / (1 + (m - 1) r) independent ones. As in `effective_count`, the bias of a measured r and
    half a standard error are added to it.
    """
    total = len(answers.values)
    if not answers.by_document:
        return total
    texts = answers.count  # n
    per_text = total / texts  # m
    if per_text <= 1:
        return total
    worth = independent_answers(answers)
    measured = (total / worth - 1) / (per_text - 1)
    bias = (1 + 4 * measured) / texts
    half_error = 0.5 / math.sqrt(texts)
    correlation = min(measured + bias + half_error, 1.0)
    return total / (1 + (per_text - 1) * correlation)


NORMAL_95 = 1.959964


def wilson(share: float, count: float, errors: float = NORMAL_95) -> tuple[float, float]:
    """Return the interval of a share, such as (0.70, 0.97) for 90 % of 20 answers.

    As in Wilson 1927, https://doi.org/10.1080/01621459.1927.10502953. scipy.stats.binomtest has it
    for whole numbers of answers; those that `independent_answers` returns are fractions.

    Args:
        share: The share, from 0 to 1.
        count: The number of answers.
        errors: The width of the interval, in standard errors to each side.
    """
    # (p + z^2/2n +- z sqrt(p (1 - p) / n + z^2/4n^2)) / (1 + z^2/n)
    square = errors**2 / count
    middle = (share + square / 2) / (1 + square)
    variance = share * (1 - share) / count + square / (4 * count)
    half = errors * variance**0.5 / (1 + square)
    return max(0.0, middle - half), min(1.0, middle + half)


def independent_answers(sample: Sample) -> float:
    """Return how many independent answers a sample of shares is worth.

    They are fewer than it has where those of one text are alike.
    """
    answers = len(sample.values)
    if not sample.by_document or not sample.error:
        return answers
    # n independent answers have the variance p (1 - p) / n, which is solved for n
    share = sample.mean
    independent = share * (1 - share) / sample.error**2
    return max(1.0, min(answers, independent))
