"""Whose model a card says it is, how it was made, and how it is run."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest
from huggingface_hub import ModelCard

from ropeconv.hub.card import BaseModel, card, name_of
from ropeconv.hub.options import PublishOptions
from ropeconv.hub.upload_set import UploadSet, from_gguf
from ropeconv.inspection.receipts.receipt import (
    BeforeRecord,
    OriginalRecord,
    Receipt,
    RuntimeRecord,
    SourceRecord,
    StepRecord,
    TargetRecord,
)
from ropeconv.rope.methods.method import REGISTRY
from ropeconv.rope.recipe import Recipe

from ..inspection.receipts.test_folders import BEFORE, receipt
from ..support.baking import apply, make_plan
from ..support.gguf_files import write

YARN: dict[str, Any] = {"method": "yarn", "parameters": {"factor": 16.0}}
AS_IS: dict[str, Any] = {"method": "as-is", "parameters": {}}
HUB = SourceRecord("tiny", "hub", "base/tiny", "c" * 40)
LOCAL = SourceRecord("tiny-yarn16", "folder")
OWN_CARD = "---\nbase_model: somebody/model\nlicense: mit\n---\n# Mine\n"
NO_OPTIONS = PublishOptions()


def made(**more: Any) -> Receipt:
    given: dict[str, Any] = {"source": LOCAL, "recipe": YARN, "original": None}
    return msgspec.structs.replace(receipt(), **given | more)


def text_of(what: UploadSet, base: BaseModel = BaseModel("base/tiny"), ggufs: tuple[str, ...] = ()) -> str:
    return card(what, "me/tiny-1k", base, ggufs)


def data_of(text: str) -> Any:
    return ModelCard(text).data


EXPORT = made(
    recipe=AS_IS,
    target=TargetRecord("gguf", outtype="q8_0"),
    original=OriginalRecord(HUB, steps=(StepRecord(YARN, TargetRecord("safetensors"), BEFORE),)),
    before=BeforeRecord("yarn", "yarn", 1.277, 1024, 64, None, None),
)
"""The receipt of a GGUF file of a folder that was extended before."""


@pytest.mark.parametrize(
    ("what", "how", "name"),
    [
        (UploadSet({}, made(source=HUB), 64), NO_OPTIONS, ("base/tiny", "c" * 40)),
        (UploadSet({}, made(), 64), NO_OPTIONS, ("", "")),
        (UploadSet({}, EXPORT, 64), NO_OPTIONS, ("base/tiny", "c" * 40)),
        (UploadSet({}, made(), 64, card=OWN_CARD), NO_OPTIONS, ("somebody/model", "")),
        (UploadSet({}, made(), 64, known={"base_model": "keys/say"}), NO_OPTIONS, ("keys/say", "")),
        (UploadSet({}, made(), 64, card="---\nbase_model: [one/a, two/b]\n---\n"), NO_OPTIONS, ("one/a", "")),
        (UploadSet({}, made(), 64, card="---\nbase_model: ../../etc\n---\n"), NO_OPTIONS, ("", "")),
        (UploadSet({}, made(), 64, card=OWN_CARD), PublishOptions(base_model="given/one"), ("given/one", "")),
        (UploadSet({}, made(source=HUB), 64), PublishOptions(base_model="given/one"), ("given/one", "")),
    ],
)
def test_the_base_model(what: UploadSet, how: PublishOptions, name: tuple[str, str]) -> None:
    assert name_of(what, how) == name


def test_what_the_keys_of_a_file_say(tmp_path: Path) -> None:
    keys: dict[str, Any] = {
        "general.license": "apache-2.0", "general.languages": ["en", "fr"], "general.tags": ["chat"],
        "general.base_model.0.repo_url": "https://huggingface.co/somebody/model", "general.datasets": 3,
    }  # fmt: skip
    source = write(tmp_path / "m.gguf", extra=keys)
    out = apply(make_plan(source, Recipe(REGISTRY["yarn"](4.0)), tmp_path / "m-yarn4.gguf"))
    what = from_gguf(out)
    assert what.known == {
        "license": "apache-2.0", "language": ["en", "fr"], "tags": ["chat"], "base_model": "somebody/model",
    }  # fmt: skip
    data = data_of(card(what, "me/m-GGUF", BaseModel("somebody/model", what.known), what.gguf))
    assert (data.license, data.language, data.base_model) == ("apache-2.0", ["en", "fr"], "somebody/model")
    assert data.tags == ["chat", "ropeconv", "yarn", "long-context"]
    assert (data.base_model_relation, data.library_name) == ("quantized", "gguf")


# How it was made, and how it is run


def runtimes(*names: str) -> tuple[RuntimeRecord, ...]:
    return tuple(RuntimeRecord(f"{name}@1.0", "exact", display_name=f"{name.upper()} 1.0") for name in names)


ONE = ("tiny-Q8_0.gguf",)
STEPS = "ropeconv apply base/tiny --yarn 16 -o step1\nropeconv apply step1 --as-is --to gguf --outtype q8_0"
CHECKPOINT = UploadSet({}, made(source=HUB), 1024)
CARDS: dict[str, tuple[UploadSet, tuple[str, ...], tuple[str, ...], tuple[str, ...]]] = {
    "two steps are one extension": (
        UploadSet({}, EXPORT, 1024), ONE,
        ("extended to 1,024 tokens", "by yarn", "| context | 64 | 1,024 |", "| frequencies | default | yarn |",
         f"```\n{STEPS}\n```", f"from commit `{'c' * 40}`"),
        ("as-is (",),
    ),
    "a conversion alone is one": (
        UploadSet({}, made(recipe=AS_IS, source=HUB), 1024), ONE,
        ("with the RoPE that it had", "converted to GGUF"), (" extended to",),
    ),
    "GGUF files have the window in their commands": (
        UploadSet({}, EXPORT, 1024), ONE,
        ("llama-server -hf me/tiny-1k -c 1024", "OLLAMA_CONTEXT_LENGTH=1024 ollama serve"), ("vllm serve",),
    ),
    "weights of mlx": (
        UploadSet({}, made(source=HUB), 1024, quantised="mlx"), (),
        ("library_name: mlx", "mlx_lm.server --model me/tiny-1k"), ("AutoModelForCausalLM",),
    ),
    "weights of awq": (
        UploadSet({}, made(source=HUB), 1024, quantised="awq"), (),
        ("library_name: transformers", "quantised (awq)", "base_model_relation: quantized"), (),
    ),
    "weights as they were": (CHECKPOINT, (), ("base_model_relation: finetune",), ("quantised (",)),
    "a checkpoint as GGUF": (CHECKPOINT, ("a.gguf",), ("base_model_relation: quantized",), ()),
    "runtimes by their names": (
        UploadSet({}, made(source=HUB, runtimes=runtimes("vllm", "llama-cpp")), 1024), (),
        ("| exact | VLLM 1.0, LLAMA-CPP 1.0 |",), ("@1.0",),
    ),
}  # fmt: skip
"""Outputs, names of GGUF files, what their cards say, and what they do not say."""


@pytest.mark.parametrize("case", CARDS)
def test_a_card_says_how_an_output_was_made_and_is_run(case: str) -> None:
    what, ggufs, said, unsaid = CARDS[case]
    text = text_of(what, ggufs=ggufs)
    assert [words for words in said if words not in text] == []
    assert [words for words in unsaid if words in text] == []
