"""Evaluations in the model card: metadata, table and picture."""

from __future__ import annotations

from pathlib import Path

import pytest
from huggingface_hub import ModelCard

from ropeconv.evaluate.result import Result, record
from ropeconv.evaluate.row import Row
from ropeconv.hub.card import BaseModel, card, drawn
from ropeconv.hub.upload_set import UploadSet
from ropeconv.inspection.receipts.storage import read_receipt, write_receipt

from ..evaluate.results import LENGTHS, made
from ..inspection.receipts.test_folders import receipt


@pytest.fixture
def out(tmp_path: Path) -> Path:
    """An output, of which cards need no more than the receipt."""
    write_receipt(tmp_path, receipt())
    return tmp_path


def text_of(out: Path, *results: Result) -> str:
    """The card after evaluations."""
    for result in results:
        record(result, [Row("yarn:4", path=out)])
    found = read_receipt(out)
    return card(UploadSet({}, found, 32768), "me/tiny-yarn4", BaseModel(), pictures=drawn(found))


def test_the_card_has_the_table_instead_of_a_request_to_test(out: Path) -> None:
    before = text_of(out)
    assert "test it on your task" in before
    assert [words for words in ("model-index", "## Evaluation", "evaluation.png") if words in before] == []
    result = made("base,yarn:4")
    text = text_of(out, result)
    assert "test it on your task" not in text
    cell = result.cell("yarn:4", "growth", "loss", 16384)
    assert f"| **{cell.difference:+.3f} ± {cell.difference_error:.3f}** |" in text
    lines = text.splitlines()
    head = lines.index("| tokens | 2,048 | 8,192 | 16,384 | 32,768 | 65,536 |")
    assert lines[head + 1] == "|---|---|---|---|---|---|"
    rows = [line for line in lines[head + 2 : head + 6] if line.startswith("|")]
    assert [line.split("|")[1].strip() for line in rows] == [
        "growth, loss in nats per token (n = 12)", "minus base", "passkey, accuracy in % (n = 4)",
        "minus base",
    ]  # fmt: skip
    assert {line.count("|") for line in rows} == {7}
    assert f"At the trained 8,192 tokens it costs {result.rows[1].price:+.3f}" in text
    assert "up to 32,768 tokens" in text
    assert "](evaluation.png)" in text
    assert "Retrieval was not measured" not in text


def test_the_hub_reads_the_numbers_from_the_metadata(out: Path) -> None:
    result = made("base,yarn:4")
    data = ModelCard(text_of(out, result)).data
    assert data.model_name == "tiny-yarn4"
    found = {(one.metric_type, one.metric_name): one for one in data.eval_results}
    assert len(found) == 2 * len(LENGTHS)
    cell = result.cell("yarn:4", "growth", "loss", 16384)
    one = found["loss", "growth at 16,384 tokens, nat"]
    assert one.metric_value == pytest.approx(cell.value, abs=1e-4)
    assert (one.task_type, one.dataset_name) == ("text-generation", "moby-dick.txt")
    assert one.dataset_args == {"tokens_sha256": result.tokens_sha256}
    assert found["accuracy", "passkey at 2,048 tokens, %"].metric_value == 1.0
