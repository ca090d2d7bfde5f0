"""What methods do to a real model at twice its trained context: an hour on two cores, for `scripts/test --all`."""

from __future__ import annotations

import subprocess
import sys

import pytest

from ropeconv.evaluate.result import Cell, Result, read_result
from scripts.real_model import RealModel

TRAINED = 8192


@pytest.fixture(scope="module")
def result(real: RealModel, tmp_path_factory: pytest.TempPathFactory) -> Result:
    """The command of docs/evaluating.md."""
    folder = tmp_path_factory.mktemp("beyond")
    manual, out = folder / "manual.txt", folder / "result.json"
    manual.write_text("".join(path.read_text("utf-8") for path in sorted(real.texts.iterdir())), "utf-8")
    subprocess.run(
        [sys.executable, "-m", "ropeconv", "eval", str(real.checkpoint), "--methods", "base,ntk:2,yarn:2,linear:2",
         "--text", str(manual), "--lengths", "1/4T,1T,2T", "--windows", "3", "--targets", "512", "--device", "cpu",
         "--dtype", "bfloat16", "--journal", str(folder / "journal.jsonl"), "--quiet", "--out", str(out)],
        check=True, stdout=subprocess.DEVNULL,
    )  # fmt: skip
    return read_result(out)


def cell(result: Result, row: str, length: int) -> Cell:
    found = result.cell(row, "growth", "loss", length)
    assert found is not None
    return found


@pytest.mark.parametrize("row", ["ntk:2", "yarn:2", "linear:2"])
def test_beyond_the_trained_context_every_method_is_better_than_none(result: Result, row: str) -> None:
    found = cell(result, row, 2 * TRAINED)
    assert found.decided
    assert found.difference is not None
    assert found.difference < -2
    holds = {one.name: one.holds_to for one in result.rows}
    assert (holds["base"], holds["yarn:2"], holds["linear:2"]) == (TRAINED, 2 * TRAINED, 2 * TRAINED)


@pytest.mark.parametrize("length", [TRAINED // 4, TRAINED, 2 * TRAINED])
def test_angles_that_are_all_divided_lose_more_than_ramps_at_every_length(result: Result, length: int) -> None:
    assert cell(result, "linear:2", length).value > 1 + max(
        cell(result, row, length).value for row in ("ntk:2", "yarn:2")
    )


def test_inside_the_trained_context_an_extension_costs_little(result: Result) -> None:
    prices = {row.name: row.price for row in result.rows if row.price is not None}
    assert max(map(abs, (prices["ntk:2"], prices["yarn:2"]))) < 0.15
    assert prices["linear:2"] > 1
