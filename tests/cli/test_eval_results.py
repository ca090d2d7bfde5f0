"""What `ropeconv eval` leaves: a result, a page, a receipt, and an exit code."""

from __future__ import annotations

import json
import pydoc_data.topics
from pathlib import Path

import pytest

from ropeconv.evaluate.result import read_result
from ropeconv.receipts import read_receipt

from ..conftest import Run
from ..support.baking import apply, make_plan
from ..support.llamacpp import checkpoint

YARN = {"method": "yarn", "parameters": {"factor": 4.0}}
SIZES = ("--lengths", "1T,2T", "--windows", "5", "--targets", "8", "-q")


@pytest.fixture
def models(tmp_path: Path) -> Path:
    """A folder with a source, an output of it, and a text."""
    from ropeconv.rope.recipe import Recipe

    apply(make_plan(checkpoint("llama", tmp_path / "source"), Recipe.from_dict(YARN), tmp_path / "baked"))
    (tmp_path / "text.txt").write_text(pydoc_data.topics.topics["assert"] * 20)
    return tmp_path


def test_a_result_a_page_and_the_exit_code_of_a_condition(run: Run, models: Path) -> None:
    given = ("eval", "source", "--methods", "base,linear:4", "--text", "text.txt", *SIZES)
    done = run(*given, "-o", "r.json", "--report", "r.html", "--plot", "p.svg", "--fail-if", "base > 0.5 @2T")
    assert done.returncode == 3, done.stderr
    assert done.stdout.startswith("growth: loss in nats per token, then minus base\n")
    result = read_result(models / "r.json")
    assert [row.name for row in result.rows] == ["base", "linear:4"]
    assert {cell.windows for cell in result.cells} == {5}
    assert "<svg" in (models / "r.html").read_text()
    assert (models / "p.svg").read_text().startswith("<svg")
    again = run(*given, "--json", "--fail-if", "base < 0.5 @2T")
    assert again.returncode == 0, again.stderr
    cells = [
        {key: value for key, value in cell.items() if key != "seconds"} for cell in json.loads(again.stdout)["cells"]
    ]
    assert cells == json.loads((models / "r.json").read_text())["cells"], "from the journal comes the same table"


def test_the_receipt_of_an_output_has_what_was_measured_against_its_source(run: Run, models: Path) -> None:
    done = run("eval", "baked", "--against", "source", "--text", "text.txt", *SIZES, "-o", "r.json")
    assert done.returncode == 0, done.stderr
    result = read_result(models / "r.json")
    (found,) = read_receipt(models / "baked").evaluations
    cell = result.cell(result.rows[1].name, "growth", "loss", result.lengths[-1])
    assert cell is not None
    assert found.against == result.rows[0].name
    assert found.measured[-1].difference == cell.difference
    assert not (models / "source" / "ropeconv.json").exists()


@pytest.mark.parametrize("condition", ["base", "base > other @2T", "base > 1 @8T", "position base > 1 @2T"])
def test_a_condition_that_cannot_be_judged_is_refused_before_anything_runs(
    run: Run, models: Path, condition: str
) -> None:
    given = ("eval", "source", "--methods", "base", "--text", "text.txt", *SIZES)
    done = run(*given, "--fail-if", condition)
    assert done.returncode == 2
    assert "--fail-if" in done.stderr
