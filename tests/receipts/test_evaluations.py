"""Evaluations in receipts: beside a GGUF file, in a folder, and none in earlier ones."""

from __future__ import annotations

import json
from pathlib import Path

import msgspec
import pytest

from ropeconv.errors import BadSource
from ropeconv.receipts import add_evaluation, add_validation, parse_receipt, read_receipt
from ropeconv.receipts.evaluation import EvaluationRecord, MeasuredRecord
from ropeconv.receipts.read import validations
from ropeconv.receipts.write import MOST_EVALUATIONS

from .test_folders import receipt

ONE = EvaluationRecord(
    against="base", runtime="transformers@5.23.0", device="cpu", dtype="bfloat16", trained=8192, texts=("a.txt",),
    tokens_sha256="3f", price=0.03, price_error=0.004, holds_to=32768,
    measured=(MeasuredRecord(measure="growth", metric="loss", length=8192, value=3.1, error=0.1, difference=0.03),),
)  # fmt: skip


def test_it_is_in_the_receipt_of_a_folder(tmp_path: Path) -> None:
    add_evaluation(tmp_path, receipt(), ONE)
    assert read_receipt(tmp_path).evaluations == (ONE,)
    assert json.loads((tmp_path / "ropeconv.json").read_text())["evaluations"][0]["measured"][0]["value"] == 3.1


def test_it_is_beside_a_gguf_file_with_the_validation(tmp_path: Path) -> None:
    gguf = tmp_path / "out.gguf"
    gguf.write_bytes(b"1234")
    add_evaluation(gguf, receipt(), ONE)
    add_validation(gguf, receipt(), {"agrees": True})
    found = validations(gguf)
    assert set(found) == {"evaluations", "validation"}
    assert parse_receipt(json.dumps(receipt().to_dict()), "x", found).evaluations == (ONE,)
    gguf.write_bytes(b"another file")
    assert validations(gguf) == {}


def test_the_same_text_in_the_same_runtime_replaces_and_others_are_added(tmp_path: Path) -> None:
    other = msgspec.structs.replace(ONE, tokens_sha256="4a")
    newer = msgspec.structs.replace(ONE, price=0.05)
    for record in (ONE, other, newer):
        add_evaluation(tmp_path, receipt() if record is ONE else read_receipt(tmp_path), record)
    assert read_receipt(tmp_path).evaluations == (other, newer)


def test_a_receipt_stays_small(tmp_path: Path) -> None:
    one = receipt()
    for number in range(2 * MOST_EVALUATIONS):
        add_evaluation(tmp_path, one, msgspec.structs.replace(ONE, tokens_sha256=str(number)))
        one = read_receipt(tmp_path)
    assert [found.tokens_sha256 for found in one.evaluations] == [str(n) for n in range(8, 16)]


def test_receipts_from_before_have_none() -> None:
    data = receipt().to_dict()
    del data["evaluations"]
    assert parse_receipt(json.dumps(data), "x").evaluations == ()


@pytest.mark.parametrize("odd", [[1], "x", [{"runtime": "vllm"}], [{**msgspec.to_builtins(ONE), "trained": "many"}]])
def test_what_no_evaluation_writes_is_refused(odd: object) -> None:
    with pytest.raises(BadSource, match="not a receipt"):
        parse_receipt(json.dumps(receipt().to_dict() | {"evaluations": odd}), "x")


def test_many_texts_are_a_number() -> None:
    assert ONE.described_texts == "a.txt"
    assert msgspec.structs.replace(ONE, texts=tuple("abcd")).described_texts == "4 texts"
