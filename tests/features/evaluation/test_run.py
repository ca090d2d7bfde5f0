"""Units run in order and through the journal, a row that fails does not stop the others, and a
budget is kept.
"""

from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from ropeconv.engines.engine import Progress, TokenLosses
from ropeconv.errors import UsageError
from ropeconv.features.evaluation import evaluation as module
from ropeconv.features.evaluation import run as running
from ropeconv.features.evaluation.cases import (
    EVAL,
    Case,
    EvalLine,
    EvaluationSizes,
    Observation,
)
from ropeconv.features.evaluation.evaluation import (
    Cost,
    Estimate,
    Evaluation,
    fit_cost,
    parse_measures,
)
from ropeconv.features.evaluation.run import Refusal, RunOutcome
from ropeconv.features.evaluation.texts import Texts
from ropeconv.formats.journal import Journal
from ropeconv.rope.errors import RopeconvError
from ropeconv.verbs.rows import Row

from ...support.waiting import Clock
from .engines import ByHand, Computed, Loss, numbered, prose

ASKED = EvaluationSizes((16, 32), 16, windows=3, targets=4)
ROWS: dict[str, Loss] = {"base": lambda ids, at: 2.0, "better": lambda ids, at: 1.5}


def evaluation(
    runner: ByHand,
    measures: str = "growth",
    texts: Texts | None = None,
    sizes: EvaluationSizes = ASKED,
) -> Evaluation:
    rows = [Row(name) for name in (*runner.engines, *runner.refused)]
    texts = texts or numbered(100)
    runner.tokenizer = texts.tokenizer
    return Evaluation(rows, parse_measures(measures), texts, sizes, runner)


def run(
    runner: ByHand, folder: Path, progress: Progress | None = None, **options: Any
) -> RunOutcome:
    measurement = evaluation(runner, **options)
    with Journal(folder / "journal", EVAL, runner.source) as journal:
        return measurement.run(journal, progress)


@pytest.mark.parametrize("swaps", [True, False])
def test_rows_alternate_where_swapping_is_cheap_and_only_there(tmp_path: Path, swaps: bool) -> None:
    runner = ByHand(ROWS, swaps=swaps)
    run(runner, tmp_path)
    assert runner.opened == (["base", "better"] * 6 if swaps else ["base", "better"])


def test_a_row_that_is_refused_or_fails_leaves_the_others(tmp_path: Path) -> None:
    def fails(ids: Sequence[int], at: int) -> float:
        raise RopeconvError("the engine has gone")

    outcome = run(ByHand({**ROWS, "bad": fails}, refused=["odd"]), tmp_path)
    assert set(outcome.observations) == {"base", "better"}
    assert Refusal("odd", "odd does not fit this model") in outcome.refusals
    assert "bad, growth at 1T, 2T: the engine has gone." in outcome.sentences(16)
    with pytest.raises(RopeconvError, match="no row was run"):
        run(ByHand({"bad": fails}), tmp_path / "other")
    with pytest.raises(UsageError, match="no row can be run"):
        evaluation(ByHand({}, refused=["odd"])).units  # noqa: B018


def test_a_length_with_nan_has_no_cell_and_all_others_run(tmp_path: Path) -> None:
    def broken(ids: Sequence[int], at: int) -> float:
        return float("nan") if len(ids) == 32 and at > 29 and ids[0] > 30 else 1.0

    outcome = run(ByHand({**ROWS, "broken": broken}), tmp_path, measures="growth,position")
    message = (
        "broken gives NaN or infinite logits at position 30 of 32; give --dtype float32 or"
        " bfloat16."
    )
    assert sorted(outcome.sentences(16)) == [
        f"broken, {name} at 2T: {message}" for name in ("growth", "position")
    ]
    columns = {
        row: {(point.measure, point.column) for point in points}
        for row, points in outcome.observations.items()
    }
    assert columns["broken"] == {("growth", 16)}
    assert columns["base"] == columns["better"] > columns["broken"]
    with Journal(tmp_path / "journal", EVAL, "source") as journal:
        assert np.isfinite(
            [point.value for line in journal.lines.values() for point in line.observations]
        ).all()


@pytest.mark.parametrize(("loss", "is_refused"), [(2.3, True), (2.001, False)])
def test_a_server_with_other_settings_does_not_get_its_old_numbers(
    tmp_path: Path, loss: float, is_refused: bool
) -> None:
    def started(loss: float) -> ByHand:
        runner = ByHand({"server": lambda ids, at: loss})
        runner.may_change = True  # type: ignore[misc]
        return runner

    run(started(2.0), tmp_path)
    again = started(loss)
    if is_refused:
        with pytest.raises(UsageError, match="--fresh"):
            run(again, tmp_path)
    else:
        values = [point.value for point in run(again, tmp_path).observations["server"]]
        assert values == [2.0] * 6
    engine = again.engines["server"]
    assert isinstance(engine, Computed)
    assert engine.asked == [32], "the longest sequence, once"


def test_answers_of_a_server_may_differ_by_rounding() -> None:
    """A sequence of questions has a log-probability and an answer for each."""

    def line(*values: float, exact: float = 1.0) -> EvalLine:
        observations = [Observation("keys", "exact", 64, 0, 0, exact)]
        observations += [Observation("keys", "log_prob", 64, 0, n, v) for n, v in enumerate(values)]
        return EvalLine("a key", 1.0, observations)

    assert not module._differ(line(-3.0, -1.0), line(-3.03, -1.0, exact=0.0))
    assert module._differ(line(-3.0, -1.0), line(-3.1, -1.0))
    right, wrong = (
        EvalLine("a key", 1.0, [Observation("passkey", "exact", 64, 0, 0, value)])
        for value in (1.0, 0.0)
    )
    assert module._differ(right, wrong)
    assert not module._differ(right, right)


def test_each_run_measures_its_own_speed(tmp_path: Path) -> None:
    passes = []
    for _ in range(2):
        runner = ByHand({"base": lambda ids, at: 2.0})
        run(runner, tmp_path, measures="growth,speed")
        engine = runner.engines["base"]
        assert isinstance(engine, Computed)
        passes.append(len(engine.asked))
    # speed has a warm-up and a pass for each of 3 windows of 2 lengths, growth 6 passes
    assert passes == [18, 12]


@pytest.mark.parametrize(
    "changed",
    [
        {"lengths": (16, 32)},
        {"targets": 5},
        {"windows": 2},
        {"depths": 2},
        {"seed": 1},
        {"generate": True},
    ],
)
def test_results_of_other_tokens_have_another_sample(changed: dict[str, Any]) -> None:
    sizes = {"lengths": (16, 64), "trained": 16, "windows": 3, "targets": 4}

    def sample(measures: str = "growth", **sizes: Any) -> str:
        runner = ByHand(ROWS)
        measurement = evaluation(runner, measures, sizes=EvaluationSizes(**sizes))
        return measurement.result("model").sample

    first = sample(**sizes)
    assert sample(**sizes) == first
    assert sample(**sizes | changed) != first
    assert sample("sliding:8", **sizes) != sample("sliding:4", **sizes)


@pytest.mark.parametrize("measure", ["growth", "position", "sliding:1"])
def test_a_length_without_a_token_to_predict_is_refused(measure: str) -> None:
    for length in (1, 2):
        runner = ByHand(ROWS)
        measurement = evaluation(runner, measure, sizes=EvaluationSizes((length,), 16))
        if length == 2:
            assert measurement.units
        else:
            with pytest.raises(UsageError, match="a length of 1 token leaves nothing to predict"):
                measurement.units  # noqa: B018


def test_what_fits_a_budget_is_no_more_than_the_texts_have() -> None:
    sizes = EvaluationSizes((16, 32), 16, windows=1000, targets=4)
    cases = [unit.case for unit in evaluation(ByHand(ROWS), sizes=sizes).units]
    windows = len({case.window for case in cases})
    assert windows == 18, "(100 - 32) / 4 and the first"
    estimate = Estimate(cases, {"growth": Cost(token=1.0)})
    for share, fits in ((0.51, 9), (0.1, 1)):
        with pytest.raises(UsageError, match=f"what fits: --windows {fits}$"):
            estimate.check(share * estimate.seconds, sizes)


def test_measures_that_predict_the_same_tokens_share_a_pass(tmp_path: Path) -> None:
    """longppl reads what growth has run, also in an earlier run, and is refused with it."""

    def near(ids: Sequence[int], at: int) -> float:
        return 3.0 if len(ids) == 16 else 0.5

    def breaks(ids: Sequence[int], at: int) -> float:
        return float("nan") if len(ids) == 32 else 1.0

    sizes = EvaluationSizes((16, 32), 32, windows=3, targets=4)
    for measures, passes in (("longppl", 6), ("growth,longppl", 0), ("growth,longppl,position", 3)):
        runner = ByHand({"base": near})
        outcome = run(runner, tmp_path, measures=measures, sizes=sizes)
        assert len(runner.engines["base"].asked) == passes
        points = {
            (point.measure, point.column, point.value) for point in outcome.observations["base"]
        }
        expected = {
            (name, column, loss)
            for name in measures.split(",")[:2]
            for column, loss in ((16, 3.0), (32, 0.5))
        }
        assert {point for point in points if point[0] != "position"} == expected
    outcome = run(
        ByHand({"base": near, "broken": breaks}), tmp_path, measures="growth,longppl", sizes=sizes
    )
    assert [outcome.refused("broken", name, 32)[:22] for name in ("growth", "longppl")] == [
        "broken gives NaN or in"
    ] * 2


def test_numbers_of_an_earlier_run_with_other_texts_are_paired_by_the_tokens_of_this_one(
    tmp_path: Path,
) -> None:
    def of_text(ids: Sequence[int], at: int) -> float:
        return ids[at] / 1000  # which text, and which place in it

    texts = numbered(100, 100)
    run(ByHand({"base": of_text}), tmp_path, texts=Texts(texts.documents[1:], texts.tokenizer))
    rows: dict[str, Loss] = {"base": of_text, "worse": lambda ids, at: of_text(ids, at) + 0.5}
    outcome = run(ByHand(rows), tmp_path, texts=texts)
    pairs = {
        row: {point.pair: point.value for point in points}
        for row, points in outcome.observations.items()
    }
    assert len(pairs["base"]) == len(pairs["worse"]) == 6, "three windows of two lengths"
    for pair, value in pairs["base"].items():
        assert pairs["worse"][pair] - value == pytest.approx(0.5)
        assert pair[3] == int(value), "the document is that of this run"


def test_the_module_where_numbers_stop_being_finite_is_named(
    tiny_llama: Path, tmp_path: Path
) -> None:
    import torch

    from ropeconv.engines.transformers.engine import TransformersEngine
    from ropeconv.engines.transformers.load import DeviceSpec
    from ropeconv.features.evaluation.texts import CheckpointTokenizer

    engine = TransformersEngine.load(tiny_llama, DeviceSpec("cpu", "float32"))
    texts = prose(CheckpointTokenizer(tiny_llama))
    sizes = EvaluationSizes((300,), 64, windows=1, depths=1)
    runner = ByHand({"base": engine})
    assert not run(
        runner, tmp_path / "finite", measures="passkey", texts=texts, sizes=sizes
    ).refusals
    with torch.no_grad():
        engine.model.get_submodule("model.layers.1.mlp.up_proj").weight.fill_(float("nan"))
    with pytest.raises(
        RopeconvError,
        match=r"base gives .* model.layers.1.mlp.up_proj",
    ):
        run(runner, tmp_path / "broken", measures="passkey", texts=texts, sizes=sizes)
    assert not any(module._forward_hooks for module in engine.model.modules())


# Costs are measured on the first sequences of a run, and a budget says what fits

TRUE = Cost(2e-3, 3e-5)


class Timed(Computed):
    """Takes the time that TRUE says, and a second more for its first sequence."""

    def __init__(self, clock: Clock, fails: bool = False) -> None:
        super().__init__(lambda ids, at: 1.0)
        self.clock, self.fails = clock, fails

    def token_losses(
        self, ids: Sequence[int], targets: Sequence[int], progress: Progress | None = None
    ) -> TokenLosses:
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
    return engine, evaluation(
        ByHand({"gone": Timed(clock, fails=True), "base": engine}, swaps=False), sizes=sizes
    )


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
        assert words.startswith("The other 7 sequences")
        assert read == 2


def test_an_estimate_is_the_sum_over_cases() -> None:
    estimate = Estimate([case(100), case(200)], {"growth": Cost(0.1, 0.0001)})
    assert (estimate.seconds, estimate.tokens) == (pytest.approx(35.0), 300)
    assert estimate.sentence == "2 sequences with 300 tokens take about 35 s."
    assert (
        Estimate([case(100)], {}).sentence
        == "1 sequence with 100 tokens will take an unknown time."
    )


def test_a_budget_says_what_fits() -> None:
    sizes = EvaluationSizes((100, 400), 100, windows=4)
    cost = {"growth": Cost(1.0)}
    cases = [
        case(length, window=window) for window in range(4) for length in sizes.lengths
    ]  # 2000 s
    for budget in (2001, 0):
        Estimate(cases, cost).check(budget, sizes)
    for budget, at_once, words in (
        (1100, 1, "--windows 2$"),
        (300, 1, "--windows 3 and --lengths up to 1T"),
        (50, 1, "a smaller model, or a GPU"),
        (300, 4, "--windows 2$"),
    ):
        with pytest.raises(UsageError, match=words):
            Estimate(cases, cost, at_once).check(budget, sizes)
