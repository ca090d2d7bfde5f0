"""Estimate: what an evaluation costs, from a few short sequences that are run before it."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ..engines import Engine
from ..errors import UsageError
from .asked import Asked, in_trained
from .case import Case

PROBES = (64, 512, 2048)
"""Lengths of the sequences that are timed."""
REPEATS = 2


@dataclass(frozen=True)
class Cost:
    """The time of one sequence: seconds = fixed + token n + pair n^2 + target m, for n tokens and m predicted ones."""

    fixed: float
    token: float
    pair: float
    target: float

    def of(self, case: Case) -> float:
        """The seconds that a case takes."""
        count = len(case.ids)
        return self.fixed + self.token * count + self.pair * count**2 + self.target * len(case.targets)


@dataclass(frozen=True)
class Estimate:
    """What an evaluation costs. seconds: of the cases that are not in the journal. tokens, sequences: how many these
    have. cost: of one sequence.
    """

    seconds: float
    tokens: int
    sequences: int
    cost: Cost

    def to_dict(self) -> dict[str, Any]:
        """JSON-ready data."""
        return {"seconds": round(self.seconds, 1), "tokens": self.tokens, "sequences": self.sequences}

    @property
    def sentence(self) -> str:
        """The estimate for the user."""
        return f"{self.sequences:,} sequences with {self.tokens:,} tokens take about {duration(self.seconds)}."


def probe(engine: Engine, longest: Case, clock: Callable[[], float] = time.perf_counter) -> Cost:
    """Times short sequences from the beginning of a case.

    engine: of a row. longest: a case of the longest length. clock: in seconds.
    """
    ids, rows, times = longest.ids.tolist(), [], []
    lengths = sorted({min(length, len(ids)) for length in PROBES})
    engine.token_losses(ids[: lengths[0]], [lengths[0] - 1])  # the first run allocates
    for length in lengths:
        for count in {1, min(256, length - 1)}:
            targets = list(range(length - count, length))
            taken = []
            for _ in range(REPEATS):
                start = clock()
                engine.token_losses(ids[:length], targets)
                taken.append(clock() - start)
            rows.append((1.0, length, length**2, count))
            times.append(min(taken))
    return Cost(*_not_negative(np.array(rows, float), np.array(times)))


def _not_negative(rows: np.ndarray, times: np.ndarray) -> list[float]:
    """Least squares of relative errors, without the terms that would be negative."""
    used = list(range(rows.shape[1]))
    weight = 1 / np.maximum(times, 1e-9)
    while True:
        found, *_ = np.linalg.lstsq(rows[:, used] * weight[:, None], times * weight, rcond=None)
        if (found >= 0).all():
            return [float(found[used.index(column)]) if column in used else 0.0 for column in range(rows.shape[1])]
        used.pop(int(np.argmin(found * rows[:, used].max(axis=0))))


def estimate(cases: Sequence[Case], cost: Cost) -> Estimate:
    """The estimate for cases. cost: of one of them, as `probe` gives it."""
    return Estimate(sum(map(cost.of, cases)), sum(len(case.ids) for case in cases), len(cases), cost)


def what_fits(cases: Sequence[Case], cost: Cost, asked: Asked, budget: float) -> str:
    """Options with which an evaluation stays within a budget, for a message.

    cases: of all rows. cost: of one of them. asked: the sizes. budget: in seconds.
    """
    total = sum(map(cost.of, cases))
    windows = int(asked.windows * budget / total)
    if windows >= 1:
        return f"--windows {windows}"
    for length in reversed(asked.lengths[:-1]):
        shorter = sum(cost.of(case) for case in cases if len(case.ids) <= length)
        if shorter and shorter / asked.windows <= budget:
            fewer = min(asked.windows, int(asked.windows * budget / shorter))
            return f"--windows {fewer} and --lengths up to {in_trained(length, asked.trained)}"
    return "a smaller model, or a GPU"


UNITS = {"s": 1, "m": 60, "h": 3600}


def parse_duration(text: str) -> float:
    """`"90s"`, `"20m"` or `"1.5h"` in seconds. Raises UsageError for anything else."""
    match = re.fullmatch(r"(\d{1,6}(?:\.\d{1,3})?)([smh])", text.strip())
    if not match or float(match[1]) <= 0:
        raise UsageError(f"{text!r} is no time; write it like 90s, 20m or 2h")
    return float(match[1]) * UNITS[match[2]]


def duration(seconds: float) -> str:
    """Seconds for display: `"45 s"`, `"12 min"`, `"3.5 h"`."""
    if seconds < 100:
        return f"{seconds:.0f} s" if seconds >= 1 else "1 s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"


def within(budget: float, found: Estimate, cases: Sequence[Case], asked: Asked) -> None:
    """Raises UsageError, with what would fit, for an evaluation that takes longer than its budget.

    budget: in seconds, 0 for none. found: the estimate. cases: of all rows. asked: the sizes.
    """
    if budget and found.seconds > budget:
        raise UsageError(
            f"this takes about {duration(found.seconds)}, and --budget is {duration(budget)}; what fits: "
            f"{what_fits(cases, found.cost, asked, budget)}"
        )
