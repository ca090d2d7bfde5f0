"""Means, errors and differences of an evaluation, and what follows from them.

`summarise` is the function to read first. `cells_of` makes the cells of a row. Which differences
count is the rule of `ropeconv.bake.proof`.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import msgspec
import numpy as np

from ropeconv.bake.proof import (
    ALPHA,
    FEWEST,
    FEWEST_DOCUMENTS,
    differences,
    independent_answers,
    prove,
    sample_of,
    wilson,
)
from ropeconv.inspection.receipts.metrics import GROWTH, metric_of
from ropeconv.rope.errors import counted
from ropeconv.verbs.rows import Row

from .cases import EvaluationSizes, Observation
from .result import Cell, RowResult
from .run import RunOutcome

Key = tuple[str, str, int, float | None]
"""Measure, metric, column, and depth; None for the mean over depths."""
Pairs = Mapping[tuple[object, ...], Observation]


def cells_of(
    row: str, observations: Sequence[Observation], first: Sequence[Observation] | None
) -> list[Cell]:
    """Return the cells of a row of the results: its means, each with its error.

    A cell is the loss at 8,192 tokens, say. Where facts are hidden at several depths of a text,
    there is one for each depth, and one over all depths.

    Args:
        row: The name of the row.
        observations: Its observations.
        first: The observations of the first row; None in that row.
    """
    # For each cell, the observations of this row and of the first one. Those of one window have the
    # same key in both, so that they can be paired.
    by_cell = _by_key(observations)
    first_by_cell = _by_key(first or [])
    cells = []
    for key, pairs in by_cell.items():
        first_pairs = first_by_cell.get(key, {})
        cells.append(_cell(row, key, pairs, first_pairs))
    return cells


def _by_key(
    observations: Sequence[Observation],
) -> dict[Key, dict[tuple[object, ...], Observation]]:
    """Group observations by the cells of the result that they belong to.

    The accuracy of passkey at 8,192 tokens and the depth 0.5 belongs to two cells:
    ("passkey", "accuracy", 8192, None) and ("passkey", "accuracy", 8192, 0.5).

    Returns:
        By cell, in the order of the measures and columns, its observations by the key that pairs
        them with those of another row.
    """
    cells: dict[Key, dict[tuple[object, ...], Observation]] = {}
    order: dict[tuple[str, str], int] = {}  # of measures with a metric, as they come
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

    def sort_key(key: Key) -> tuple[int, int, bool, float]:
        """Return a key that sorts by measure, column and depth, the mean over depths first."""
        measure, metric, column, depth = key
        has_depth = depth is not None
        return order[measure, metric], column, has_depth, depth or 0.0

    return {key: cells[key] for key in sorted(cells, key=sort_key)}


def _cell(row: str, key: Key, pairs: Pairs, first: Pairs) -> Cell:
    """Compute a cell of the results: its mean, its error, and its difference to the first row's.

    A cell has the loss of yarn:4 at 8,192 tokens, say, over all windows of the texts.

    Errors are standard errors. Those of a share, such as the right answers, are from Wilson's
    interval: its half-width at z = 1 is the error, and at z = 1.96 it is the shown interval. The
    deviation of 20 right answers out of 20 would be 0.

    Args:
        row: The name of the row.
        key: Measure, metric, column and depth.
        pairs: The observations of the row, by the key that pairs them.
        first: The observations of the first row; empty in that row.
    """
    measure, metric, column, depth = key
    is_share = metric_of(metric).share
    sample = sample_of(list(pairs.values()))
    error = sample.error
    low = None
    high = None
    if is_share:
        answers = independent_answers(sample)
        # the 95 % interval for display (z = 1.96)
        low, high = wilson(sample.mean, answers)
        # half of the interval at z = 1 is the standard error
        share = min(1.0, max(0.0, sample.mean))  # a mean of ones may be rounded to above 1
        lower, upper = wilson(share, answers, errors=1.0)
        error = (upper - lower) / 2

    cell = Cell(
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
        clusters=sample.count,
    )

    # the difference to the first row, over the windows that both have read; these may be fewer than
    # the windows of the mean
    comparison = prove(pairs, first, is_share)
    if comparison is None:  # no window in common
        return cell
    return msgspec.structs.replace(
        cell,
        clusters=comparison.count,  # texts or windows that the difference is from
        difference=comparison.difference,
        difference_error=comparison.error,
        margin=comparison.margin,
    )


def holds_to(observations: Sequence[Observation], trained: int) -> int | None:
    """Return the longest length at which the loss is not significantly above the row's lowest.

    The measure growth has the loss of the same tokens after contexts of several lengths, so two
    lengths are compared window by window. Lengths behind one that is significantly worse do not
    count.

    Args:
        observations: The observations of a row.
        trained: The trained context in tokens.

    Returns:
        The length in tokens; None where the trained length was not measured, and with fewer than
        six independent texts or windows.
    """
    # by length in tokens, the loss on each window
    by_length: dict[int, dict[tuple[object, ...], Observation]] = {}
    for observation in observations:
        if observation.measure == GROWTH:
            length = observation.column
            window = (observation.document, observation.window)
            by_length.setdefault(length, {})[window] = observation
    if trained not in by_length:
        return None

    best = _length_of_lowest_loss(by_length)
    if best is None:
        return None
    losses_at_best = sample_of(list(by_length[best].values()))
    independent_losses = losses_at_best.count  # one per text, or per window if texts are few
    if independent_losses < FEWEST:  # too few for a test
        return None

    longest = best
    for length in sorted(by_length):
        if length <= best:
            continue
        difference = differences(by_length[length], by_length[best])
        if difference is None or difference.margin is None:  # too few windows for a test
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
        # longppl counts only windows with a key token, and more targets find key tokens in more
        # windows
        sizes = "--windows and --targets" if "longppl" in untested else "--windows"
        sentences.append(
            f"{', '.join(untested)}: fewer than {FEWEST} windows, so no difference is tested;"
            f" increase {sizes}, or give longer texts."
        )

    # Many tests find a difference by chance: 30 tests at p < 0.0027 mark 0.08 on average. A cell
    # whose difference was tested has a margin.
    tested = sum(cell.margin is not None for cell in whole)
    if tested:
        expected = tested * ALPHA
        about = f"about {expected:.1f}" if expected >= 0.05 else "fewer than 0.1"
        were_tested = counted(tested, "difference was", "differences were")
        sentences.append(f"{were_tested} tested at p < {ALPHA:.4f}; chance would mark {about}.")
    return sentences


def _notes_on_texts(cells: Sequence[Cell]) -> list[str]:
    """Return sentences that name the measures of which too few texts were read.

    A standard error needs several independent numbers. With enough texts, the mean of each text is
    one number. With fewer texts, each window of a text is one number, and the error does not cover
    how texts differ.

    Args:
        cells: The means of all rows, over all depths.
    """
    measures_by_texts: dict[int, list[str]] = {}
    for cell in cells:
        has_few_texts = cell.documents < FEWEST_DOCUMENTS
        if has_few_texts and cell.windows > cell.documents:  # more than one window of a text
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
    """Return the numbers of the tables: means, errors, and differences to the first row that ran.

    A row is the model with one method, such as yarn:4. The result also has the price of each row,
    and sentences on what did not run.

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
        cells += cells_of(row.name, observations.get(row.name, []), compared_with)

    results = [_row_result(row, outcome, cells, sizes) for row in rows]
    sentences = [*_run_notes(outcome, rows, first, sizes.trained), *notes(cells)]
    return EvaluationSummary(results, cells, sentences)


def _row_result(
    row: Row, outcome: RunOutcome, cells: Sequence[Cell], sizes: EvaluationSizes
) -> RowResult:
    """Return a row of the result: its recipe, its price, and how far it holds.

    The price of a method is its loss at the trained length minus that of the first row, which is
    usually the unchanged model. The method holds to the longest length at which its loss is not
    significantly higher.

    Args:
        row: The row.
        outcome: The measurements, and the refusals.
        cells: The cells of all rows.
        sizes: The sizes of the evaluation.
    """
    price = None
    price_error = None
    for cell in cells:
        is_growth_of_row = cell.row == row.name and cell.measure == GROWTH
        is_at_trained_length = cell.column == sizes.trained and cell.depth is None
        if is_growth_of_row and is_at_trained_length:
            price = cell.difference
            price_error = cell.difference_error

    observations = outcome.observations.get(row.name, [])
    return RowResult(
        name=row.name,
        recipe=row.recipe.to_dict() if row.recipe else None,
        refused=outcome.refused(row.name),
        price=price,
        price_error=price_error,
        holds_to=holds_to(observations, sizes.trained),
    )


def _run_notes(
    outcome: RunOutcome, rows: Sequence[Row], first: str | None, trained: int
) -> list[str]:
    """Return sentences on rows and sequences that did not run, for the notes below the tables.

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
