"""Units run in order, through the journal, and a row that fails does not stop the others."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ropeconv.engines.engine import Progress
from ropeconv.errors import UsageError
from ropeconv.evaluate.cases import EVAL, EvaluationSizes
from ropeconv.evaluate.evaluation import Evaluation, parse_measures
from ropeconv.evaluate.row import Row
from ropeconv.evaluate.run import Refusal, RunOutcome
from ropeconv.evaluate.texts import Texts
from ropeconv.formats.journal import Journal
from ropeconv.rope.errors import RopeconvError

from .engines import ByHand, Loss, numbered, prose

ASKED = EvaluationSizes((16, 32), 16, windows=3, targets=4)
ROWS: dict[str, Loss] = {"base": lambda ids, at: 2.0, "better": lambda ids, at: 1.5}


def evaluation(
    runner: ByHand, measures: str = "growth", texts: Texts | None = None, sizes: EvaluationSizes = ASKED
) -> Evaluation:
    rows, texts = [Row(name) for name in (*runner.engines, *runner.refused)], texts or numbered(100)
    runner.tokenizer = texts.tokenizer
    return Evaluation(rows, parse_measures(measures), texts, sizes, runner)


def run(runner: ByHand, folder: Path, progress: Progress | None = None, **options: Any) -> RunOutcome:
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
    with pytest.raises(RopeconvError, match="no row was run: the engine has gone"):
        run(ByHand({"bad": fails}), tmp_path / "other")
    with pytest.raises(UsageError, match="no row can be run: odd does not fit this model"):
        evaluation(ByHand({}, refused=["odd"])).units  # noqa: B018


def test_a_length_with_nan_has_no_cell_and_all_others_run(tmp_path: Path) -> None:
    def broken(ids: Sequence[int], at: int) -> float:
        return float("nan") if len(ids) == 32 and at > 29 and ids[0] > 30 else 1.0

    outcome = run(ByHand({**ROWS, "broken": broken}), tmp_path, measures="growth,position")
    message = "broken gives NaN or infinite logits at position 30 of 32; give --dtype float32 or bfloat16."
    assert sorted(outcome.sentences(16)) == [f"broken, {name} at 2T: {message}" for name in ("growth", "position")]
    columns = {row: {(point.measure, point.column) for point in points} for row, points in outcome.observations.items()}
    assert columns["broken"] == {("growth", 16)}
    assert columns["base"] == columns["better"] > columns["broken"]
    with Journal(tmp_path / "journal", EVAL, "source") as journal:
        assert np.isfinite([point.value for line in journal.lines.values() for point in line.observations]).all()


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
        points = {(point.measure, point.column, point.value) for point in outcome.observations["base"]}
        expected = {(name, column, loss) for name in measures.split(",")[:2] for column, loss in ((16, 3.0), (32, 0.5))}
        assert {point for point in points if point[0] != "position"} == expected
    outcome = run(ByHand({"base": near, "broken": breaks}), tmp_path, measures="growth,longppl", sizes=sizes)
    assert [outcome.refused("broken", name, 32)[:22] for name in ("growth", "longppl")] == [
        "broken gives NaN or in"
    ] * 2


def test_numbers_of_an_earlier_run_with_other_texts_are_paired_by_the_tokens_of_this_one(tmp_path: Path) -> None:
    def of_text(ids: Sequence[int], at: int) -> float:
        return ids[at] / 1000  # which text, and which place in it

    texts = numbered(100, 100)
    run(ByHand({"base": of_text}), tmp_path, texts=Texts(texts.documents[1:], texts.tokenizer))
    rows: dict[str, Loss] = {"base": of_text, "worse": lambda ids, at: of_text(ids, at) + 0.5}
    outcome = run(ByHand(rows), tmp_path, texts=texts)
    pairs = {row: {point.pair: point.value for point in points} for row, points in outcome.observations.items()}
    assert len(pairs["base"]) == len(pairs["worse"]) == 6, "three windows of two lengths"
    for pair, value in pairs["base"].items():
        assert pairs["worse"][pair] - value == pytest.approx(0.5)
        assert pair[3] == int(value), "the document is that of this run"


def test_the_module_where_numbers_stop_being_finite_is_named(tiny_llama: Path, tmp_path: Path) -> None:
    import torch

    from ropeconv.engines.transformers.engine import TransformersEngine
    from ropeconv.engines.transformers.load import DeviceSpec
    from ropeconv.evaluate.texts import CheckpointTokenizer

    engine = TransformersEngine.load(tiny_llama, DeviceSpec("cpu", "float32"))
    texts, sizes = prose(CheckpointTokenizer(tiny_llama)), EvaluationSizes((300,), 64, windows=1, depths=1)
    runner = ByHand({"base": engine})
    assert not run(runner, tmp_path / "finite", measures="passkey", texts=texts, sizes=sizes).refusals
    with torch.no_grad():
        engine.model.get_submodule("model.layers.1.mlp.up_proj").weight.fill_(float("nan"))
    with pytest.raises(RopeconvError, match=r"base gives .* begin in the output of model.layers.1.mlp.up_proj; give"):
        run(runner, tmp_path / "broken", measures="passkey", texts=texts, sizes=sizes)
    assert not any(module._forward_hooks for module in engine.model.modules())
