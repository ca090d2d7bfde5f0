"""What methods do to a real model at short lengths, in transformers and in llama.cpp.

`scripts/test` runs this by itself. Nothing in it is trained: these are the losses that an extension
costs where a model needs none.
"""

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from ropeconv.features.evaluation.cases import EVAL, EvaluationSizes, Observation
from ropeconv.features.evaluation.evaluation import Evaluation, parse_measures
from ropeconv.features.evaluation.runners.opening import open_runner
from ropeconv.features.evaluation.runners.runner import Runner, RunnerRequest
from ropeconv.features.evaluation.texts import read_files, tokenize
from ropeconv.formats.journal import Journal
from ropeconv.verbs.rows import parse_rows
from scripts.real_model import RealModel

ROWS = "base,linear:4,yarn:4,mixed:4,ntk:4,by-parts:4"
LENGTH = 768


@pytest.fixture(scope="module")
def runner(real: RealModel) -> Iterator[Runner]:
    with open_runner(
        RunnerRequest(str(real.checkpoint), parse_rows(ROWS), device="cpu", dtype="float32")
    ) as (
        opened,
        _,
    ):
        yield opened


def evaluation(
    runner: Runner, real: RealModel, rows: str, measure: str, sizes: EvaluationSizes
) -> Evaluation:
    names = [str(real.texts / f"{name}.txt") for name in ("typesseq", "specialnames", "class")]
    measures = parse_measures(measure)
    return Evaluation(
        parse_rows(rows), measures, tokenize(read_files(names), runner.tokenizer), sizes, runner
    )


def run(experiment: Evaluation, folder: Path) -> dict[str, list[Observation]]:
    with Journal(folder / "journal.jsonl", EVAL, experiment.runner.source) as journal:
        return experiment.run(journal).observations


def losses(observations: dict[str, list[Observation]]) -> dict[str, float]:
    return {
        row: float(np.mean([observation.value for observation in series]))
        for row, series in observations.items()
    }


@pytest.fixture(scope="module")
def measured(
    runner: Runner, real: RealModel, tmp_path_factory: pytest.TempPathFactory
) -> tuple[Evaluation, dict[str, float]]:
    """Six rows over one window, and the mean loss of each."""
    experiment = evaluation(
        runner, real, ROWS, "position", EvaluationSizes((LENGTH,), runner.trained, windows=1)
    )
    return experiment, losses(run(experiment, tmp_path_factory.mktemp("losses")))


def test_the_order_of_the_methods_is_the_one_that_is_known(
    measured: tuple[Evaluation, dict[str, float]],
) -> None:
    loss = measured[1]
    assert list(loss) == ROWS.split(",")
    assert loss["base"] == min(loss.values())
    assert loss["linear:4"] == max(loss.values())
    # angles divided by four everywhere are much worse than what leaves the fast pairs alone
    assert loss["linear:4"] - loss["base"] > 0.7
    assert all(loss[row] - loss["base"] < 0.4 for row in loss if row != "linear:4")


def test_llama_cpp_measures_the_same_with_the_quantised_file(
    measured: tuple[Evaluation, dict[str, float]], real: RealModel, tmp_path: Path
) -> None:
    here = measured[1]
    with open_runner(RunnerRequest(str(real.gguf), [])) as (runner, _):
        experiment = evaluation(
            runner, real, ROWS, "position", EvaluationSizes((LENGTH,), runner.trained, windows=1)
        )
        there = losses(run(experiment, tmp_path))
    assert list(there) == list(here)
    assert [np.exp(there[row] - here[row]) for row in here] == pytest.approx([1.0] * 6, abs=0.01)
    assert abs(np.exp(there["base"] - here["yarn:4"]) - 1) > 0.05
