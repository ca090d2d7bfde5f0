"""Means, errors and differences of an evaluation, and what follows from them.

`summarise` is the function to read first. `cells_of` makes the cells of a row, each from a
`Sample` of numbers.
"""

import math
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ropeconv.inspection.receipts.metrics import GROWTH, metric_of
from ropeconv.rope.errors import counted
from ropeconv.verbs.rows import Row

from .cases import EvaluationSizes, Observation
from .result import ALPHA, FEWEST, FEWEST_DOCUMENTS, Cell, RowResult, margin
from .run import RunOutcome

RESAMPLES = 2000
"""Draws of the bootstrap, which make its error uncertain by 1.6 % (1 / sqrt(2 * 2000))."""
Key = tuple[str, str, int, float | None]
"""Measure, metric, column, and depth; None for the mean over depths."""
Pairs = Mapping[tuple[object, ...], Observation]


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

    seed: int = 0
    """The seed of the bootstrap."""

    @property
    def mean(self) -> float:
        """The weighted mean."""
        return float(np.average(self.values, weights=self.weights))

    @cached_property
    def by_document(self) -> bool:
        """Whether the clusters are documents."""
        return bool(self.documents.max(initial=-1) + 1 >= FEWEST_DOCUMENTS)

    @property
    def clusters(self) -> NDArray[np.int64]:
        """Codes of what is taken as independent: documents if there are enough, else windows."""
        return self.documents if self.by_document else self.windows

    @cached_property
    def count(self) -> int:
        """The number of clusters."""
        return int(self.clusters.max(initial=-1)) + 1

    @cached_property
    def error(self) -> float | None:
        """The standard error of the mean; None for a single cluster.

        Clusters are the documents, or with few of them the windows: numbers of one cluster are not
        independent. With documents as clusters the error is from a bootstrap. With windows, the
        weights w_i, the values x_i and the mean m, it is

            sqrt(sum_c (sum_{i in c} w_i (x_i - m))^2) / sum_i w_i

        Both are multiplied by sqrt(n / (n - 1)) for n clusters, since few clusters would otherwise
        give an error that is too small.
        """
        if self.count < 2:
            return None
        # np.bincount(clusters, numbers) is the sum of the numbers in each cluster
        weights = np.bincount(self.clusters, self.weights)
        if self.by_document:
            sums = np.bincount(self.clusters, self.weights * self.values)
            error = bootstrap_error(sums, weights, self.seed)
        else:
            weighted_deviations = self.weights * (self.values - self.mean)
            deviations = np.bincount(self.clusters, weighted_deviations)
            error = float(np.sqrt((deviations**2).sum()) / weights.sum())
        return error * math.sqrt(self.count / (self.count - 1))

    @property
    def margin(self) -> float | None:
        """How far from 0 the mean must be to be significant; None where that cannot be tested."""
        return margin(self.error, self.count)

    @property
    def decided(self) -> bool:
        """Whether the mean is significantly different from 0."""
        return self.margin is not None and abs(self.mean) > self.margin


def bootstrap_error(sums: NDArray[Any], weights: NDArray[Any], seed: int) -> float:
    """Return the standard error of a weighted mean, from draws of clusters with replacement.

    Args:
        sums: The weighted sum of each cluster, float64 [n].
        weights: The weight of each cluster, float64 [n].
        seed: The seed of the draws.
    """
    from scipy.stats import bootstrap  # takes a second to import

    count = len(sums)
    result = bootstrap(
        (sums, weights),
        _ratio_of_sums,
        paired=True,
        n_resamples=RESAMPLES,
        method="percentile",  # of the interval, which is not used; the default needs more draws
        rng=np.random.default_rng((seed, count)),
    )
    return float(result.standard_error)


def _ratio_of_sums(sums: NDArray[Any], weights: NDArray[Any], axis: int) -> NDArray[Any]:
    """Return the weighted mean of each draw."""
    ratio: NDArray[Any] = sums.sum(axis) / weights.sum(axis)
    return ratio


def sample_of(
    observations: Sequence[Observation], seed: int, values: Iterable[float] | None = None
) -> Sample:
    """Return a sample of observations, at least one.

    Args:
        observations: The observations.
        seed: The seed of the bootstrap.
        values: Replace the values of the observations.
    """
    if values is None:
        values = [observation.value for observation in observations]
    weights = [observation.weight for observation in observations]
    documents = [observation.document for observation in observations]
    # windows are numbered in each document, so that both numbers name one
    windows = [(observation.document, observation.window) for observation in observations]
    return Sample(
        values=np.array(list(values), np.float64),
        weights=np.array(weights, np.float64),
        documents=codes(documents),
        windows=codes(windows),
        seed=seed,
    )


def differences(own: Pairs, other: Pairs, seed: int) -> Sample | None:
    """Return a sample of differences, `own` minus `other`; None where nothing can be paired.

    Args:
        own: Observations by the key that pairs them, such as document and window.
        other: Those of another row or length.
        seed: The seed of the bootstrap.
    """
    common = [key for key in own if key in other]
    if not common:
        return None
    values = [own[key].value - other[key].value for key in common]
    return sample_of([own[key] for key in common], seed, values)


def codes(names: Iterable[Hashable]) -> NDArray[np.int64]:
    """Return a number from 0 on for each different name, int64 [n]: 0, 1, 0 for a, b, a."""
    known: dict[Hashable, int] = {}
    numbers = []
    for name in names:
        if name not in known:
            known[name] = len(known)
        numbers.append(known[name])
    return np.array(numbers, np.int64)


NORMAL_95 = 1.959964


def wilson(share: float, count: float, errors: float = NORMAL_95) -> tuple[float, float]:
    """Return the interval of a share.

    As in Wilson 1927, https://doi.org/10.1080/01621459.1927.10502953. scipy.stats.binomtest has it
    for whole numbers of answers; those that `effective_count` returns are fractions.

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


def effective_count(sample: Sample) -> float:
    """Return how many independent answers a sample of shares is worth.

    They are fewer than it has where those of one document are alike.
    """
    answers = len(sample.values)
    if not sample.by_document or not sample.error:
        return answers
    # n independent answers have the variance p (1 - p) / n, which is solved for n
    share = sample.mean
    independent = share * (1 - share) / sample.error**2
    return max(1.0, min(answers, independent))


def mcnemar_error(sample: Sample) -> float:
    """Return the standard error of a paired difference of shares if there is no difference.

    McNemar's test has this error. Ten answers that are all lost are three errors, as in an
    exact test; the spread of their differences is 0. At least one answer is taken to differ.
    """
    share = sample.weights / sample.weights.sum()
    squares = float(((share * sample.values) ** 2).sum())
    of_one_answer = float((share**2).mean())
    return math.sqrt(max(squares, of_one_answer))


def difference_error(sample: Sample, share: bool) -> tuple[float | None, float | None]:
    """Return the standard error of a paired difference, and the margin of its significance.

    For a difference of shares, such as of right answers, the spread between clusters can be 0:
    where all answers change in the same way. Its error is therefore at least that of McNemar's
    test, and its margin at least three of these errors.

    Args:
        sample: The differences.
        share: Whether they are differences of shares.
    """
    if not share:
        return sample.error, sample.margin
    least_error = mcnemar_error(sample)
    error = max(least_error, sample.error or 0.0)
    if sample.margin is None:
        return error, None
    least_significant = max(3 * least_error, sample.margin)
    return error, least_significant


def cells_of(
    row: str, observations: Sequence[Observation], first: Sequence[Observation] | None, seed: int
) -> list[Cell]:
    """Return the cells of a row, over all depths and for each.

    A cell is a mean with its error, such as the loss at 8,192 tokens.

    Args:
        row: The name of the row.
        observations: Its observations.
        first: The observations of the first row; None in that row.
        seed: The seed of the bootstrap.
    """
    # For each cell, the observations of this row and of the first one. Those of one window have the
    # same key in both, so that they can be paired.
    by_cell = _by_key(observations)
    first_by_cell = _by_key(first or [])
    cells = []
    for key, pairs in by_cell.items():
        first_pairs = first_by_cell.get(key, {})
        cells.append(_cell(row, key, pairs, first_pairs, seed))
    return cells


def _by_key(
    observations: Sequence[Observation],
) -> dict[Key, dict[tuple[object, ...], Observation]]:
    """Group observations by the cells of the result that they belong to.

    Returns:
        By cell, in the order of the measures and columns, its observations by the key that pairs
        them with those of another row.
    """
    cells: dict[Key, dict[tuple[object, ...], Observation]] = {}
    order: dict[tuple[str, str], int] = {}
    for observation in observations:
        measure = observation.measure
        metric = observation.metric
        order.setdefault((measure, metric), len(order))

        # an observation with a depth belongs to two cells: the mean over depths, and its depth
        depths: list[float | None] = [None]
        if observation.depth is not None:
            depths.append(observation.depth)
        for depth in depths:
            key = (measure, metric, observation.column, depth)
            cells.setdefault(key, {})[observation.pair] = observation

    # In the order of measures, columns and depths, the mean over depths first. The mean (None) and
    # depth 0 both get -1 here. Sorting keeps the order of equals, and the mean was added first.
    def place(key: Key) -> tuple[int, int, float]:
        measure, metric, column, depth = key
        return order[measure, metric], column, depth or -1.0

    return {key: cells[key] for key in sorted(cells, key=place)}


def _cell(row: str, key: Key, pairs: Pairs, first: Pairs, seed: int) -> Cell:
    """Compute a cell: its mean, its error, and its difference to the same cell of the first row.

    Errors are standard errors. Those of a share, such as the right answers, are from Wilson's
    interval: its half-width at z = 1 is the error, and at z = 1.96 it is the shown interval. The
    deviation of 20 right answers out of 20 would be 0.

    Args:
        row: The name of the row.
        key: Measure, metric, column and depth.
        pairs: The observations of the row, by the key that pairs them.
        first: The observations of the first row; empty in that row.
        seed: The seed of the bootstrap.
    """
    measure, metric, column, depth = key
    is_share = metric_of(metric).share
    sample = sample_of(list(pairs.values()), seed)
    error = sample.error
    low = None
    high = None
    if is_share:
        count = effective_count(sample)
        low, high = wilson(sample.mean, count)
        share = min(1.0, max(0.0, sample.mean))  # a mean of ones may be rounded to above 1
        lower, upper = wilson(share, count, errors=1.0)
        error = (upper - lower) / 2

    # the difference to the first row, over the windows that both have read
    paired = differences(pairs, first, seed)
    difference = None
    paired_error = None
    least_significant = None
    clusters = sample.count
    if paired:
        difference = paired.mean
        paired_error, least_significant = difference_error(paired, is_share)
        clusters = paired.count
    return Cell(
        row=row,
        measure=measure,
        metric=metric,
        column=column,
        depth=depth,
        value=sample.mean,
        error=error,
        low=low,
        high=high,
        windows=len(set(sample.windows.tolist())),
        documents=len(set(sample.documents.tolist())),
        clusters=clusters,
        difference=difference,
        difference_error=paired_error,
        margin=least_significant,
    )


def holds_to(observations: Sequence[Observation], trained: int, seed: int) -> int | None:
    """Return the longest length at which the loss is not significantly above the row's lowest.

    The measure growth has the loss of the same tokens after contexts of several lengths, so two
    lengths are compared window by window. Lengths behind one that is significantly worse do not
    count.

    Args:
        observations: The observations of a row.
        trained: The trained context in tokens.
        seed: The seed of the bootstrap.

    Returns:
        The length in tokens; None where the trained length was not measured, and with fewer than
        four clusters.
    """
    by_length: dict[int, dict[tuple[object, ...], Observation]] = {}
    for observation in observations:
        if observation.measure == GROWTH:
            place = (observation.document, observation.window)
            by_length.setdefault(observation.column, {})[place] = observation
    if trained not in by_length:
        return None

    best = _length_of_lowest_loss(by_length)
    if best is None:
        return None
    sample_at_best = sample_of(list(by_length[best].values()), seed)
    if sample_at_best.count < FEWEST:
        return None

    longest = best
    for length in sorted(by_length):
        if length <= best:
            continue
        difference = differences(by_length[length], by_length[best], seed)
        if difference is None or difference.margin is None:
            break
        is_worse = difference.mean > difference.margin
        if is_worse:
            break
        longest = length
    return longest


def _length_of_lowest_loss(by_length: Mapping[int, Pairs]) -> int | None:
    """Return the length whose mean loss is the lowest; None where no window has all lengths.

    A run that was stopped has not read each window at each length. Means are compared over the
    windows that all lengths have.

    Args:
        by_length: The losses by length in tokens, and by document and window.
    """
    windows_by_length = [set(observations) for observations in by_length.values()]
    common = set.intersection(*windows_by_length)
    if not common:
        return None
    means = {}
    for length, observations in by_length.items():
        means[length] = float(np.mean([observations[window].value for window in common]))
    return min(means, key=lambda length: means[length])


def notes(cells: Sequence[Cell]) -> list[str]:
    """Return the sentences below the tables on what errors and marks mean.

    Args:
        cells: The cells of all rows.
    """
    whole = [cell for cell in cells if cell.depth is None]
    sentences = _notes_on_texts(whole)

    # too few windows for a test
    untested = list(dict.fromkeys(cell.measure for cell in whole if cell.clusters < FEWEST))
    if untested:
        # a window of longppl without a key token does not count, and more targets have more of them
        sizes = "--windows and --targets" if "longppl" in untested else "--windows"
        sentences.append(
            f"{', '.join(untested)}: fewer than {FEWEST} windows, so no difference is tested;"
            f" increase {sizes}, or give longer texts."
        )

    # many tests find a difference by chance: 30 tests at p < 0.0027 mark 0.08 on average
    tested = sum(cell.margin is not None for cell in whole)
    if tested:
        expected = tested * ALPHA
        about = f"about {expected:.1f}" if expected >= 0.05 else "fewer than 0.1"
        were_tested = counted(tested, "difference was", "differences were")
        sentences.append(f"{were_tested} tested at p < {ALPHA:.4f}; chance would mark {about}.")
    return sentences


def _notes_on_texts(cells: Sequence[Cell]) -> list[str]:
    """Return a sentence on the measures that were read from too few texts.

    With enough texts, the texts are the clusters of the errors. With fewer, the windows are, and
    the errors do not cover how texts differ.
    """
    measures_by_texts: dict[int, list[str]] = {}
    for cell in cells:
        if cell.documents < FEWEST_DOCUMENTS and cell.windows > cell.documents:
            measures = measures_by_texts.setdefault(cell.documents, [])
            if cell.measure not in measures:
                measures.append(cell.measure)

    sentences = []
    for count, measures in sorted(measures_by_texts.items()):
        texts = counted(count, "text")
        sentences.append(
            f"{', '.join(measures)}: the errors are between windows of {texts} and do not cover the"
            f" difference between texts; give at least {FEWEST_DOCUMENTS} texts for that."
        )
    return sentences


@dataclass(frozen=True)
class EvaluationSummary:
    """The numbers for a `Result`."""

    rows: list[RowResult]
    """The rows in the order of the table."""

    cells: list[Cell]

    notes: list[str]
    """Sentences for below the table."""


def summarise(
    outcome: RunOutcome, rows: Sequence[Row], sizes: EvaluationSizes
) -> EvaluationSummary:
    """Return means, errors, differences to the first row that ran, and what follows from them.

    Args:
        outcome: The outcome of the run, which may have been stopped.
        rows: The rows of the table.
        sizes: The sizes of the evaluation.
    """
    # the first row may have been refused; then the next one is what the others are compared with
    observations = outcome.observations
    first = None
    for row in rows:
        if observations.get(row.name):
            first = row.name
            break

    cells: list[Cell] = []
    for row in rows:
        compared_with = None
        if first is not None and row.name != first:
            compared_with = observations[first]
        cells += cells_of(row.name, observations.get(row.name, []), compared_with, sizes.seed)

    results = [_row_result(row, outcome, cells, sizes) for row in rows]
    sentences = [*_run_notes(outcome, rows, first, sizes.trained), *notes(cells)]
    return EvaluationSummary(results, cells, sentences)


def _row_result(
    row: Row, outcome: RunOutcome, cells: Sequence[Cell], sizes: EvaluationSizes
) -> RowResult:
    """Return a row of the result, with its price: the difference of its loss at the trained length.

    Args:
        row: The row.
        outcome: The measurements, and the refusals.
        cells: The cells of all rows.
        sizes: The trained length, and the seed of the bootstrap.
    """
    price = None
    price_error = None
    for cell in cells:
        is_loss_of_row = cell.row == row.name and cell.measure == GROWTH
        if is_loss_of_row and cell.column == sizes.trained and cell.depth is None:
            price = cell.difference
            price_error = cell.difference_error

    observations = outcome.observations.get(row.name, [])
    return RowResult(
        name=row.name,
        recipe=row.recipe.to_dict() if row.recipe else None,
        refused=outcome.refused(row.name),
        price=price,
        price_error=price_error,
        holds_to=holds_to(observations, sizes.trained, sizes.seed),
    )


def _run_notes(
    outcome: RunOutcome, rows: Sequence[Row], first: str | None, trained: int
) -> list[str]:
    """Return sentences on what did not run.

    Args:
        outcome: The measurements, and the refusals.
        rows: The rows of the table.
        first: The first row that ran, which others are compared with; None where none did.
        trained: The trained context in tokens.
    """
    sentences = outcome.sentences(trained, [row.name for row in rows])
    if first is not None and first != rows[0].name:
        sentences.append(f"{rows[0].name} did not run, so differences are to {first}.")
    if outcome.stopped:
        sentences.append(
            "Stopped before the end: the tables have the sequences that were finished."
        )
    return sentences
