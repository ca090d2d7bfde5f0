"""Evaluations in the card of an output: metadata, table and picture."""

from pathlib import Path
from typing import Any

import msgspec
import pytest
from huggingface_hub import ModelCard

from ropeconv.features.evaluation.result import Result, record
from ropeconv.hub.base_model import BaseModel
from ropeconv.hub.card import card, card_pictures
from ropeconv.hub.upload_set import UploadSet
from ropeconv.inspection.receipts.storage import read_receipt, write_receipt
from ropeconv.verbs.rows import Row

from ...inspection.receipts.test_folders import receipt
from . import results


@pytest.fixture
def out(tmp_path: Path) -> Path:
    """An output, of which cards need no more than the receipt."""
    write_receipt(tmp_path, receipt())
    return tmp_path


def evaluated(out: Path, *measured: Result) -> str:
    for result in measured:
        record(result, [Row("yarn:4", path=out)])
    receipt = read_receipt(out)
    return card(
        UploadSet({}, receipt, 32768), "me/tiny-yarn4", BaseModel(), pictures=card_pictures(receipt)
    )


def test_the_card_has_the_table_instead_of_a_request_to_test(out: Path) -> None:
    before = evaluated(out)
    assert "your task" in before
    assert [
        words for words in ("model-index", "## Evaluation", "evaluation.png") if words in before
    ] == []
    result = results.made("base,yarn:4")
    text = evaluated(out, result)
    assert "your task" not in text
    cell = result.cell("yarn:4", "growth", "loss", 16384)
    assert f"| **{cell.difference:+.3f} ± {cell.difference_error:.3f}** |" in text
    lines = text.splitlines()
    head = lines.index("| tokens | 2,048 | 8,192 | 16,384 | 32,768 | 65,536 |")
    assert lines[head + 1] == "|---|---|---|---|---|---|"
    rows = [line for line in lines[head + 2 : head + 6] if line.startswith("|")]
    assert [line.split("|")[1].strip() for line in rows] == [
        "growth, loss in nats per token (n = 12)",
        "minus base",
        "passkey, accuracy in % (n = 4, 20 questions)",
        "minus base",
    ]
    assert {line.count("|") for line in rows} == {7}
    assert f"costs {result.rows[1].price:+.3f}" in text
    assert "up to 32,768 tokens" in text
    assert "](evaluation.png)" in text
    assert "Retrieval was not measured" not in text


def test_the_hub_reads_the_numbers_from_the_metadata(out: Path) -> None:
    result = results.made("base,yarn:4")
    data = ModelCard(evaluated(out, result)).data
    assert data.model_name == "tiny-yarn4"
    metrics = {(metric.metric_type, metric.metric_name): metric for metric in data.eval_results}
    assert len(metrics) == 2 * len(results.LENGTHS)
    cell = result.cell("yarn:4", "growth", "loss", 16384)
    growth = metrics["loss", "growth at 16,384 tokens, nat"]
    assert growth.metric_value == pytest.approx(cell.value, abs=1e-4)
    assert (growth.task_type, growth.dataset_name) == ("text-generation", "moby-dick.txt")
    assert growth.dataset_args == {"tokens_sha256": result.tokens_sha256}
    assert metrics["accuracy", "passkey at 2,048 tokens, %"].metric_value == 1.0


def test_numbers_on_two_texts_are_under_the_name_of_their_own(out: Path) -> None:
    one = results.made("base,yarn:4")
    essays = results.made("base,yarn:4", documents=7)
    essays = msgspec.structs.replace(essays, tokens_sha256="4a" * 32)

    entries = ModelCard(evaluated(out, one, essays)).data.to_dict()["model-index"][0]["results"]
    assert [(entry["dataset"]["name"], len(entry["metrics"])) for entry in entries] == [
        ("moby-dick.txt", 10),
        ("7 texts", 10),
    ]
    values = [metric["value"] for entry in entries for metric in entry["metrics"]]
    expected = [cell.value for result in (one, essays) for cell in _shown(result)]
    assert values == pytest.approx(expected, abs=1e-4)
    assert entries[0]["metrics"][0]["args"] == {"runtime": one.runtime, "dtype": one.dtype}


def _shown(result: Result) -> list[Any]:
    """The cells of the second row that a card has, in its order."""
    metrics = {("growth", "loss"), ("passkey", "accuracy")}
    return [
        cell
        for cell in result.cells
        if cell.row == "yarn:4" and cell.depth is None and (cell.measure, cell.metric) in metrics
    ]


def test_the_metadata_of_a_card_is_written_as_huggingface_hub_writes_it(out: Path) -> None:
    text = evaluated(out, results.made("base,yarn:4"))
    assert ModelCard(text).content == text
