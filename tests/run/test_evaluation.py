"""`eval --workers`: the same table as from one process, whatever happens to the workers."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from ropeconv.evaluate.case import EVAL
from ropeconv.evaluate.opening import Sizes, open_evaluation
from ropeconv.evaluate.result import Result
from ropeconv.evaluate.row import parse_rows
from ropeconv.evaluate.runners.request import Opening
from ropeconv.evaluate.texts.read import read_files
from ropeconv.formats.journal import Journal
from ropeconv.run.evaluation import About, EvalWorker, open_spread
from ropeconv.run.executors import Executor, Pool
from ropeconv.run.executors.local import Local

from ..conftest import run_in
from .plans import models

SIZES = Sizes(lengths="1/2T,4T", windows=3, targets=8)


class Mortal(EvalWorker):
    """Ends its process once, after some units. mark: made then."""

    def __init__(self, mark: Path, after: int, *given: Any) -> None:
        super().__init__(*given)
        self.mark, self.left = mark, after

    def __call__(self, item: str) -> Any:
        self.left -= 1
        if self.left < 0 and not self.mark.exists():
            self.mark.touch()
            os.kill(os.getpid(), signal.SIGKILL)
        return super().__call__(item)


class WithMortals(Executor):
    """Processes whose workers are `Mortal`."""

    def __init__(self, mark: Path) -> None:
        self.mark, self.local = mark, Local(2)

    def pool(self, factory: Any, retries: int = 2) -> Any:
        return self.local.pool(partial(Mortal, self.mark, 4, *factory.args), retries)


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory, tiny: Callable[[str], Path]) -> Path:
    return models(tmp_path_factory.mktemp("spread"), tiny("llama"), "a")


def opening(place: Path, rows: str = "base,yarn:4,ntk:4,linear:4,mixed:4:log_n=clamped") -> Opening:
    return Opening(str(place / "models" / "a"), parse_rows(rows))


def comparable(result: Result) -> dict[str, Any]:
    found = result.to_dict()
    return {key: value for key, value in found.items() if key != "seconds"}


def alone(place: Path, asked: Opening, journal: Path) -> Result:
    with open_evaluation(asked, SIZES, read_files([str(place / "text.txt")])) as found:
        with Journal(journal, EVAL, found.runner.source) as opened:
            found.run(opened)
        return found.result("a")


def test_a_killed_worker_loses_nothing_and_the_table_is_that_of_one_process(place: Path, tmp_path: Path) -> None:
    asked, files = opening(place), read_files([str(place / "text.txt")])
    with open_spread(WithMortals(tmp_path / "mark"), asked, SIZES, files) as (evaluation, spread):
        assert "loaded" not in vars(evaluation.runner)
        with Journal(tmp_path / "j.jsonl", EVAL, evaluation.runner.source) as journal:
            evaluation.run(journal, by=spread.run_units)
        result = evaluation.result("a")
        assert "loaded" not in vars(evaluation.runner)
        keys = [unit.key for unit in evaluation.units]
    assert (tmp_path / "mark").exists()
    assert comparable(result) == comparable(alone(place, asked, tmp_path / "alone.jsonl"))
    written = [json.loads(line)["key"] for line in (tmp_path / "j.jsonl").read_text().splitlines()[1:]]
    assert sorted(written) == sorted(keys)
    assert spread.estimate([unit.case for unit in evaluation.units]).seconds > 0


class Here(Executor, Pool):
    """A worker in this process. change: of what it says about itself, or of a unit."""

    at_once = 1

    def __init__(self, change: Callable[[str, Any], Any] = lambda item, found: found) -> None:
        self.change = change

    def pool(self, factory: Any, retries: int = 2) -> Any:
        self.worker = factory()
        return self

    def __enter__(self) -> Here:
        return self

    def __exit__(self, *problem: object) -> None:
        self.worker.stack.close()

    def run(self, items: Sequence[Any]) -> Any:
        for index, item in reversed(list(enumerate(items))):
            yield index, self.change(item, self.worker(item))


def test_a_row_and_a_column_are_refused_as_in_one_process(place: Path, tmp_path: Path) -> None:
    from ropeconv.errors import NotFinite

    rows = "base,yarn:4,linear:4"
    asked, files = opening(place, rows), read_files([str(place / "text.txt")])
    outcomes = []
    for spread_over in (True, False):
        with pytest.MonkeyPatch.context() as patch:
            from ropeconv.engines.transformers import TransformersEngine
            from ropeconv.evaluate.runners.patched import Patched

            losses, engine = TransformersEngine.token_losses, Patched.engine

            def token_losses(self: Any, ids: Any, targets: Any, progress: Any = None, losses: Any = losses) -> Any:
                if len(ids) > 200:
                    raise NotFinite(f"no {len(ids)}")
                return losses(self, ids, targets, progress)

            def engine_of(self: Any, row: Any, engine: Any = engine) -> Any:
                if row.name == "linear:4":
                    raise NotFinite("no such row")
                return engine(self, row)

            patch.setattr(TransformersEngine, "token_losses", token_losses)
            patch.setattr(Patched, "engine", engine_of)
            if spread_over:
                with open_spread(Here(), asked, SIZES, files) as (evaluation, spread):
                    with Journal(tmp_path / "a.jsonl", EVAL, evaluation.runner.source) as journal:
                        evaluation.run(journal, by=spread.run_units)
                    outcomes.append((evaluation.outcome.refusals, comparable(evaluation.result("a"))))
            else:
                with open_evaluation(asked, SIZES, files) as evaluation:
                    with Journal(tmp_path / "b.jsonl", EVAL, evaluation.runner.source) as journal:
                        evaluation.run(journal)
                    outcomes.append((evaluation.outcome.refusals, comparable(evaluation.result("a"))))
    assert sorted(map(str, outcomes[0][0])) == sorted(map(str, outcomes[1][0]))
    assert len(outcomes[0][0]) == 3
    assert outcomes[0][1] == outcomes[1][1]


def test_what_workers_compute_with_is_what_the_table_says(place: Path, tmp_path: Path) -> None:
    def on_a_gpu(item: str, found: Any) -> Any:
        return About("transformers 9", "cuda", "bfloat16", found.costs) if isinstance(found, About) else found

    files = read_files([str(place / "text.txt")])
    with open_spread(Here(on_a_gpu), opening(place), SIZES, files) as (evaluation, spread):
        result = evaluation.result("a")
        assert (result.runtime, result.device, result.dtype) == ("transformers 9", "cuda", "bfloat16")
        from ropeconv.errors import RopeconvError

        with (
            Journal(tmp_path / "j.jsonl", EVAL, evaluation.runner.source) as journal,
            pytest.raises(RopeconvError, match="give workers of one kind"),
        ):
            evaluation.run(journal, by=spread.run_units)


def test_the_command(place: Path) -> None:
    given = (
        "eval", "models/a", "--methods", "base,yarn:4", "--text", "text.txt", "--lengths", "1/2T,4T", "--windows", "3",
        "--targets", "8", "--json",
    )  # fmt: skip
    one = run_in(place, *given, "--journal", "one.jsonl")
    two = run_in(place, *given, "--journal", "two.jsonl", "--workers", "2")
    assert two.returncode == 0, two.stderr
    found = [json.loads(done.stdout) for done in (one, two)]
    assert {**found[0], "seconds": 0} == {**found[1], "seconds": 0}
    again = run_in(place, *given, "--journal", "two.jsonl")
    assert "12 sequences are in the journal, two.jsonl." in again.stderr
    refused = run_in(place, *given, "--workers", "many")
    assert (refused.returncode, "'many' is no place to run; give local, a number" in refused.stderr) == (2, True)
    refused = run_in(place, "eval", "--server", "http://localhost:1", "--text", "text.txt", "--workers", "2")
    assert (refused.returncode, "--workers has no effect on --server; leave it out" in refused.stderr) == (2, True)
    refused = run_in(place, "eval", "models/none", "--text", "text.txt", "--workers", "2")
    assert (refused.returncode, refused.stderr.count("\n")) == (1, 1)
