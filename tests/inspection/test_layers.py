"""Which layers rotate and how far each of them sees, in words, and where a longer RoPE does not help."""

from pathlib import Path

import pytest

from ropeconv.bake.warnings import cannot_gain
from ropeconv.inspection.document import describe_layers, layer_groups

from ..conftest import CONFIGS
from ..support.baking import inspected

MORE = CONFIGS.parent / "more_configs"
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
    spec = inspected(MORE / f"{name}.json").spec
    assert describe_layers(spec) == SPEC[name]
    assert sum(group.count for group in layer_groups(spec)) == len(spec.layers)


@pytest.mark.parametrize(
    ("folder", "name", "expected"),
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
def test_models_that_a_longer_rope_does_not_help(folder: Path, name: str, expected: str) -> None:
    reason = cannot_gain(inspected(folder / f"{name}.json").spec, 131072)
    assert expected in reason
    assert bool(reason) == bool(expected)
