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
        self, request: RunnerRequest, sizes: Sizes, files: Sequence[tuple[str, str]]
    ) -> None:
        """Open the evaluation, which stays open until the process ends; parameters as there."""
        self.stack = ExitStack()
        self.evaluation = self.stack.enter_context(open_evaluation(request, sizes, files))
        self.units = {key: units[0] for key, units in self.evaluation.passes.items()}
        self.running = self.stack.enter_context(closing(UnitRunner(self.evaluation.runner)))

    def __call__(self, item: str) -> WorkerDescription | EvalLine | Refusal:
        """Measure one unit of an evaluation, or describe this worker.

        Args:
            item: The key of the unit, or DESCRIBE_WORKER, since a pool can only send items.

        Returns:
            The measurement of the unit (EvalLine), or the reason why it has none (Refusal). For
            DESCRIBE_WORKER, the runtime, device and dtype: ("transformers", "cuda", "bfloat16").
        """
        runner = self.evaluation.runner
        if item == DESCRIBE_WORKER:
            return runner.runtime, runner.device, runner.dtype

        # A key contains the runtime, the device and the dtype of the first worker. If this worker
        # computes on another device, say, its units have other keys.
        if item not in self.units:
            raise RopeconvError(
                f"a worker computes with {runner.runtime} on {runner.device}, {runner.dtype}, and"
                " another one with something else; give workers of one kind"
            )
        with advice_on_memory():
            return self.running.run(self.units[item])


def _run_units_on_workers(
    pool: Pool, units: Sequence[EvaluationUnit]
) -> Generator[UnitResult, None, None]:
    """Run units of an evaluation on workers, and yield the index and the result of each.

    Args:
        pool: A function that runs items on workers, and yields the results in the order in which
            they end.
        units: Sequences of tokens, each with the row (method) and the measure that it is for.
    """
    keys = [unit.key for unit in units]
    with closing(pool(keys)) as results:
        for index, result in results:
            unit = units[index]
            # a worker that ran out of memory, or was killed: the unit is refused with this reason
            if isinstance(result, Failure):
                result = Refusal(
                    row=unit.row.name,
                    reason=result.reason,
                    measure=unit.measure.name,
                    column=unit.case.column,
                )
            yield index, result


def _with_absolute_paths(request: RunnerRequest) -> RunnerRequest:
    """Return the same request for a worker, which runs in another folder."""
    rows = []
    for row in request.rows:
        if row.path:
            row = replace(row, path=expand_home(str(row.path)).absolute())
        rows.append(row)
    return replace(
        request, model=_absolute(request.model), against=_absolute(request.against), rows=rows
    )


def _absolute(name: str) -> str:
    """Return the absolute path of a model on this disk; others are names on the Hub."""
    if not name:
        return name
    path = expand_home(name)
    return str(path.absolute()) if path.exists() else name


def open_spread_by_name(
    workers: str, request: RunnerRequest, sizes: Sizes, files: Sequence[tuple[str, str]]
) -> AbstractContextManager[Evaluation]:
    """Open an evaluation on workers, as `--workers` names them.

    Raises:
        UsageError: For another name than those of `executor_of`.
        RopeconvError: As `open_spread` does.
    """
    return open_spread(executor_of(workers), request, sizes, files)


@contextmanager
def open_spread(
    executor: Executor, request: RunnerRequest, sizes: Sizes, files: Sequence[tuple[str, str]]
) -> Iterator[Evaluation]:
    """Open an evaluation whose sequences are read by workers, several at a time.

    This process chooses the sequences and makes the tables. Only the workers load the weights.

    Args:
        executor: Where the workers run.
        request: The model, the methods to measure, and the device of the workers.
        sizes: How much is measured.
        files: Names and contents of texts.

    Raises:
        RopeconvError: No worker can load the model, or as in `open_evaluation`.
    """
    if request.servers:
        raise UsageError(
            "a server runs its model itself, so --workers has no effect on --server; leave it out"
        )
    # the user has named the devices of the workers, which this machine may not have
    without_device = replace(request, device="auto", dtype="auto", device_map="")
    make_worker: Any = partial(EvalWorker, _with_absolute_paths(request), sizes, files)
    with (
        open_evaluation(without_device, sizes, files) as evaluation,
        executor.pool(make_worker) as pool,
    ):
        # Keys of the journal contain the runtime, the device and the dtype of the runner. Here
        # only the workers run, so a worker is asked for its runtime, device and dtype.
        runtime, device, dtype = _ask_for_description(pool)
        runner = evaluation.runner
        runner.runtime = runtime
        runner.device = device
        runner.dtype = dtype

        # from now on the evaluation gives its units to the workers
        evaluation.workers = partial(_run_units_on_workers, pool)
        evaluation.at_once = max(1, executor.at_once)  # the number of units that run at a time
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
