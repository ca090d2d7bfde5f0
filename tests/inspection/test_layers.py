"""Which layers rotate and how far each of them sees, judged by transformers' own config classes and modules."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from ropeconv.errors import BadSource
from ropeconv.families.config import detect, text_part
from ropeconv.inspection import inspect_source
from ropeconv.inspection.layers import cannot_gain, describe_layers, layer_groups
from ropeconv.runtimes.read_config import read_spec
from ropeconv.sources import open_source

from ..conftest import CONFIGS

MORE = CONFIGS.parent / "more_configs"
PUBLISHED = sorted([*CONFIGS.glob("*.json"), *MORE.glob("*.json")])
NAMED = {"sliding_attention": "sliding_window", "chunked_attention": "attention_chunk_size"}
ALL_LAYERS = ("mistral", "mixtral", "phi3", "starcoder2", "ministral3", "qwen3_moe")
"""Families whose model files give one mask to every layer."""


def text_config(path: Path) -> tuple[str, Any] | None:
    """The family and the text config as transformers' class resolves it; None for what transformers does not have."""
    import transformers

    config = json.loads(path.read_text())
    try:
        family = detect(config)
    except BadSource:
        return None
    part = dict(text_part(config, family))
    model_type = part.pop("model_type", family.model_types[-1])
    if family.refuse or model_type not in transformers.CONFIG_MAPPING:
        return None
    made = transformers.AutoConfig.for_model(model_type, **part)
    return family.name, made.get_text_config()


def windows(family: str, config: Any) -> list[int | None]:
    """The window of each layer by transformers: layer_types, or the one mask that all layers get."""
    count = config.num_hidden_layers
    if family in ALL_LAYERS:
        return [getattr(config, "sliding_window", None) or None] * count
    types = getattr(config, "layer_types", None) or ["full_attention"] * count
    found = [getattr(config, NAMED[name]) if name in NAMED else None for name in types]
    return [size or None for size in found]


@pytest.mark.parametrize("path", PUBLISHED, ids=lambda path: path.stem)
def test_windows_are_those_of_transformers(path: Path) -> None:
    found = text_config(path)
    if found is None:
        pytest.skip("not in transformers")
    config = json.loads(path.read_text())
    spec = read_spec(config, detect(config))
    assert list(spec.windows) == windows(*found)
    assert len(spec.layers) == len(spec.windows)


SPEC = {
    "CohereForAI--c4ai-command-r7b-12-2024": "24 rotate and see 4,096 tokens (sliding window); "
    "8 do not rotate and see the whole context",
    "LGAI-EXAONE--EXAONE-4.0-32B": "48 rotate and see 4,096 tokens (sliding window); "
    "16 do not rotate and see the whole context",
    "meta-llama--Llama-4-Scout-17B-16E-Instruct": "36 rotate and see 8,192 tokens (chunks); "
    "12 do not rotate and see the whole context",
    "google--gemma-3-4b-it": "5 rotate and see the whole context; 29 rotate with default, theta 10000 and see 1,024 "
    "tokens (sliding window)",
    "tencent--Hunyuan-7B-Instruct": "32 rotate",
}


@pytest.mark.parametrize("name", SPEC)
def test_layers_in_words(name: str) -> None:
    spec = inspect_source(open_source(str(MORE / f"{name}.json"))).spec
    assert describe_layers(spec) == SPEC[name]
    assert sum(group.count for group in layer_groups(spec)) == len(spec.layers)


@pytest.mark.parametrize(
    ("folder", "name", "said"),
    [
        (MORE, "CohereForAI--c4ai-command-r7b-12-2024", "`--as-is --context 131072` raises the context"),
        (MORE, "LGAI-EXAONE--EXAONE-4.0-32B", "the 48 layers that rotate see 4,096 tokens"),
        (MORE, "meta-llama--Llama-4-Scout-17B-16E-Instruct", "8,192 tokens (chunks)"),
        (CONFIGS, "mistralai--Mistral-7B-v0.1", "set sliding_window to null first"),
        (CONFIGS, "openai--gpt-oss-20b", ""),
        (CONFIGS, "google--gemma-2-9b", ""),
        (CONFIGS, "mistralai--Mistral-7B-Instruct-v0.3", ""),
        (MORE, "google--gemma-3-4b-it", ""),
        (CONFIGS, "HuggingFaceTB--SmolLM3-3B", ""),
    ],
)
def test_models_that_a_longer_rope_does_not_help(folder: Path, name: str, said: str) -> None:
    found = cannot_gain(inspect_source(open_source(str(folder / f"{name}.json"))).spec, 131072)
    assert said in found
    assert bool(found) == bool(said)
