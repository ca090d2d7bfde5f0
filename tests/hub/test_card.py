"""Whose model a card says it is, how it was made, and how it is run."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgspec
import pytest
from huggingface_hub import ModelCard

from ropeconv.errors import BadSource
from ropeconv.hub.base_model import BaseModel, name_of
from ropeconv.hub.card import card
from ropeconv.hub.publish_options import PublishOptions
from ropeconv.hub.upload_set import UploadSet, from_folder, from_gguf, quantised_as
from ropeconv.receipts import write_receipt
from ropeconv.receipts.original import OriginalRecord, SourceRecord
from ropeconv.receipts.receipt import BeforeRecord, Receipt, RuntimeRecord
from ropeconv.receipts.step import StepRecord, TargetRecord
from ropeconv.rope.methods import REGISTRY
from ropeconv.rope.recipe import Recipe

from ..receipts.test_folders import receipt
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
    original=OriginalRecord(
        HUB, steps=(StepRecord(YARN, TargetRecord("safetensors"), BeforeRecord("default", "yarn", 1.0, 64)),)
    ),
    before=BeforeRecord("yarn", "yarn", 1.277, 1024),
)
"""The receipt of a GGUF file of a folder that was extended before."""


# Whose model it is


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


def test_what_it_is_to_its_base_model() -> None:
    checkpoint = UploadSet({}, made(source=HUB), 1024)
    assert data_of(text_of(checkpoint)).base_model_relation == "finetune"
    assert data_of(text_of(checkpoint, ggufs=("a.gguf",))).base_model_relation == "quantized"
    awq = UploadSet({}, made(source=HUB), 1024, quantised="awq")
    assert data_of(text_of(awq)).base_model_relation == "quantized"
    assert "base_model" not in text_of(checkpoint, BaseModel()).split("---")[1]


@pytest.mark.parametrize(
    ("config", "quantised"),
    [
        ({}, ""), ({"quantization_config": {"quant_method": "awq"}}, "awq"), ({"quantization_config": None}, ""),
        ({"quantization": {"group_size": 64, "bits": 4}, "quantization_config": {"bits": 4}}, "mlx"),
    ],
)  # fmt: skip
def test_how_weights_are_quantised(config: dict[str, Any], quantised: str, tmp_path: Path) -> None:
    assert quantised_as(config) == quantised
    (tmp_path / "config.json").write_text(json.dumps(config))
    write_receipt(tmp_path, made())
    assert from_folder(tmp_path).quantised == quantised


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


# How it was made


def test_two_steps_are_told_as_one_extension() -> None:
    text = text_of(UploadSet({}, EXPORT, 1024), ggufs=("tiny-Q8_0.gguf",))
    assert "extended to 1,024 tokens" in text
    assert "by yarn" in text
    assert "as-is (" not in text
    assert "| context | 64 | 1,024 |" in text
    assert "| frequencies | default | yarn |" in text
    assert (
        "```\nropeconv apply base/tiny --yarn 16 -o step1\nropeconv apply step1 --as-is --to gguf --outtype q8_0\n```"
    ) in text
    assert f"from commit `{'c' * 40}`" in text


def test_a_conversion_alone_is_told_as_one() -> None:
    text = text_of(UploadSet({}, made(recipe=AS_IS, source=HUB), 1024), ggufs=("tiny-Q8_0.gguf",))
    assert "with the RoPE that it had" in text
    assert "converted to GGUF" in text
    assert "extended" not in text.split("## Good to know")[0]


def test_a_method_that_is_not_known_is_a_sentence() -> None:
    other = made(recipe={"method": "of tomorrow", "parameters": {}})
    with pytest.raises(BadSource, match="names the method 'of tomorrow', which is not known here; run apply again"):
        text_of(UploadSet({}, other, 1024))


# How it is run


def runtimes(*names: str) -> tuple[RuntimeRecord, ...]:
    return tuple(RuntimeRecord(f"{name}@1.0", "exact", display_name=f"{name.upper()} 1.0") for name in names)


def test_each_runtime_that_reads_it_has_its_command() -> None:
    commands = {
        "vllm": "vllm serve me/tiny-1k --max-model-len 1024",
        "sglang": "sglang serve --model-path me/tiny-1k --context-length 1024",
        "tgi": "text-generation-launcher --model-id me/tiny-1k --max-total-tokens 1024",
        "mlx-lm": "mlx_lm.server --model me/tiny-1k",
    }
    text = text_of(UploadSet({}, made(source=HUB, runtimes=runtimes(*commands)), 1024))
    assert [words for words in commands.values() if words not in text] == []
    for name, words in commands.items():
        others = runtimes(*(commands.keys() - {name}))
        ignored = RuntimeRecord(f"{name}@1.0", "ignored")
        assert words not in text_of(UploadSet({}, made(source=HUB, runtimes=(*others, ignored)), 1024)), name


def test_mlx_and_quantised_checkpoints() -> None:
    mlx = text_of(UploadSet({}, made(source=HUB), 1024, quantised="mlx"))
    assert data_of(mlx).library_name == "mlx"
    assert "mlx_lm.server --model me/tiny-1k" in mlx
    assert "AutoModelForCausalLM" not in mlx
    awq = text_of(UploadSet({}, made(source=HUB), 1024, quantised="awq"))
    assert data_of(awq).library_name == "transformers"
    assert "quantised (awq)" in awq
    assert "quantised (" not in text_of(UploadSet({}, made(source=HUB), 1024))


def test_gguf_files_have_the_window_in_their_commands() -> None:
    text = text_of(UploadSet({}, EXPORT, 1024), ggufs=("tiny-Q8_0.gguf",))
    assert "llama-server -hf me/tiny-1k -c 1024" in text
    assert "OLLAMA_CONTEXT_LENGTH=1024 ollama serve" in text
    assert "vllm serve" not in text


def test_runtimes_have_their_names_and_not_their_ids() -> None:
    text = text_of(UploadSet({}, made(source=HUB, runtimes=runtimes("vllm", "llama-cpp")), 1024))
    assert "| exact | VLLM 1.0, LLAMA-CPP 1.0 |" in text
    assert "@1.0" not in text
