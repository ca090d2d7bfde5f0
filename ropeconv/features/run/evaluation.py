"""An evaluation on several workers, each of which has the model; only this process writes the
journal.
"""

from collections.abc import Generator, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, closing, contextmanager
from dataclasses import replace
from functools import partial
from typing import Any

from ropeconv.engines.transformers.load import out_of_memory
from ropeconv.errors import UsageError
from ropeconv.features.evaluation.cases import EvalLine
from ropeconv.features.evaluation.evaluation import Evaluation, Sizes, open_evaluation
from ropeconv.features.evaluation.run import EvaluationUnit, Refusal, UnitResult, UnitRunner
from ropeconv.features.evaluation.runners.runner import RunnerRequest
from ropeconv.formats.files import expand_home
from ropeconv.rope.errors import RopeconvError

from .executors import executor_of
from .executors.executor import Executor, Failure, Pool

ABOUT = ""
"""The item that asks a worker about itself; others are keys of units."""


About = tuple[str, str, str]
"""Runtime, device and dtype of the runner of a worker."""


class EvalWorker:
    """Measures units by their keys, with the model and the row of the unit before."""

    def __init__(
        self, opening: RunnerRequest, sizes: Sizes, files: Sequence[tuple[str, str]]
    ) -> None:
        self.stack = ExitStack()
        self.evaluation = self.stack.enter_context(open_evaluation(opening, sizes, files))
        self.units = {key: units[0] for key, units in self.evaluation.passes.items()}
        self.running = self.stack.enter_context(closing(UnitRunner(self.evaluation.runner)))

    def __call__(self, item: str) -> About | EvalLine | Refusal:
        """Return the description of the worker for ABOUT, else the measurement of a unit. item: its
        key.
        """
        runner = self.evaluation.runner
        if item == ABOUT:
            return runner.runtime, runner.device, runner.dtype
        if item not in self.units:
            raise RopeconvError(
                f"a worker computes with {runner.runtime} on {runner.device}, {runner.dtype}, and"
                " another one with something else; give workers of one kind"
            )
        result: EvalLine | Refusal = out_of_memory(lambda: self.running.run(self.units[item]))
        return result


def _measured(pool: Pool, units: Sequence[EvaluationUnit]) -> Generator[UnitResult, None, None]:
    """Runs units on workers, as a `Measurer`."""
    with closing(pool([unit.key for unit in units])) as results:
        for index, result in results:
            unit = units[index]
            if isinstance(result, Failure):
                result = Refusal(unit.row.name, result.reason, unit.measure.name, unit.case.column)
            yield index, result


def _absolute(opening: RunnerRequest) -> RunnerRequest:
    """The same for a worker, which runs in another folder."""

    def absolute(name: str) -> str:
        path = expand_home(name)
        return str(path.absolute()) if name and path.exists() else name

    rows = [
        replace(row, path=row.path and expand_home(str(row.path)).absolute())
        for row in opening.rows
    ]
    return replace(
        opening, model=absolute(opening.model), against=absolute(opening.against), rows=rows
    )


def open_spread_by_name(
    workers: str, opening: RunnerRequest, sizes: Sizes, files: Sequence[tuple[str, str]]
) -> AbstractContextManager[Evaluation]:
    """Open an evaluation on workers, as `--workers` names them.

    Raises:
        UsageError: For another name than those of `executor_of`.
        RopeconvError: As `open_spread` does.
    """
    return open_spread(executor_of(workers), opening, sizes, files)


@contextmanager
def open_spread(
    executor: Executor, opening: RunnerRequest, sizes: Sizes, files: Sequence[tuple[str, str]]
) -> Iterator[Evaluation]:
    """An evaluation that workers run, while it is entered. No weights are loaded in this process.

    Raises as `open_evaluation` does, and RopeconvError where no worker can load the model.
    """
    if opening.servers:
        raise UsageError(
            "a server runs its model itself, so --workers has no effect on --server; leave it out"
        )
    local = replace(
        opening, device="auto", dtype="auto", device_map=""
    )  # workers may have other devices
    factory: Any = partial(EvalWorker, _absolute(opening), sizes, files)
    with open_evaluation(local, sizes, files) as evaluation, executor.pool(factory) as pool:
        [(_, about)] = list(pool([ABOUT]))
        if isinstance(about, Failure):
            raise RopeconvError(about.reason)
        runner = evaluation.runner
        runner.runtime, runner.device, runner.dtype = about
        evaluation.workers = partial(_measured, pool)
        evaluation.at_once = max(1, executor.at_once)
        yield evaluation
