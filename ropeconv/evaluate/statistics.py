"""Sample: numbers with the documents and windows that they are from; its mean, and the error of that."""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from typing import TYPE_CHECKING

import numpy as np

from ..rope.errors import counted
from .cases import EvaluationSizes, Observation, metric_of
from .result import ERRORS, GROWTH, Cell, RowResult, decided
from .row import Row
from .run import RunOutcome

if TYPE_CHECKING:
    from numpy.typing import NDArray

FEWEST = 5
"""Groups with which an error between them can be given."""
RESAMPLES = 2000
Pairs = Mapping[tuple[object, ...], Observation]


@dataclass(frozen=True, eq=False)
class Sample:
    """Numbers that are averaged.

    values, weights: float64 [n]. documents, windows: codes from 0 on of the text, and of the window in it, int [n].
    seed: of the bootstrap.
    """

    values: NDArray[np.float64]
    weights: NDArray[np.float64]
    documents: NDArray[np.int64]
    windows: NDArray[np.int64]
    seed: int = 0

    @property
    def mean(self) -> float:
        """The mean with the weights."""
        return float(np.average(self.values, weights=self.weights))

    @cached_property
    def by_document(self) -> bool:
        """Whether errors are between documents."""
        return bool(self.documents.max(initial=-1) + 1 >= FEWEST)

    @cached_property
    def units(self) -> NDArray[np.int64]:
        """Codes of what is taken as independent: documents, else windows, where these are enough; else all numbers."""
        if self.by_document:
            return self.documents
        enough = self.windows.max(initial=-1) + 1 >= FEWEST
        return self.windows if enough else np.arange(len(self.values), dtype=np.int64)

    @cached_property
    def count(self) -> int:
        """How many units there are."""
        return int(self.units.max(initial=-1)) + 1

    @cached_property
    def error(self) -> float | None:
        """The standard error of the mean; None for a single unit.

        Between documents by bootstrap, else from the squared deviations. Both with the factor n / (n - 1) on the
        variance, without which few units give too small an error.
        """
        if self.count < 2:
            return None
        total = np.bincount(self.units, self.weights)
        if self.by_document:
            drawn = resamples(self.count, self.seed)
            means = (drawn @ np.bincount(self.units, self.weights * self.values)) / (drawn @ total)
            spread = float(means.std())
        else:
            deviations = np.bincount(self.units, self.weights * (self.values - self.mean))
            spread = float(np.sqrt((deviations**2).sum()) / total.sum())
        return spread * math.sqrt(self.count / (self.count - 1))


@cache
def resamples(count: int, seed: int) -> NDArray[np.float64]:
    """How often each of `count` units is in each draw with replacement, float64 [RESAMPLES, count]. seed: of draws."""
    random = np.random.default_rng((seed, count))
    return random.multinomial(count, np.full(count, 1 / count), RESAMPLES).astype(np.float64)


def sample_of(found: Sequence[Observation], seed: int, values: Iterable[float] | None = None) -> Sample:
    """A sample of observations.

    found: at least one. seed: of the bootstrap. values: that take the place of the observations' own.
    """
    return Sample(
        np.array([one.value for one in found] if values is None else list(values), np.float64),
        np.array([one.weight for one in found], np.float64),
        _codes(one.document for one in found),
        _codes((one.document, one.window) for one in found),
        seed,
    )


def differences(of: Pairs, to: Pairs, seed: int) -> Sample | None:
    """A sample of the differences of numbers that are in both, by the same key; None where there is none.

    of, to: observations by what pairs them. seed: of the bootstrap.
    """
    common = [key for key in of if key in to]
    if not common:
        return None
    return sample_of([of[key] for key in common], seed, (of[key].value - to[key].value for key in common))


def _codes(names: Iterable[Hashable]) -> NDArray[np.int64]:
    known: dict[Hashable, int] = {}
    return np.array([known.setdefault(name, len(known)) for name in names], np.int64)


NORMAL_95 = 1.959964


def wilson(share: float, count: float, errors: float = NORMAL_95) -> tuple[float, float]:
    """The interval of a share, as in Wilson 1927, https://doi.org/10.1080/01621459.1927.10502953.

    share: from 0 to 1. count: of answers. errors: its width, in standard errors to each side.
    """
    square = errors**2 / count
    middle = (share + square / 2) / (1 + square)
    half = errors * (share * (1 - share) / count + square / (4 * count)) ** 0.5 / (1 + square)
    return max(0.0, middle - half), min(1.0, middle + half)


def effective_count(sample: Sample) -> float:
    """How many independent answers a sample is worth: all of it, or fewer where those of one document are alike."""
    share, answers = sample.mean, len(sample.values)
    if not sample.by_document or not sample.error:
        return answers
    return max(1.0, min(answers, share * (1 - share) / sample.error**2))


def share_error(sample: Sample) -> float:
    """The standard error of a share: half of Wilson's interval of one error to each side."""
    low, high = wilson(min(1.0, max(0.0, sample.mean)), effective_count(sample), 1.0)
    return (high - low) / 2


def difference_error(sample: Sample) -> float:
    """The standard error of a paired difference of shares, if there were no difference, as in McNemar's test.

    Ten answers that are all lost are three errors, as in an exact test; the spread of their differences would be 0. At
    least one answer is taken to differ, and where documents differ more than answers, that counts.
    """
    share = sample.weights / sample.weights.sum()
    squares = float(((share * sample.values) ** 2).sum())
    least = float((share**2).mean())
    between = (sample.error or 0.0) if sample.by_document else 0.0
    return max(float(np.sqrt(max(squares, least))), between)


@cache
def beyond(freedom: float, errors: float = ERRORS) -> float:
    """The probability of a difference of more than `errors` standard errors to either side where there is none.

    freedom: degrees of freedom, one less than the units that the error is from; math.inf for a normal distribution.
    Student's t: an error from eight windows is itself uncertain, and three of them are passed in 1 of 50 cases.
    """
    if math.isinf(freedom):
        return math.erfc(errors / math.sqrt(2))
    log_scale = math.lgamma((freedom + 1) / 2) - math.lgamma(freedom / 2) - math.log(math.pi * freedom) / 2
    at = np.linspace(0, errors, 3001)
    density = np.exp(log_scale - (freedom + 1) / 2 * np.log1p(at**2 / freedom))
    return float(1 - (density[:-1] + density[1:]).sum() * at[1])


Key = tuple[str, str, int, float | None]
"""Measure, metric, column, and depth; None for the mean over depths."""


@dataclass(frozen=True)
class CellSummary:
    """A cell, and the degrees of freedom of the error of its difference."""

    cell: Cell
    freedom: float


def cells_of(
    row: str, found: Sequence[Observation], first: Sequence[Observation] | None, seed: int
) -> list[CellSummary]:
    """The cells of a row, over all depths and for each.

    row: its name. found: its observations. first: those of the first row; None in that row. seed: of the bootstrap.
    """
    theirs = _by_key(first or [])
    return [_cell(row, key, own, theirs.get(key, {}), seed) for key, own in _by_key(found).items()]


def _by_key(found: Sequence[Observation]) -> dict[Key, dict[tuple[object, ...], Observation]]:
    """Observations by the cells that they belong to, in the order of columns."""
    cells: dict[Key, dict[tuple[object, ...], Observation]] = {}
    for one in found:
        for depth in dict.fromkeys((None, one.depth)):
            cells.setdefault((one.measure, one.metric, one.column, depth), {})[one.pair] = one
    order = list(dict.fromkeys(key[:2] for key in cells))
    return dict(sorted(cells.items(), key=lambda item: (order.index(item[0][:2]), item[0][2], item[0][3] or -1.0)))


def _cell(row: str, key: Key, own: Pairs, first: Pairs, seed: int) -> CellSummary:
    measure, metric, column, depth = key
    sample = sample_of(list(own.values()), seed)
    paired = differences(own, first, seed)
    share = metric_of(metric).share
    low, high = wilson(sample.mean, effective_count(sample)) if share else (None, None)
    spread: Callable[[Sample], float | None] = difference_error if share else lambda one: one.error
    cell = Cell(
        row=row, measure=measure, metric=metric, column=column, depth=depth, value=sample.mean,
        error=share_error(sample) if share else sample.error, low=low, high=high,
        windows=len(set(sample.windows.tolist())), documents=len(set(sample.documents.tolist())),
        difference=paired.mean if paired else None, difference_error=spread(paired) if paired else None,
    )  # fmt: skip
    return CellSummary(cell, math.inf if share else (paired or sample).count - 1)


def price(cells: Sequence[Cell], row: str, trained: int) -> tuple[float | None, float | None]:
    """The difference of the loss at the trained length to the first row, and its error; None for what is not known.

    cells: of all rows. row: name. trained: the trained context in tokens.
    """
    for cell in cells:
        if (cell.row, cell.measure, cell.column, cell.depth) == (row, GROWTH, trained, None):
            return cell.difference, cell.difference_error
    return None, None


def holds_to(found: Sequence[Observation], seed: int) -> int | None:
    """The longest length to which the loss of a row stays within three errors of its own best; None without errors.

    found: observations of the row; those of growth have the same targets at all lengths, so lengths are paired by
    window. seed: of the bootstrap. A longer length that is within three errors again, behind one that is not, does not
    count.
    """
    lengths: dict[int, dict[tuple[object, ...], Observation]] = {}
    for one in found:
        if one.measure == GROWTH:
            lengths.setdefault(one.column, {})[one.document, one.window] = one
    if not lengths:
        return None
    whole = set.intersection(*(set(windows) for windows in lengths.values()))
    if len(whole) < 2:
        return None
    mean = {length: float(np.mean([windows[key].value for key in whole])) for length, windows in lengths.items()}
    best = min(mean, key=lambda length: mean[length])
    held = best
    for length in sorted(one for one in lengths if one > best):
        worse = differences(lengths[length], lengths[best], seed)
        if worse is None or worse.error is None or (worse.mean > 0 and decided(worse.mean, worse.error)):
            break
        held = length
    return held


def notes(found: Sequence[CellSummary]) -> list[str]:
    """The sentences for the cells of all rows. found: cells with their degrees of freedom."""
    whole = [one for one in found if one.cell.depth is None]
    return [*_texts(whole), *_single(whole), *_multiplicity(whole)]


def _texts(found: Sequence[CellSummary]) -> list[str]:
    """What the errors are between, where that is not documents."""
    counts: dict[int, dict[str, None]] = {}
    for one in found:
        if one.cell.documents < FEWEST and one.cell.windows > one.cell.documents:
            counts.setdefault(one.cell.documents, {})[one.cell.measure] = None
    said = []
    for count, measures in sorted(counts.items()):
        texts = "one text" if count == 1 else f"{count} texts"
        said.append(
            f"{', '.join(measures)}: {texts}, so errors are between places of {'the text' if count == 1 else 'them'}, "
            f"not between texts; give {FEWEST} or more to measure those."
        )
    return said


def _single(found: Sequence[CellSummary]) -> list[str]:
    alone = dict.fromkeys(one.cell.measure for one in found if one.cell.error is None)
    return (
        [f"{', '.join(alone)}: one window, so no error is known; give more --windows or longer texts."] if alone else []
    )


def _multiplicity(found: Sequence[CellSummary]) -> list[str]:
    chances = [beyond(one.freedom) for one in found if one.cell.difference_error is not None]
    if not chances:
        return []
    expected = sum(chances)
    about = f"about {expected:.1f}" if expected >= 0.05 else "fewer than 0.1"
    judged = counted(len(chances), "difference to the first row is", "differences to the first row are")
    return [f"{judged} judged at three standard errors; {about} would pass them by chance if no row differed."]


@dataclass(frozen=True)
class Summary:
    """What a `Result` has of the numbers: rows in the order of the table, cells, and sentences for below the table."""

    rows: list[RowResult]
    cells: list[Cell]
    notes: list[str]


def summarise(outcome: RunOutcome, rows: Sequence[Row], asked: EvaluationSizes) -> Summary:
    """Means, errors, differences to the first row that ran, and what follows from them.

    outcome: of the run, which may have been stopped. rows: of the evaluation. asked: its sizes.
    """
    seen = outcome.observations
    first = next((row.name for row in rows if seen.get(row.name)), None)
    found: list[CellSummary] = []
    for row in rows:
        against = seen[first] if first is not None and row.name != first else None
        found += cells_of(row.name, seen.get(row.name, []), against, asked.seed)
    cells = [one.cell for one in found]
    results = [_row(row, outcome, cells, asked) for row in rows]
    return Summary(results, cells, [*_run_notes(outcome, rows, first, asked.trained), *notes(found)])


def _row(row: Row, outcome: RunOutcome, cells: Sequence[Cell], asked: EvaluationSizes) -> RowResult:
    paid, error = price(cells, row.name, asked.trained)
    return RowResult(
        name=row.name,
        recipe=row.recipe.to_dict() if row.recipe else None,
        refused=outcome.refused(row.name),
        price=paid,
        price_error=error,
        holds_to=holds_to(outcome.observations.get(row.name, []), asked.seed),
    )


def _run_notes(outcome: RunOutcome, rows: Sequence[Row], first: str | None, trained: int) -> list[str]:
    """What the run itself did not give."""
    said = outcome.sentences(trained, [row.name for row in rows])
    if first is not None and first != rows[0].name:
        said.append(f"{rows[0].name} did not run, so differences are to {first}.")
    if outcome.stopped:
        said.append("Stopped before the end: these are the cases that were finished.")
    return said
