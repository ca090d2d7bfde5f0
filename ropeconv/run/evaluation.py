"""An evaluation on several workers, each of which has the model; this process alone writes the journal."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from ..engines.engine import Engine, Progress
from ..engines.transformers.load import out_of_memory
from ..errors import UsageError
from ..evaluate.cases import Case, EvalLine
from ..evaluate.evaluation import Costs, Estimate, Evaluation, Sizes, estimate, open_evaluation
from ..evaluate.row import Row
from ..evaluate.run import EvaluationUnit, Refusal, RunOutcome, gather, measured
from ..evaluate.runners.runner import Runner, RunnerRequest
from ..formats.files import expanded
from ..formats.journal import Journal
from ..rope.errors import RopeconvError
from .executors.executor import Executor, Failure, Pool

ABOUT = ""
"""The item that asks a worker about itself; others are keys of units."""


@dataclass(frozen=True)
class About:
    """What computes. runtime, device, dtype: as in Runner. costs: of sequences."""

    runtime: str
    device: str
    dtype: str
    costs: Costs


@dataclass(frozen=True)
class RefusedRow:
    """A unit that was not measured. reason: in a sentence. whole: whether the row cannot be had at all."""

    reason: str
    whole: bool


class EvalWorker:
    """Measures units by their keys, with the model and the row of the unit before."""

    def __init__(self, opening: RunnerRequest, sizes: Sizes, files: Sequence[tuple[str, str]]) -> None:
        self.stack = ExitStack()
        self.evaluation = self.stack.enter_context(open_evaluation(opening, sizes, files))
        self.units = {unit.key: unit for unit in self.evaluation.units}
        self.row: Row | None = None
        self.of_row = self.stack.enter_context(ExitStack())
        self.loaded: Engine | None = None

    def __call__(self, item: str) -> About | EvalLine | RefusedRow:
        """What a worker is, or what it measured. item: ABOUT, or the key of a unit."""
        runner = self.evaluation.runner
        if item == ABOUT:
            return About(runner.runtime, runner.device, runner.dtype, self.evaluation.costs())
        if item not in self.units:
            raise RopeconvError(
                f"a worker computes with {runner.runtime} on {runner.device}, {runner.dtype}, and another one with "
                "something else; give workers of one kind"
            )
        unit = self.units[item]
        try:
            engine = self._engine(unit.row)
        except RopeconvError as problem:
            return RefusedRow(str(problem), True)
        try:
            line: EvalLine = out_of_memory(lambda: measured(unit, engine, runner.tokenizer))
            return line
        except RopeconvError as problem:
            return RefusedRow(str(problem), False)

    def _engine(self, row: Row) -> Engine:
        if self.loaded is None or self.row is not row:
            self.of_row.close()
            self.loaded = None
            self.loaded, self.row = self.of_row.enter_context(self.evaluation.runner.engine(row)), row
        return self.loaded


class Spread:
    """Workers of an evaluation. pool: of them. about: what they are. at_once: how many, as far as is known."""

    def __init__(self, pool: Pool, about: About, at_once: int) -> None:
        self.pool, self.about, self.at_once = pool, about, max(1, at_once)

    def estimate(self, cases: Sequence[Case]) -> Estimate:
        """What cases cost, with all workers at work."""
        found = estimate(cases, self.about.costs)
        return replace(found, seconds=found.seconds / self.at_once)

    def run_units(
        self,
        units: Sequence[EvaluationUnit],
        runner: Runner,
        journal: Journal[EvalLine],
        progress: Progress,
        outcome: RunOutcome,
    ) -> None:
        """As `run_units` of one process, with the same outcome. Parameters are those of it."""
        missing = [unit for unit in units if unit.key not in journal.lines]
        everything = sum(len(unit.case.ids) for unit in units)
        progress.total(everything)
        progress.advance(everything - sum(len(unit.case.ids) for unit in missing))
        refused: dict[int, Refusal] = {}
        with closing(self.pool.run([unit.key for unit in missing])) as results:
            for index, found in results:
                unit = missing[index]
                if isinstance(found, EvalLine):
                    journal.add(found)
                else:
                    refused[index] = _refusal(unit, found)
                progress.advance(len(unit.case.ids))
                if progress.stopped():
                    outcome.stopped = True
                    break
        for index in sorted(refused):
            one = refused[index]
            if not outcome.refused(one.row, one.measure, one.column):
                outcome.refusals.append(one)
        gather(units, journal, outcome)


def _refusal(unit: EvaluationUnit, found: RefusedRow | Failure) -> Refusal:
    if isinstance(found, RefusedRow) and found.whole:
        return Refusal(unit.row.name, found.reason)
    return Refusal(unit.row.name, found.reason, unit.measure.name, unit.case.column)


def _absolute(opening: RunnerRequest) -> RunnerRequest:
    """The same for a worker, which runs in another folder."""

    def found(name: str) -> str:
        path = expanded(name)
        return str(path.absolute()) if name and path.exists() else name

    rows = [replace(row, path=row.path and expanded(str(row.path)).absolute()) for row in opening.rows]
    return replace(opening, model=found(opening.model), against=found(opening.against), rows=rows)


@contextmanager
def open_spread(
    executor: Executor, opening: RunnerRequest, sizes: Sizes, files: Sequence[tuple[str, str]]
) -> Iterator[tuple[Evaluation, Spread]]:
    """An evaluation and its workers, while it is entered. No weights are loaded in this process.

    executor: of the workers. opening, sizes, files: as in `open_evaluation`. Raises as that does, and RopeconvError
    where no worker can load the model.
    """
    if opening.servers:
        raise UsageError("a server runs its model itself, so --workers has no effect on --server; leave it out")
    here = replace(opening, device="auto", dtype="auto", device_map="")  # workers may have other devices
    factory: Any = partial(EvalWorker, _absolute(opening), sizes, files)
    with open_evaluation(here, sizes, files) as evaluation, executor.pool(factory) as pool:
        [(_, about)] = list(pool.run([ABOUT]))
        if isinstance(about, Failure):
            raise RopeconvError(about.reason)
        runner = evaluation.runner
        runner.runtime, runner.device, runner.dtype = about.runtime, about.device, about.dtype
        yield evaluation, Spread(pool, about, executor.at_once)
