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


@pytest.mark.parametrize(
    ("target", "words"),
    [
        (TargetRecord("safetensors"), ""),
        (
            TargetRecord("safetensors", "factors", ("vllm", "sglang")),
            " --encoding factors --runtime vllm --runtime sglang",
        ),
        (TargetRecord("gguf", outtype="q8_0", pre="llama-bpe"), " --to gguf --outtype q8_0 --pre llama-bpe"),
        (
            TargetRecord("safetensors", "weights", fold_into="k", fold_dtype="f32", all_files=True, replace=True),
            " --encoding weights --fold-into k --fold-dtype f32 --all-files --replace",
        ),
        (None, ""),
    ],
)
def test_a_single_bake(target: TargetRecord | None, words: str) -> None:
    assert commands(made(YARN, target)) == [f"ropeconv apply base/tiny --yarn 16{words}"]


def test_local_sources_and_files_of_one_format() -> None:
    local, file = SourceRecord("my model", "folder"), SourceRecord("m.gguf", "gguf")
    assert commands(made(YARN, TargetRecord("safetensors"), source=local)) == ["ropeconv apply 'my model' --yarn 16"]
    assert commands(made(YARN, TargetRecord("gguf"), source=file)) == ["ropeconv apply m.gguf --yarn 16"]
    back = made(AS_IS, TargetRecord("safetensors"), source=file)
    assert commands(back) == ["ropeconv apply m.gguf --as-is --to safetensors"]
    treated = SourceRecord("x", "folder", family="llama")
    assert commands(made(YARN, source=treated)) == ["ropeconv apply x --family llama --yarn 16"]


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


def test_recipes_that_no_flags_give_are_read_from_the_receipt() -> None:
    lists = {"method": "inv-freq", "parameters": {"values": [1.0, 0.5]}}
    for recipe in (lists, {"method": "of another version", "parameters": {}}):
        assert commands(made(recipe)) == ["ropeconv apply base/tiny --recipe ropeconv.json"]
