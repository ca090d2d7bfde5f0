"""An evaluation on several workers, each of which has the model.

`open_spread` opens it. Only this process writes the journal.
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
    """Measures units of an evaluation, with the model that it has loaded.

    A unit is a sequence of tokens that one row of the table reads, and is named by its key.
    """

    def __init__(
        self, opening: RunnerRequest, sizes: Sizes, files: Sequence[tuple[str, str]]
    ) -> None:
        """Open the evaluation, which stays open until the process ends; parameters as there."""
        self.stack = ExitStack()
        self.evaluation = self.stack.enter_context(open_evaluation(opening, sizes, files))
        self.units = {key: units[0] for key, units in self.evaluation.passes.items()}
        self.running = self.stack.enter_context(closing(UnitRunner(self.evaluation.runner)))

    def __call__(self, item: str) -> About | EvalLine | Refusal:
        """Measure one unit of an evaluation, or say what this worker computes with.

        Args:
            item: The key of the unit; or ABOUT, the empty string, which is the first question.

        Returns:
            For a unit its measurement (EvalLine), or why it has none (Refusal); for ABOUT the
            runtime, the device and the dtype, such as ("transformers", "cuda", "bfloat16").
        """
        runner = self.evaluation.runner
        if item == ABOUT:
            return runner.runtime, runner.device, runner.dtype
        # The key of a unit has the runtime, the device and the dtype of the worker that was asked
        # for them. A worker with others does not know the key.
        if item not in self.units:
            raise RopeconvError(
                f"a worker computes with {runner.runtime} on {runner.device}, {runner.dtype}, and"
                " another one with something else; give workers of one kind"
            )
        unit = self.units[item]
        result: EvalLine | Refusal = out_of_memory(lambda: self.running.run(unit))
        return result


def _measure_on(pool: Pool, units: Sequence[EvaluationUnit]) -> Generator[UnitResult, None, None]:
    """Run units on the workers of a pool, and yield the index of each with its result.

    An evaluation calls this in place of running units in its own process. A unit is a sequence of
    tokens that a model reads with one method. If a worker ends while it runs one (killed, or out of
    memory), the result of that is a refusal with the reason, and the others continue.
    """
    keys = [unit.key for unit in units]
    with closing(pool(keys)) as results:
        for index, result in results:
            unit = units[index]
            if isinstance(result, Failure):
                result = Refusal(
                    row=unit.row.name,
                    reason=result.reason,
                    measure=unit.measure.name,
                    column=unit.case.column,
                )
            yield index, result


def _with_absolute_paths(opening: RunnerRequest) -> RunnerRequest:
    """Return the same request for a worker, which runs in another folder."""
    rows = []
    for row in opening.rows:
        if row.path:
            row = replace(row, path=expand_home(str(row.path)).absolute())
        rows.append(row)
    return replace(
        opening, model=_absolute(opening.model), against=_absolute(opening.against), rows=rows
    )


def _absolute(name: str) -> str:
    """Return the absolute path of a model on this disk; others are names on the Hub."""
    if not name:
        return name
    path = expand_home(name)
    return str(path.absolute()) if path.exists() else name


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
    """Open an evaluation whose sequences are run by workers and not in this process.

    No weights are loaded in this process.

    Args:
        executor: Where the workers run.
        opening: The model and its rows.
        sizes: The sizes of the measures.
        files: Names and contents of texts.

    Raises:
        RopeconvError: As `open_evaluation` does, and where no worker can load the model.
    """
    if opening.servers:
        raise UsageError(
            "a server runs its model itself, so --workers has no effect on --server; leave it out"
        )
    # the named devices are those of the workers, which this machine may not have
    local = replace(opening, device="auto", dtype="auto", device_map="")
    make_worker: Any = partial(EvalWorker, _with_absolute_paths(opening), sizes, files)
    with open_evaluation(local, sizes, files) as evaluation, executor.pool(make_worker) as pool:
        # one worker says what it computes with, which is in the keys of the journal
        runtime, device, dtype = _ask_about(pool)
        runner = evaluation.runner
        runner.runtime = runtime
        runner.device = device
        runner.dtype = dtype

        # from now on the evaluation gives its units to the workers
        evaluation.workers = partial(_measure_on, pool)
        evaluation.at_once = max(1, executor.at_once)
        yield evaluation


def _ask_about(pool: Pool) -> About:
    """Return the runtime, the device and the dtype of a worker.

    Raises:
        RopeconvError: It cannot load the model.
    """
    ((_, answer),) = list(pool([ABOUT]))  # the index of the only item, and its result
    if isinstance(answer, Failure):
        raise RopeconvError(answer.reason)
    about: About = answer
    return about
