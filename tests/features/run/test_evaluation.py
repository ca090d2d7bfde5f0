"""`eval --workers`: the same table as from one process, whatever happens to the workers."""

import json
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from ropeconv.features.evaluation.cases import EVAL
from ropeconv.features.evaluation.evaluation import Sizes, open_evaluation
from ropeconv.features.evaluation.result import Result
from ropeconv.features.evaluation.runners.runner import RunnerRequest
from ropeconv.features.evaluation.texts import read_files
from ropeconv.features.run.evaluation import open_spread
from ropeconv.features.run.executors.executor import Executor, Pool, Results
from ropeconv.formats.journal import Journal
from ropeconv.rope.errors import RopeconvError
from ropeconv.verbs.rows import parse_rows

from ...support.in_process import command
from ...support.run_plans import models

SIZES = Sizes(lengths="1/2T,4T", windows=3, targets=8)
ROWS = "base,yarn:4,ntk:4,linear:4,mixed:4:log_n=clamped"


class Here(Executor):
    """A worker in this process. change: of what it says about itself, or of a unit."""

    at_once = 1

    def __init__(self, change: Callable[[Any], Any] = lambda value: value) -> None:
        self.change = change

    @contextmanager
    def pool(self, factory: Any, retries: int = 2) -> Iterator[Pool]:
        worker = factory()

        def run(items: Sequence[Any]) -> Results:
            for index, item in reversed(list(enumerate(items))):
                yield index, self.change(worker(item))

        with worker.stack:
            yield run


class Outcome(NamedTuple):
    """table: without the seconds. refusals: as texts. written: the keys in the journal."""

    table: dict[str, Any]
    refusals: list[str]
    written: list[str]


def comparable(result: Result) -> dict[str, Any]:
    return {key: value for key, value in result.to_dict().items() if key != "seconds"}


def evaluated(place: Path, journal: Path, executor: Executor | None = None) -> Outcome:
    """An evaluation of model a. executor: over whose workers it is spread; None for one process."""
    query = RunnerRequest(str(place / "models" / "a"), parse_rows(ROWS))
    files = read_files([str(place / "text.txt")])
    with (
        open_spread(executor, query, SIZES, files)
        if executor
        else open_evaluation(query, SIZES, files)
    ) as evaluation:
        with Journal(journal, EVAL, evaluation.runner.source) as writing:
            evaluation.run(writing)
        assert ("loaded" in vars(evaluation.runner)) is not bool(executor), (
            "no weights are loaded where workers have them"
        )
        written = sorted(json.loads(line)["key"] for line in journal.read_text().splitlines()[1:])
        assert len(written) == len(set(written))
        return Outcome(
            comparable(evaluation.result("a")),
            sorted(map(str, evaluation.outcome.refusals)),
            written,
        )


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return models(tmp_path_factory.mktemp("spread"), "a")


def test_what_workers_compute_with_is_what_the_table_says_and_is_of_one_kind(
    place: Path, tmp_path: Path
) -> None:
    def on_a_gpu(value: Any) -> Any:
        return ("transformers 9", "cuda", "bfloat16") if isinstance(value, tuple) else value

    files = read_files([str(place / "text.txt")])
    query = RunnerRequest(str(place / "models" / "a"), parse_rows("base,yarn:4"))
    with open_spread(Here(on_a_gpu), query, SIZES, files) as evaluation:
        result = evaluation.result("a")
        assert (result.runtime, result.device, result.dtype) == (
            "transformers 9",
            "cuda",
            "bfloat16",
        )
    with pytest.raises(RopeconvError, match="one kind"):
        evaluated(place, tmp_path / "j.jsonl", Here(on_a_gpu))


def test_the_command_goes_on_with_the_journal_of_workers(place: Path) -> None:
    given = (
        "eval",
        "models/a",
        "--methods",
        "base,yarn:4",
        "--text",
        "text.txt",
        "--lengths",
        "1/2T,4T",
        "--json",
    )
    sizes = ("--windows", "3", "--targets", "8", "--journal", "j.jsonl")
    spread = command(place, *given, *sizes, "--workers", "1", code=0)
    again = command(place, *given, *sizes, code=0)
    assert re.search("12 sequences .* j.jsonl", again.stderr)
    assert json.loads(spread.stdout)["cells"] == json.loads(again.stdout)["cells"]
    for more, code, message in (
        (
            ("models/a", "--methods", "base,yarn:4", "--workers", "many"),
            2,
            "'many' is not a place to run; give local",
        ),
        (
            ("--server", "http://localhost:1", "--workers", "2"),
            2,
            "--workers has no effect on --server; leave it out",
        ),
        (("models/none", "--workers", "2"), 1, "models/none"),
    ):
        done = command(place, "eval", *more, "--text", "text.txt", code=code)
        assert (message in done.stderr, done.stderr.count("\n")) == (True, 1), done.stderr
