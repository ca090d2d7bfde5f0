"""Estimate: what an evaluation costs, from a few short sequences that are run before it."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Mapping, Sequence
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
        count, targets = (case.targets[0], case.generate) if case.generate else (len(case.ids), len(case.targets))
        return float(self.fixed + self.token * count + self.pair * float(count) ** 2 + self.target * targets)


Costs = Mapping[bool, Cost]
"""By whether a case generates, the cost of a sequence."""


def cost_of(case: Case, costs: Costs) -> float:
    """The seconds that a case takes; 0 where that is not known. costs: as `probe` gives them."""
    found = costs.get(bool(case.generate))
    return found.of(case) if found else 0.0


@dataclass(frozen=True)
class Estimate:
    """What an evaluation costs. seconds: of the cases that are not in the journal. tokens, sequences: how many these
    have. costs: of one sequence.
    """

    seconds: float
    tokens: int
    sequences: int
    costs: Costs

    def to_dict(self) -> dict[str, Any]:
        """JSON-ready data."""
        return {"seconds": round(self.seconds, 1), "tokens": self.tokens, "sequences": self.sequences}

    @property
    def sentence(self) -> str:
        """The estimate for the user."""
        takes = f"take about {duration(self.seconds)}" if self.costs else "will take a time that is not known"
        return f"{self.sequences:,} sequence{'s' * (self.sequences != 1)} with {self.tokens:,} tokens {takes}."


def probe(engine: Engine, cases: Sequence[Case], clock: Callable[[], float] = time.perf_counter) -> Costs:
    """Times short sequences, of each way of running that there is in cases.

    engine: of a row. cases: to run, from the longest of which the sequences are taken. clock: in seconds.
    """
    found = {}
    for generates in {bool(case.generate) for case in cases}:
        longest = max((case for case in cases if bool(case.generate) == generates), key=lambda case: len(case.ids))
        found[generates] = _cost(*WAYS[generates], engine, longest.ids.tolist(), clock)
    return found


def _reading(engine: Engine, ids: list[int], count: int) -> None:
    engine.token_losses(ids, list(range(len(ids) - count, len(ids))))


def _generating(engine: Engine, ids: list[int], count: int) -> None:
    engine.generate(ids, count)


Way = Callable[[Engine, list[int], int], None]
"""Runs a sequence with so many targets."""
WAYS: Mapping[bool, tuple[Way, int]] = {False: (_reading, 256), True: (_generating, 16)}
"""By whether a case generates: how it is run, and with how many targets at most it is timed."""


def _cost(run: Way, most: int, engine: Engine, ids: list[int], clock: Callable[[], float]) -> Cost:
    """The cost of a sequence. run, most: as in WAYS. engine: of a row. ids: of a long sequence. clock: in seconds."""
    rows, times = [], []
    lengths = sorted({min(length, len(ids)) for length in PROBES})
    run(engine, ids[: lengths[0]], 1)  # the first run allocates
    starts = iter(range(1, len(ids)))  # a server that has seen a sequence answers from its cache
    for length in lengths:
        for count in {1, min(most, length - 1)}:
            taken = []
            for _ in range(REPEATS):
                first = next(starts, 0)
                begun = clock()
                run(engine, (ids[first:] + ids[:first])[:length], count)
                taken.append(clock() - begun)
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


def estimate(cases: Sequence[Case], costs: Costs) -> Estimate:
    """The estimate for cases. costs: of one of them, as `probe` gives them."""
    seconds = sum(cost_of(case, costs) for case in cases)
    return Estimate(seconds, sum(len(case.ids) for case in cases), len(cases), costs)


def what_fits(cases: Sequence[Case], costs: Costs, asked: Asked, budget: float) -> str:
    """Options with which an evaluation stays within a budget, for a message.

    cases: of all rows. costs: of one of them. asked: the sizes. budget: in seconds.
    """
    total = sum(cost_of(case, costs) for case in cases)
    windows = int(asked.windows * budget / total)
    if windows >= 1:
        return f"--windows {windows}"
    for length in reversed(asked.lengths[:-1]):
        shorter = sum(cost_of(case, costs) for case in cases if len(case.ids) <= length)
        if shorter and shorter / asked.windows <= budget:
            fewer = min(asked.windows, int(asked.windows * budget / shorter))
            return f"--windows {fewer} and --lengths up to {in_trained(length, asked.trained)}"
    return "a smaller model, or a GPU"


UNITS = {"s": 1, "m": 60, "h": 3600}


def parse_duration(text: str, units: Mapping[str, int] = UNITS) -> float:
    """`"90s"`, `"20m"` or `"1.5h"` in seconds. units: in seconds, by letter. Raises UsageError for anything else."""
    match = re.fullmatch(rf"(\d{{1,6}}(?:\.\d{{1,3}})?)([{''.join(units)}])", text.strip())
    if not match or float(match[1]) <= 0:
        raise UsageError(f"{text!r} is no time; write it like 90s, 20m or 2h")
    return float(match[1]) * units[match[2]]


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
            f"{what_fits(cases, found.costs, asked, budget)}"
        )
