"""What methods do to a real model at twice its trained context: an hour on two cores, for `scripts/test --all`."""

from __future__ import annotations

import subprocess
import sys

import pytest

from ropeconv.evaluate.result import Result, read_result
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


def test_methods_hold_beyond_the_trained_context_and_ramps_cost_little_inside_it(result: Result) -> None:
    for row in ("ntk:2", "yarn:2", "linear:2"):
        found = result.cell(row, "growth", "loss", 2 * TRAINED)
        assert (found.decided, found.difference < -2) == (True, True)
    rows = {row.name: row for row in result.rows}
    assert [rows[name].holds_to for name in ("base", "yarn:2", "linear:2")] == [TRAINED, 2 * TRAINED, 2 * TRAINED]
    assert max(abs(rows["ntk:2"].price), abs(rows["yarn:2"].price)) < 0.15 < 1 < rows["linear:2"].price
