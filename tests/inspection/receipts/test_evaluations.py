"""Evaluations in receipts: beside a GGUF file, in a folder, and beside earlier ones."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgspec
import pytest

from ropeconv.errors import BadSource
from ropeconv.inspection.receipts.receipt import EvaluationRecord, MeasuredRecord
from ropeconv.inspection.receipts.storage import (
    add_evaluation,
    add_validation,
    parse_receipt,
    read_receipt,
    validations,
)

from .test_folders import receipt

ONE = EvaluationRecord(
    against="base", runtime="transformers@5.23.0", device="cpu", dtype="bfloat16", trained=8192, texts=("a.txt",),
    tokens_sha256="3f", price=0.03, price_error=0.004, holds_to=32768,
    measured=(MeasuredRecord(measure="growth", metric="loss", column=8192, value=3.1, error=0.1, difference=0.03),),
)  # fmt: skip


def changed(**fields: Any) -> EvaluationRecord:
    return msgspec.structs.replace(ONE, **fields)


def measured(**values: float) -> tuple[MeasuredRecord, ...]:
    return tuple(MeasuredRecord(measure=name, metric="loss", column=8192, value=one) for name, one in values.items())


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


@pytest.mark.parametrize("name", ["runtime", "dtype", "tokens_sha256", "against"])
def test_one_of_another_runtime_precision_text_or_base_is_another(tmp_path: Path, name: str) -> None:
    other, newer = changed(**{name: "other"}), changed(price=0.05)
    add_evaluation(tmp_path, receipt(evaluations=(ONE, other)), newer)
    assert read_receipt(tmp_path).evaluations == (other, newer)


def test_one_of_other_measures_stays_beside_it(tmp_path: Path) -> None:
    other, both = changed(measured=measured(niah=2.0)), changed(measured=measured(growth=1.0, niah=2.0))
    add_evaluation(tmp_path, receipt(evaluations=(other, both)), ONE)
    assert read_receipt(tmp_path).evaluations == (other, ONE)


@pytest.mark.parametrize("odd", [[1], "x", [{"runtime": "vllm"}], [{**msgspec.to_builtins(ONE), "trained": "many"}]])
def test_what_no_evaluation_writes_is_refused(odd: object) -> None:
    with pytest.raises(BadSource, match="not a receipt"):
        parse_receipt(json.dumps(receipt().to_dict() | {"evaluations": odd}), "x")
