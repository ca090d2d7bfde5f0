"""The command lines of a receipt: every bake from the first source on."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from ropeconv.receipts.commands import commands
from ropeconv.receipts.original import OriginalRecord, SourceRecord
from ropeconv.receipts.receipt import Receipt
from ropeconv.receipts.step import StepRecord, TargetRecord

from .test_folders import receipt

HUB = SourceRecord("tiny", "hub", "base/tiny", "c" * 40)
YARN: dict[str, Any] = {"method": "yarn", "parameters": {"factor": 16.0}}
AS_IS: dict[str, Any] = {"method": "as-is", "parameters": {}}


def made(recipe: dict[str, Any], target: TargetRecord | None = None, **more: Any) -> Receipt:
    return msgspec.structs.replace(
        receipt(), **{"source": HUB, "recipe": recipe, "target": target, "original": None, **more}
    )


FILE = SourceRecord("m.gguf", "gguf")
FOLDED = TargetRecord("safetensors", "weights", fold_into="k", fold_dtype="f32", all_files=True, replace=True)
LISTS = {"method": "inv-freq", "parameters": {"values": [1.0, 0.5]}}


@pytest.mark.parametrize(
    ("receipt", "command"),
    [
        (made(YARN, TargetRecord("safetensors")), "base/tiny --yarn 16"),
        (made(YARN), "base/tiny --yarn 16"),
        (made(YARN, TargetRecord("safetensors", "factors", ("vllm", "sglang"))),
         "base/tiny --yarn 16 --encoding factors --runtime vllm --runtime sglang"),
        (made(YARN, TargetRecord("gguf", outtype="q8_0", pre="llama-bpe")),
         "base/tiny --yarn 16 --to gguf --outtype q8_0 --pre llama-bpe"),
        (made(YARN, FOLDED),
         "base/tiny --yarn 16 --encoding weights --fold-into k --fold-dtype f32 --all-files --replace"),
        (made(YARN, TargetRecord("safetensors"), source=SourceRecord("my model", "folder")), "'my model' --yarn 16"),
        (made(YARN, TargetRecord("gguf"), source=FILE), "m.gguf --yarn 16"),
        (made(AS_IS, TargetRecord("safetensors"), source=FILE), "m.gguf --as-is --to safetensors"),
        (made(YARN, source=SourceRecord("x", "folder", family="llama")), "x --family llama --yarn 16"),
        (made(LISTS), "base/tiny --recipe ropeconv.json"),  # no flags give it
        (made({"method": "of another version", "parameters": {}}), "base/tiny --recipe ropeconv.json"),
    ],
)  # fmt: skip
def test_a_single_bake(receipt: Receipt, command: str) -> None:
    assert commands(receipt) == [f"ropeconv apply {command}"]


def test_several_bakes_are_commands_one_after_another() -> None:
    first = OriginalRecord(HUB, steps=(StepRecord(YARN, TargetRecord("safetensors")),))
    last = made(
        AS_IS, TargetRecord("gguf", outtype="q8_0"), source=SourceRecord("tiny-yarn16", "folder"), original=first
    )
    assert last.extension.method == "yarn"
    assert last.first == HUB
    assert commands(last) == [
        "ropeconv apply base/tiny --yarn 16 -o step1",
        "ropeconv apply step1 --as-is --to gguf --outtype q8_0",
    ]
    assert made(AS_IS).extension.method == "as-is"


def test_steps_from_one_gguf_file_to_another() -> None:
    first = OriginalRecord(HUB, steps=(StepRecord(YARN, TargetRecord("gguf", outtype="q8_0")),))
    last = made(AS_IS, TargetRecord("gguf"), source=SourceRecord("tiny.gguf", "gguf"), original=first)
    assert commands(last) == [
        "ropeconv apply base/tiny --yarn 16 --to gguf --outtype q8_0 -o step1.gguf",
        "ropeconv apply step1.gguf --as-is",
    ]
