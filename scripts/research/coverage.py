"""Simulates how often the rule of proof marks a difference that is none, beside Student's t.

    python -m scripts.research.coverage [DRAWS [ROWS]]

The rule is `ropeconv.bake.proof`. Its nominal level is 0.27 %. The table in docs/evaluating.md has
10,000 draws for each cell, which take ten minutes on one core.
"""

import math
import sys
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from numpy.random import Generator
from numpy.typing import NDArray

from ropeconv.bake.proof import Sample, critical

Numbers = NDArray[np.float64]
COUNTS = (8, 12, 20, 50)


def normal(draw: Generator, count: int) -> Numbers:
    return draw.normal(size=count)


def exponential(draw: Generator, count: int) -> Numbers:
    """Skewness 2: a row that fails on some texts."""
    return draw.exponential(size=count) - 1


def lognormal(draw: Generator, count: int) -> Numbers:
    """Skewness 6: a row that fails badly on few texts."""
    return draw.lognormal(size=count) - math.exp(0.5)


def correlated(correlation: float) -> Callable[[Generator, int], Numbers]:
    """Neighbours of one text with a correlation, normal otherwise."""

    def series(draw: Generator, count: int) -> Numbers:
        values = [draw.normal() / math.sqrt(1 - correlation**2)]
        for noise in draw.normal(size=count - 1):
            values.append(correlation * values[-1] + noise)
        return np.array(values)

    return series


def equal_weights(_draw: Generator, count: int) -> Numbers:
    return np.ones(count)


def unequal_weights(draw: Generator, count: int) -> Numbers:
    """Numbers of tokens such as 1, 2, 4, 8 and 25, as of the key tokens of LongPPL."""
    return np.maximum(draw.lognormal(1.5, 1.0, size=count).round(), 1.0)


class Differences(NamedTuple):
    """Differences whose mean is 0, as an experiment draws them."""

    make: Callable[[Generator, int], Numbers]
    """Draws so many differences."""

    by_text: bool = True
    """Whether each is of a text; otherwise they are of neighbouring windows of one."""

    weigh: Callable[[Generator, int], Numbers] = equal_weights
    """Draws their weights."""


CASES = {
    "texts, normal": Differences(normal),
    "texts, skewness 2": Differences(exponential),
    "texts, skewness 6": Differences(lognormal),
    "texts of unequal weights, normal": Differences(normal, weigh=unequal_weights),
    "texts of unequal weights, skewness 2": Differences(exponential, weigh=unequal_weights),
    "windows of one text, independent": Differences(normal, by_text=False),
    "windows of one text, correlation 0.3": Differences(correlated(0.3), by_text=False),
    "windows of one text, correlation 0.6": Differences(correlated(0.6), by_text=False),
}


def sample(draw: Generator, case: Differences, count: int) -> Sample:
    """Draw the differences of so many texts, or windows of one text."""
    places = np.arange(count)
    documents = places if case.by_text else np.zeros_like(places)
    values = case.make(draw, count)
    return Sample(values, case.weigh(draw, count), documents, places)


def false_marks(case: str, count: int, draws: int) -> tuple[float, float]:
    """The shares of experiments that the rule marks, and that Student's t marks."""
    draw = np.random.default_rng((count, len(case)))
    by_rule = 0
    by_student = 0
    for _ in range(draws):
        drawn = sample(draw, CASES[case], count)
        by_rule += drawn.decided
        error = drawn.by_cluster.std(ddof=1) / math.sqrt(count)
        by_student += bool(abs(drawn.mean) > critical(count - 1) * error)
    return by_rule / draws, by_student / draws


def main(draws: str = "10000", only: str = "") -> None:
    """Print the table of docs/evaluating.md: the rule, and in parentheses Student's t.

    Args:
        draws: Experiments for each cell.
        only: A part of the names of the rows to compute; empty for all.
    """
    print("| differences | " + " | ".join(f"n = {count}" for count in COUNTS) + " |")
    print("|---" * (len(COUNTS) + 1) + "|")
    for case in CASES:
        if only not in case:
            continue
        cells = []
        for count in COUNTS:
            by_rule, by_student = false_marks(case, count, int(draws))
            cells.append(f"{100 * by_rule:.2f} ({100 * by_student:.2f})")
        print(f"| {case} | " + " | ".join(cells) + " |", flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
