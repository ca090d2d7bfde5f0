"""Costs are found from the first sequences of a run, and a budget says what fits."""

from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from ropeconv.engines.engine import Progress, TokenLosses
from ropeconv.errors import UsageError
from ropeconv.evaluate import evaluation as module
from ropeconv.evaluate import run as running
from ropeconv.evaluate.cases import EVAL, Case, EvaluationSizes
from ropeconv.evaluate.evaluation import Cost, Estimate, Evaluation, fit_cost
from ropeconv.formats.journal import Journal
from ropeconv.rope.errors import RopeconvError

from ..support.waiting import Clock
from .engines import ByHand, Computed, numbered
from .test_run import evaluation

TRUE = Cost(2e-3, 3e-5)


class Timed(Computed):
    """Takes the time that TRUE says, and a second more for its first sequence."""

    def __init__(self, clock: Clock, fails: bool = False) -> None:
        super().__init__(lambda ids, at: 1.0)
        self.clock, self.fails = clock, fails

    def token_losses(self, ids: Sequence[int], targets: Sequence[int], progress: Progress | None = None) -> TokenLosses:
        if self.fails:
            raise RopeconvError("the engine has gone")
        self.clock.now += TRUE.of(case(len(ids))) + (not self.asked)
        return super().token_losses(ids, targets, progress)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(running, "time", SimpleNamespace(perf_counter=clock))
    return clock


def case(length: int, targets: int = 4, window: int = 0) -> Case:
    ids = np.arange(length, dtype=np.int32)
    return Case("growth", length, 0, window, ids, ids[-targets:])


SIZES = EvaluationSizes((16, 32, 64), 16, windows=3, targets=4)


def timed(clock: Clock, sizes: EvaluationSizes = SIZES) -> tuple[Timed, Evaluation]:
    engine = Timed(clock)
    return engine, evaluation(ByHand({"gone": Timed(clock, fails=True), "base": engine}, swaps=False), sizes=sizes)


def test_a_cost_is_fitted_to_the_fastest_time_of_each_length() -> None:
    points = [(n, TRUE.of(case(n))) for n in (64, 256, 1024)]
    fitted = fit_cost([*points, (64, 5.0)])
    assert (fitted.token, fitted.pair) == (pytest.approx(TRUE.token), pytest.approx(TRUE.pair))
    assert fit_cost([(10, 2.0)]) == Cost(pytest.approx(0.2))
    for seconds in (1.0, 1e4):  # terms below 0 are left out
        fitted = fit_cost([(10, 1.0), (100, seconds)])
        assert min(fitted.token, fitted.pair) >= 0


def test_an_estimate_runs_the_first_sequences_and_keeps_them(clock: Clock, tmp_path: Path) -> None:
    engine, evaluation = timed(clock)
    with Journal(tmp_path / "journal", EVAL, "source") as journal:
        estimated = evaluation.estimate(journal)
        assert engine.asked == [16, 16, 32], "real ones, the first of which warms up"
        left = [unit.case for unit in evaluation.missing(journal)]
        assert (len(estimated.cases), len(left)) == (15, 15)  # of two rows, one of which fails
        assert estimated.seconds == pytest.approx(sum(map(TRUE.of, left)))
        evaluation.run(journal)
    assert len(engine.asked) == 9, "none is read twice"


def test_an_estimate_without_a_journal_is_of_the_whole_run(clock: Clock) -> None:
    assert len(timed(clock)[1].estimate().cases) == 18


def test_a_second_length_that_takes_more_than_a_minute_is_not_timed(clock: Clock) -> None:
    engine, evaluation = timed(clock, EvaluationSizes((64, 8192), 16, windows=2, targets=4))
    evaluation.texts = numbered(20_000)
    evaluation.estimate()
    assert engine.asked == [64]


@pytest.mark.parametrize(("patience", "notes"), [(1e-6, 1), (60.0, 0)])
def test_a_long_run_is_announced_after_two_lengths(
    clock: Clock, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, patience: float, notes: int
) -> None:
    monkeypatch.setattr(module, "PATIENCE", patience)
    engine, evaluation = timed(clock)
    heard: list[tuple[str, int]] = []
    with Journal(tmp_path / "journal", EVAL, "source") as journal:
        evaluation.run(journal, Progress(lambda words: heard.append((words, len(engine.asked)))))
    assert len(heard) == notes
    for words, read in heard:
        assert words.startswith("The other 7 sequences with ")
        assert read == 2


def test_an_estimate_is_the_sum_over_cases() -> None:
    estimate = Estimate([case(100), case(200)], {"growth": Cost(0.1, 0.0001)})
    assert (estimate.seconds, estimate.tokens) == (pytest.approx(35.0), 300)
    assert estimate.sentence == "2 sequences with 300 tokens take about 35 s."
    assert Estimate([case(100)], {}).sentence == "1 sequence with 100 tokens will take an unknown time."


def test_a_budget_says_what_fits() -> None:
    sizes, cost = EvaluationSizes((100, 400), 100, windows=4), {"growth": Cost(1.0)}
    cases = [case(length, window=window) for window in range(4) for length in sizes.lengths]  # 2000 s
    for budget in (2001, 0):
        Estimate(cases, cost).check(budget, sizes)
    for budget, at_once, words in (
        (1100, 1, "--windows 2$"), (300, 1, "--windows 3 and --lengths up to 1T"), (50, 1, "a smaller model, or a GPU"),
        (300, 4, "--windows 2$"),
    ):  # fmt: skip
        with pytest.raises(UsageError, match=words):
            Estimate(cases, cost, at_once).check(budget, sizes)
