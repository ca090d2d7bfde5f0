"""Evaluation: rows, measures and texts that fit together, which is estimated, run and summarised."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import numpy as np

from ..engines.engine import Engine, Progress
from ..errors import UsageError
from ..formats.journal import Journal, default_path
from ..formats.jsontext import JsonObject
from ..options import SizeOptions
from ..rope.errors import RopeconvError
from ..version import __version__
from .cases import EVAL, Case, EvalLine, EvaluationSizes, in_trained, parse_lengths
from .measures.lm_eval import LmEval
from .measures.measure import REGISTRY, Measure
from .result import Result
from .row import Row, parse_rows
from .run import EvaluationUnit, Measurer, RunOutcome, all_cases, measured_here, plan_units, run_units
from .runners.opening import open_runner
from .runners.runner import Runner, RunnerRequest
from .statistics import summarise
from .texts import Texts, read_files, tokenized

PROBES = (64, 512, 2048)
"""Lengths of the sequences that are timed."""
REPEATS = 2
MOST_TARGETS = {False: 256, True: 16}
"""By whether a case generates, with how many targets at most it is timed."""


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

    def to_dict(self) -> JsonObject:
        """JSON-ready data."""
        return {"seconds": round(self.seconds, 1), "tokens": self.tokens, "sequences": self.sequences}

    @property
    def sentence(self) -> str:
        """The estimate for the user."""
        takes = f"take about {duration(self.seconds)}" if self.costs else "will take an unknown time"
        return f"{self.sequences:,} sequence{'s' * (self.sequences != 1)} with {self.tokens:,} tokens {takes}."


def probe(engine: Engine, cases: Sequence[Case], clock: Callable[[], float] = time.perf_counter) -> Costs:
    """Times short sequences, of each way of running that there is in cases.

    engine: of a row. cases: to run, from the longest of which the sequences are taken. clock: in seconds.
    """
    costs = {}
    for generates in {bool(case.generate) for case in cases}:
        longest = max((case for case in cases if bool(case.generate) == generates), key=lambda case: len(case.ids))
        costs[generates] = _cost(generates, engine, longest.ids.tolist(), clock)
    return costs


def _cost(generates: bool, engine: Engine, ids: list[int], clock: Callable[[], float]) -> Cost:
    """The cost of a sequence. generates: how it is run. engine: of a row. ids: of a long one. clock: in seconds."""
    rows, times = [], []

    def run(ids: list[int], count: int) -> None:
        if generates:
            engine.generate(ids, count)
        else:
            engine.token_losses(ids, list(range(len(ids) - count, len(ids))))

    lengths = sorted({min(length, len(ids)) for length in PROBES})
    run(ids[: lengths[0]], 1)  # the first run allocates
    starts = iter(range(1, len(ids)))  # a server that has seen a sequence answers from its cache
    for length in lengths:
        for count in {1, min(MOST_TARGETS[generates], length - 1)}:
            taken = []
            for _ in range(REPEATS):
                first = next(starts, 0)
                begun = clock()
                run((ids[first:] + ids[:first])[:length], count)
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


def estimate(cases: Sequence[Case], costs: Costs, at_once: int = 1) -> Estimate:
    """The estimate for cases. costs: of one of them, as `probe` gives them. at_once: how many are run at a time."""
    seconds = sum(cost_of(case, costs) for case in cases) / at_once
    return Estimate(seconds, sum(len(case.ids) for case in cases), len(cases), costs)


def what_fits(cases: Sequence[Case], costs: Costs, asked: EvaluationSizes, budget: float) -> str:
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
        raise UsageError(f"{text!r} is not a duration; write it like 90s, 20m or 2h")
    return float(match[1]) * units[match[2]]


def duration(seconds: float) -> str:
    """Seconds for display: `"45 s"`, `"12 min"`, `"3.5 h"`."""
    if seconds < 100:
        return f"{seconds:.0f} s" if seconds >= 1 else "1 s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"


def within(budget: float, found: Estimate, cases: Sequence[Case], asked: EvaluationSizes) -> None:
    """Raises UsageError, with what would fit, for an evaluation that takes longer than its budget.

    budget: in seconds, 0 for none. found: the estimate. cases: of all rows. asked: the sizes.
    """
    if budget and found.seconds > budget:
        raise UsageError(
            f"this takes about {duration(found.seconds)}, and --budget is {duration(budget)}; what fits: "
            f"{what_fits(cases, found.costs, asked, budget)}"
        )


@dataclass
class Evaluation:
    """What is measured.

    rows: of the table, the first of which the others are compared with. measures: in the order of the tables. texts:
    that are read. asked: sizes. runner: of the rows. outcome: what was measured so far, and what was refused. workers:
    run the units, None for this process. at_once: how many do so at a time. costs: of a sequence, None for what short
    ones take here.
    """

    rows: Sequence[Row]
    measures: Sequence[Measure]
    texts: Texts
    asked: EvaluationSizes
    runner: Runner
    outcome: RunOutcome = field(default_factory=lambda: RunOutcome({}))
    workers: Measurer | None = None
    at_once: int = 1
    costs: Costs | None = None

    @cached_property
    def units(self) -> list[EvaluationUnit]:
        """All units to run, in order. Raises UsageError where no row can be run, with the first reason."""
        cases = all_cases(self.measures, self.texts, self.asked)
        found = plan_units(self.rows, cases, self.runner, self.outcome)
        if not found:
            raise UsageError(f"no row can be run: {self._first_reason}")
        return found

    def missing(self, journal: Journal[EvalLine]) -> list[Case]:
        """The cases that are to be run. journal: of finished units."""
        return [unit.case for unit in self.units if unit.key not in journal.lines]

    def timed(self) -> Costs:
        """The costs of sequences, from short ones run with the first row that loads; empty where none does."""
        timed = [unit.case for unit in self.units if not unit.measure.runs_model]
        for row in {unit.row.name: unit.row for unit in self.units}.values() if timed else ():
            try:
                with self.runner.engine(row) as engine:
                    return probe(engine, timed)
            except RopeconvError:
                continue  # the run will say why
        return {}

    def estimate(self, cases: Sequence[Case] | None = None) -> Estimate:
        """What some cases cost, by default all of them. Tasks of lm_eval are not in it."""
        cases = [unit.case for unit in self.units] if cases is None else cases
        costs = self.timed() if self.costs is None else self.costs
        return estimate(cases, costs, self.at_once)

    def run(self, journal: Journal[EvalLine], progress: Progress | None = None) -> RunOutcome:
        """Runs what the journal does not have, and returns everything that was measured.

        journal: of finished units. progress: callbacks; the total is in tokens. Raises RopeconvError where every row
        failed.
        """
        progress = progress or Progress()
        for sentence in journal.notes:
            progress.note(sentence)
        measurer = self.workers or partial(measured_here, runner=self.runner)
        run_units(self.units, measurer, journal, progress, self.outcome)
        if not self.outcome.observations and not self.outcome.stopped:
            raise RopeconvError(f"no row was run: {self._first_reason}")
        return self.outcome

    @property
    def _first_reason(self) -> str:
        return next((one.reason for one in self.outcome.refusals), "there is none")

    def result(self, source: str) -> Result:
        """What was measured so far. source: how the user named the model."""
        found, runner = summarise(self.outcome, self.rows, self.asked), self.runner
        return Result(
            source=source, identity=runner.source, runtime=runner.runtime, device=runner.device, dtype=runner.dtype,
            trained=self.asked.trained, lengths=list(self.asked.lengths), measures=[one.name for one in self.measures],
            texts=[document.name for document in self.texts.documents], tokens_sha256=self.texts.sha256,
            seed=self.asked.seed, seconds=round(self.outcome.seconds, 1), rows=found.rows, cells=found.cells,
            notes=[*found.notes, *self.texts.notes, *filter(None, [runner.note])], ropeconv=__version__,
        )  # fmt: skip


def parse_measures(text: str) -> tuple[list[Measure], int]:
    """`"growth,passkey,sliding:256"` as measures, and the stride of sliding (0 where none is given).

    Raises UsageError for unknown names, and for one that is there twice.
    """
    found, stride = list[Measure](), 0
    for part in (piece.strip() for piece in text.split(",")):
        name, _, value = part.partition(":")
        measure = LmEval(value) if name == "lm-eval" else REGISTRY.get(name)
        if measure is None:
            raise UsageError(f"--measure {part} is not known; choose {', '.join(REGISTRY)}, lm-eval:TASK")
        if measure.name in [one.name for one in found]:
            raise UsageError(f"--measure has {measure.name} twice; name each once")
        if (
            value
            and not measure.runs_model
            and (name != "sliding" or not value.isdigit() or not 0 < int(value) < 1 << 20)
        ):
            raise UsageError(f"--measure {part} is not understood; only sliding has a number, as in sliding:256")
        stride = int(value) if name == "sliding" and value else stride
        found.append(measure)
    return found, stride


STRIDE = 256
SOME = 4096
"""A trained context with which sizes are checked before that of the model is known."""


@dataclass(frozen=True)
class Sizes(SizeOptions):
    """What is measured, as users write it: the fields are those of `SizeOptions` in ropeconv/options.py."""

    def asked(self, trained: int) -> EvaluationSizes:
        """The sizes in tokens. trained: the trained context. Raises UsageError and RecipeError for wrong values."""
        stride = parse_measures(self.measures)[1] or STRIDE
        return EvaluationSizes(
            parse_lengths(self.lengths, trained), trained, self.windows, self.targets, self.depths, self.seed, stride,
            self.generate, self.chat,
        )  # fmt: skip


@contextmanager
def open_evaluation(opening: RunnerRequest, sizes: Sizes, files: Sequence[tuple[str, str]]) -> Iterator[Evaluation]:
    """An evaluation that can be estimated and run while it is entered; its result stays.

    opening: the model and its rows. sizes: what is measured. files: names and contents of texts.
    Raises UsageError for options that do not go together, BadSource where the model or a text cannot be read.
    """
    measures, _ = parse_measures(sizes.measures)
    sizes.asked(SOME)  # before a model is loaded
    with open_runner(opening) as (runner, rows):
        yield Evaluation(rows, measures, tokenized(files, runner.tokenizer), sizes.asked(runner.trained), runner)


def evaluate_model(
    model: str | os.PathLike[str],
    methods: str,
    texts: Sequence[str | os.PathLike[str]],
    sizes: Sizes | None = None,
    journal: str | os.PathLike[str] | None = None,
    progress: Progress | None = None,
    **options: Any,
) -> Result:
    """Measures what methods do to a model.

    model: a checkpoint, a GGUF file, or an output of `apply`. methods: the rows, such as "base,yarn:4". texts: files or
    patterns. sizes: what is measured, by default the loss of the same tokens at four lengths. journal: the file of
    finished sequences, by default in the cache. progress: callbacks. options: other fields of `RunnerRequest`. Raises
    RopeconvError where a model, a text or all rows cannot be run.
    """
    opening = RunnerRequest(str(model), parse_rows(methods) if methods else [], **options)
    with open_evaluation(opening, sizes or Sizes(), read_files([str(name) for name in texts])) as found:
        source = found.runner.source
        with Journal(default_path(source) if journal is None else Path(journal), EVAL, source) as opened:
            found.run(opened, progress)
    return found.result(str(model))
