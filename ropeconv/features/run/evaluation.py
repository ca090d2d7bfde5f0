"""An evaluation on several workers, each of which has the model.

`open_spread` opens it. Only this process writes the journal.
"""

from collections.abc import Generator, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, closing, contextmanager
from dataclasses import replace
from functools import partial
from typing import Any

from ropeconv.engines.transformers.load import advice_on_memory
from ropeconv.errors import UsageError
from ropeconv.features.evaluation.cases import EvalLine
from ropeconv.features.evaluation.evaluation import Evaluation, Sizes, open_evaluation
from ropeconv.features.evaluation.run import EvaluationUnit, Refusal, UnitResult, UnitRunner
from ropeconv.features.evaluation.runners.runner import RunnerRequest
from ropeconv.formats.files import expand_home
from ropeconv.rope.errors import RopeconvError

from .executors import executor_of
from .executors.executor import Executor, Failure, Pool

DESCRIBE_WORKER = ""
"""The item for which a worker describes itself; all others are keys of units."""
WorkerDescription = tuple[str, str, str]
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

    def __call__(self, item: str) -> WorkerDescription | EvalLine | Refusal:
        """Measure one unit of an evaluation.

        A pool has only one way to ask its workers, so this call also describes the worker.

        Args:
            item: The key of the unit. For DESCRIBE_WORKER nothing is measured.

        Returns:
            For a unit its measurement (EvalLine), or why it has none (Refusal). For DESCRIBE_WORKER
            the runtime, the device and the dtype, such as ("transformers", "cuda", "bfloat16").
        """
        runner = self.evaluation.runner
        if item == DESCRIBE_WORKER:
            return runner.runtime, runner.device, runner.dtype

        # The key of a unit is made with the runtime, the device and the dtype of the one worker
        # that described itself. A worker with others does not know the key.
        if item not in self.units:
            raise RopeconvError(
                f"a worker computes with {runner.runtime} on {runner.device}, {runner.dtype}, and"
                " another one with something else; give workers of one kind"
            )
        with advice_on_memory():
            return self.running.run(self.units[item])


def _measure_on(pool: Pool, units: Sequence[EvaluationUnit]) -> Generator[UnitResult, None, None]:
    """Run units on the workers of a pool, and yield the index of each with its result.

    An evaluation calls this in place of running units in its own process. A unit is a sequence of
    tokens that a model reads with one method. If a worker ends while it runs a unit (killed, or out
    of memory), the result of that unit is a refusal with the reason.
    """
    keys = [unit.key for unit in units]
    # the pool yields the index of a key with its result, in the order in which they end
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
    """Open an evaluation whose sequences are spread over workers.

    This process loads no weights: it chooses the sequences, and makes the tables.

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
    # the user has named the devices of the workers, which this machine may not have
    without_device = replace(opening, device="auto", dtype="auto", device_map="")
    make_worker: Any = partial(EvalWorker, _with_absolute_paths(opening), sizes, files)
    with (
        open_evaluation(without_device, sizes, files) as evaluation,
        executor.pool(make_worker) as pool,
    ):
        # The evaluation makes the keys of the journal from the runtime, the device and the dtype of
        # its runner. These must be those of the workers, so one worker describes itself.
        runtime, device, dtype = _ask_for_description(pool)
        runner = evaluation.runner
        runner.runtime = runtime
        runner.device = device
        runner.dtype = dtype

        # from now on the evaluation gives its units to the workers, several at a time
        evaluation.workers = partial(_measure_on, pool)
        evaluation.at_once = max(1, executor.at_once)
        yield evaluation


def _ask_for_description(pool: Pool) -> WorkerDescription:
    """Return the runtime, the device and the dtype of a worker.

    Raises:
        RopeconvError: It cannot load the model.
    """
    ((_, answer),) = list(pool([DESCRIBE_WORKER]))  # the index of the only item, and its result
    if isinstance(answer, Failure):
        raise RopeconvError(answer.reason)
    about: WorkerDescription = answer
    return about
