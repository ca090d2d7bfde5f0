"""Simulates how often the rule of proof marks a difference that is none, beside Student's t.

    python -m scripts.research.coverage [DRAWS]

The rule is `ropeconv.bake.proof`. Its nominal level is 0.27 %. The table in docs/evaluating.md has
10,000 draws for each cell, which take ten minutes on one core.
"""

import math
import sys
from collections.abc import Callable

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


CASES: dict[str, tuple[Callable[[Generator, int], Numbers], bool]] = {
    "texts, normal": (normal, True),
    "texts, skewness 2": (exponential, True),
    "texts, skewness 6": (lognormal, True),
    "windows of one text, independent": (normal, False),
    "windows of one text, correlation 0.3": (correlated(0.3), False),
    "windows of one text, correlation 0.6": (correlated(0.6), False),
}
"""By name, the distribution of differences whose mean is 0, and whether each is of a text."""


def sample(values: Numbers, by_text: bool) -> Sample:
    """Numbers of as many texts, or of windows of one text."""
    places = np.arange(len(values))
    documents = places if by_text else np.zeros_like(places)
    return Sample(values, np.ones(len(values)), documents, places)


def false_marks(case: str, count: int, draws: int) -> tuple[float, float]:
    """The shares of experiments that the rule marks, and that Student's t marks."""
    made, by_text = CASES[case]
    draw = np.random.default_rng((count, len(case)))
    by_rule = 0
    by_student = 0
    for _ in range(draws):
        values = made(draw, count)
        by_rule += sample(values, by_text).decided
        error = values.std(ddof=1) / math.sqrt(count)
        by_student += bool(abs(values.mean()) > critical(count - 1) * error)
    return by_rule / draws, by_student / draws


def main(draws: int = 10_000) -> None:
    """Prints the table of docs/evaluating.md: the rule, and in parentheses Student's t."""
    print("| differences | " + " | ".join(f"n = {count}" for count in COUNTS) + " |")
    print("|---" * (len(COUNTS) + 1) + "|")
    for case in CASES:
        cells = []
        for count in COUNTS:
            by_rule, by_student = false_marks(case, count, draws)
            cells.append(f"{100 * by_rule:.2f} ({100 * by_student:.2f})")
        print(f"| {case} | " + " | ".join(cells) + " |", flush=True)


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
