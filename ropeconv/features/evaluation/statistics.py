"""Means, errors and differences of an evaluation, and what follows from them.

`summarise` is the function to read first. `cells_of` makes the cells of a row. Which differences
count is the rule of `ropeconv.bake.proof`.
"""

from collections.abc import Iterable, Mapping, Sequence
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
from .measures.losses import LongPpl, Sliding
from .measures.measure import REGISTRY as MEASURES
from .result import Cell, RowResult
from .run import RunOutcome

Key = tuple[str, str, int, float | None]
"""Measure, metric, column, and depth; None for the mean over depths."""
Pairs = Mapping[tuple[object, ...], Observation]


def cells_of(
    row: str, observations: Sequence[Observation], first: Sequence[Observation]
) -> list[Cell]:
    """Return the cells of a row of the results: its means, each with its error.

    A cell is the loss at 8,192 tokens, say. Where facts are hidden at several depths of a text,
    there is one for each depth, and one over all depths.

    Args:
        row: The name of the row.
        observations: Its observations.
        first: The observations of the row that it is compared with; empty for that row itself.
    """
    # For each cell, the observations of this row and of the first one. Those of one window have the
    # same key in both, so that they can be paired.
    by_cell = _by_key(observations)
    first_by_cell = _by_key(first)
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
    """Return a cell of the table: a mean, its standard error, and its difference to the first row.

    The mean is over windows, which are parts of the texts: the loss of yarn:4 at 8,192 tokens, say.
    The error of a share, such as right answers, is from Wilson's interval. The standard deviation
    is useless there: for 20 right answers out of 20 it is 0.

    Args:
        row: The name of the row.
        key: Measure, metric, column (such as the length) and depth.
        pairs: The observations of the row, by the window that they are from.
        first: The observations of the first row in the same form; empty for the first row.
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
        windows=_count_windows(pairs.values()),
        documents=len(set(sample.documents.tolist())),
        clusters=sample.count,  # independent numbers: one per text, or per window if texts are few
        questions=len(pairs) if is_share else 0,
    )

    # `prove` tests the difference to the first row, over the windows that both rows have
    comparison = prove(pairs, first, is_share)
    if comparison is None:  # no window in common
        return cell
    return msgspec.structs.replace(
        cell,
        clusters=comparison.count,  # independent numbers of the difference
        difference=comparison.difference,
        difference_error=comparison.error,
        margin=comparison.margin,
    )


def _count_windows(observations: Iterable[Observation]) -> int:
    """Return how many windows numbers are from, of which one may have many questions."""
    windows = set()
    for observation in observations:
        window = observation.window
        if observation.sequence is not None:
            window = observation.sequence
        windows.add((observation.document, window))
    return len(windows)


def holds_to(observations: Sequence[Observation], trained: int) -> int | None:
    """Return the longest length up to which a method works: its loss does not rise significantly.

    The measure "growth" has the loss of the same tokens after contexts of several lengths. The
    length with the lowest loss is compared with each longer length, window by window, until the
    loss is significantly higher.

    Args:
        observations: The losses of the method, a row of the table.
        trained: The trained context in tokens.

    Returns:
        The length in tokens; None if the trained length was not measured, or if there are fewer
        than six independent texts or windows.
    """
    # for each length in tokens: the loss on each window
    by_length: dict[int, dict[tuple[object, ...], Observation]] = {}
    for observation in observations:
        if observation.measure == GROWTH:
            length = observation.column  # the column of the table
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
        is_worse = difference.mean > difference.margin  # margin: half of the 99.7 % interval
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
    """Return the sentences below the tables that explain the errors and the marked differences.

    Args:
        cells: The cells of all rows.
    """
    table_cells = [cell for cell in cells if cell.depth is None]  # over all depths
    sentences = _describe_measures_with_few_texts(table_cells)

    # measures with too few independent windows for a test
    untested: list[str] = []
    for cell in table_cells:
        if cell.clusters < FEWEST and cell.measure not in untested and _is_tested(cell.measure):
            untested.append(cell.measure)
    if untested:
        repairs = f"increase {' and '.join(_options_for_more(untested))}, or give longer texts"
        if untested == [Sliding.name]:  # its windows at the longest length are one for each text
            repairs = f"give at least {FEWEST} texts"
        sentences.append(
            f"{', '.join(untested)}: fewer than {FEWEST} windows, so no difference is tested;"
            f" {repairs}."
        )

    # Some tests find a difference by chance: 30 tests at p < 0.0027 mark 0.08 cells on average. A
    # cell that was tested has a margin, above which a difference is significant.
    tested = sum(cell.margin is not None for cell in table_cells)
    if tested:
        marked_by_chance = tested * ALPHA
        about = "fewer than 0.1"
        if marked_by_chance >= 0.05:  # a smaller number would be shown as 0.0
            about = f"about {marked_by_chance:.1f}"
        were_tested = counted(tested, "difference was", "differences were")
        sentences.append(f"{were_tested} tested at p < {ALPHA:.4f}; chance would mark {about}.")
    return sentences


def _is_tested(measure: str) -> bool:
    """Return whether differences of a measure are tested at all."""
    return measure not in MEASURES or MEASURES[measure].is_tested


def _options_for_more(measures: Sequence[str]) -> list[str]:
    """Return the options that give more numbers of some measures."""
    if LongPpl.name in measures:
        # only windows with a key token count, which more targets make more frequent
        return ["--windows", "--targets"]
    return ["--windows"]


def _describe_measures_with_few_texts(cells: Sequence[Cell]) -> list[str]:
    """Return a sentence for each group of measures whose errors are from too few texts.

    A standard error needs several independent numbers. With enough texts, the mean of each text is
    one number. With fewer texts, each window of a text is one number, and the error does not cover
    how texts differ.

    Args:
        cells: The means of all rows. `documents` is the number of texts of a mean.
    """
    with_answers = {cell.measure for cell in cells if metric_of(cell.metric).share}

    # for each number of texts: the measures with so many
    measures_by_text_count: dict[int, list[str]] = {}
    for cell in cells:
        text_count = cell.documents
        has_several_numbers = cell.clusters > text_count  # in one of the texts
        if text_count < FEWEST_DOCUMENTS and has_several_numbers:
            measures = measures_by_text_count.setdefault(text_count, [])
            if cell.measure not in measures:
                measures.append(cell.measure)

    sentences = []
    for text_count, measures in sorted(measures_by_text_count.items()):
        texts = counted(text_count, "text")
        # texts into which the same window of questions reads on are one (`choose_haystacks`)
        length = ""
        if with_answers.intersection(measures):
            length = ", much longer than the longest length"
        sentences.append(
            f"{', '.join(measures)}: the errors are between windows of {texts} and do not cover the"
            f" difference between texts; give at least {FEWEST_DOCUMENTS} texts for that{length}."
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
    """Return the numbers of the tables: means, errors, and differences to the first row.

    A row is the model with one method, such as yarn:4. The result also has the price of each row,
    and sentences on what did not run.

    Args:
        outcome: The outcome of the run, which may have been stopped.
        rows: The rows of the table.
        sizes: The sizes of the evaluation.
    """
    # Each measure is compared with the first row that has it: that of the model may have been
    # refused, as a whole or for a measure that its runtime lacks.
    observations = outcome.observations
    ran = [row.name for row in rows if observations.get(row.name)]
    first_by_measure: dict[str, str] = {}
    for name in ran:
        for observation in observations[name]:
            first_by_measure.setdefault(observation.measure, name)

    cells: list[Cell] = []
    for name in ran:
        compared_with = []
        for measure, first in first_by_measure.items():
            if first != name:
                of_first = observations[first]
                compared_with += [number for number in of_first if number.measure == measure]
        cells += cells_of(name, observations[name], compared_with)

    results = [_row_result(row, outcome, cells, sizes) for row in rows]
    first_that_ran = ran[0] if ran else None
    sentences = [*_run_notes(outcome, rows, first_that_ran, sizes.trained), *notes(cells)]
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
        made_by=row.made_by.to_dict() if row.made_by else None,
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
