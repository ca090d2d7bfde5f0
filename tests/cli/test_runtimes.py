"""`ropeconv list runtimes`: how much is known, and the matrix."""

from __future__ import annotations

import json

from ..conftest import Run


def cells(text: str) -> dict[str, list[str]]:
    """The lines of a table by their first word."""
    return {line.split()[0]: line.split()[1:] for line in text.splitlines() if line.strip()}


def test_the_matrix_has_a_letter_for_each_way_that_is_exact(run: Run) -> None:
    text = run("list", "runtimes", "--matrix", "--runtime", "mlx-lm@0.32", "--runtime", "exllamav3@1.6").stdout
    found = cells(text)
    assert found["llama"] == ["TL3YF", "TL3YF"]
    assert found["qwen3_moe"] == ["T....", "TL3YF"]
    assert found["falcon"] == ["-", "-"]
    assert "T: a new base" in text


def test_json_has_every_cell_with_its_evidence(run: Run) -> None:
    document = json.loads(run("list", "runtimes", "--matrix", "--runtime", "vllm@0.33", "--json").stdout)
    of_llama = {cell["writing"]: cell for cell in document["cells"] if cell["family"] == "llama"}
    assert set(of_llama) == {"theta", "linear", "llama3", "yarn", "factors"}
    assert of_llama["yarn"]["status"] == "exact"
    assert of_llama["yarn"]["evidence"] == "run"
    assert of_llama["yarn"]["evidence_detail"].startswith("0.33.0, ")


def test_the_list_counts_what_was_run_read_and_not_looked_at(run: Run) -> None:
    rows = {row["runtime"]: row for row in json.loads(run("list", "runtimes", "--json").stdout)["runtimes"]}
    assert rows["mlx-lm@0.32.1"]["run"] > rows["mlx-lm@0.32.1"]["read"]
    assert rows["candle@0.11"]["run"] == 0
    assert rows["candle@0.11"]["read"] > 0
    assert rows["ktransformers@0.7"]["unknown"] > 0
