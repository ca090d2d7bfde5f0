"""SmolLM2-135M-Instruct at two and four times its 8,192 tokens: every method, by loss, LongPPL and
a passkey.

Two hours on two cores, minutes on a GPU. The passes are kept in the user's cache, so that a stopped
run continues.
"""

from pathlib import Path

import pytest

from ropeconv.features.evaluation.evaluation import Sizes, evaluate_model
from ropeconv.features.evaluation.result import Cell, Result
from ropeconv.inspection.receipts.metrics import GROWTH
from scripts.real_model import RealModel

METHODS = ("linear", "ntk", "ntk-old", "ntk-fixed", "mixed", "by-parts", "yarn")


def measured(model: Path, text: Path, factor: int) -> Result:
    """The model without a method and with each, on one window of a text."""
    sizes = Sizes(
        lengths=f"1/4T,1T,{factor}T",
        windows=1,
        targets=1536,
        depths=1,
        measures=f"{GROWTH},longppl,passkey",
    )
    rows = ",".join(["base", *(f"{method}:{factor}" for method in METHODS)])
    return evaluate_model(model, rows, [text], sizes)


@pytest.fixture(scope="module", params=[2, 4], ids=["2T", "4T"])
def result(
    request: pytest.FixtureRequest, real: RealModel, tmp_path_factory: pytest.TempPathFactory
) -> Result:
    manual = tmp_path_factory.mktemp("text") / "manual.txt"
    manual.write_text(
        "\n\n".join(path.read_text("utf-8") for path in sorted(real.texts.glob("*.txt"))), "utf-8"
    )
    return measured(real.checkpoint, manual, request.param)


def cell(result: Result, row: str, measure: str, metric: str, column: int) -> Cell:
    entry = result.cell(row, measure, metric, column)
    assert entry is not None, (row, measure, metric, column)
    return entry


def methods_of(result: Result) -> list[str]:
    return [row.name for row in result.rows if row.name != "base"]


def test_every_row_has_every_measure_at_every_length(result: Result) -> None:
    assert len(methods_of(result)) == len(METHODS)
    for row in result.rows:
        assert not row.refused
        for length in result.lengths:
            cell(result, row.name, GROWTH, "loss", length)
            cell(result, row.name, "longppl", "loss", length)
            exact = cell(result, row.name, "passkey", "exact", length).value
            assert exact <= cell(result, row.name, "passkey", "accuracy", length).value


def test_the_model_fails_beyond_its_context_and_every_method_mends_that(result: Result) -> None:
    beyond = result.lengths[-1]
    for measure in (GROWTH, "longppl"):
        assert (
            cell(result, "base", measure, "loss", beyond).value
            > 1 + cell(result, "base", measure, "loss", result.trained).value
        )
    assert cell(result, "base", "passkey", "exact", beyond).value == 0
    for row in methods_of(result):
        difference = cell(result, row, GROWTH, "loss", beyond)
        assert difference.difference is not None
        assert difference.difference < -1


def test_interpolation_costs_most_inside_the_trained_context_and_yarn_is_better_everywhere(
    result: Result,
) -> None:
    losses = {
        row: [cell(result, row, GROWTH, "loss", length).value for length in result.lengths]
        for row in methods_of(result)
    }
    linear, yarn = (
        next(losses[row] for row in losses if row.startswith(f"{method}:"))
        for method in ("linear", "yarn")
    )
    assert linear[1] == max(numbers[1] for numbers in losses.values())
    assert all(a < b for a, b in zip(yarn, linear, strict=True))
