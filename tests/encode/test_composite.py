"""Models around a language model: the settings go into its `text_config`, which transformers then reads.

The configs are transformers' own defaults, saved by it, so they come in the schema of version 5 alone.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from ropeconv.engines.probe.client import Probe
from ropeconv.errors import UnsupportedBake
from ropeconv.rope.methods import REGISTRY
from ropeconv.rope.recipe import Recipe
from ropeconv.validate.checks.frequencies import compare

from ..baking import make_plan
from .test_families import write_config

MODELS = {
    "qwen2_vl": "qwen2_vl", "qwen2_5_vl": "qwen2_5_vl", "qwen3_vl": "qwen3_vl", "qwen3_vl_moe": "qwen3_vl_moe",
    "qwen3_5": "qwen3_5", "mistral3": "mistral", "llava": "llama", "gemma3": "gemma3", "llama4": "llama4",
    "qwen3_5_moe": "qwen3_5_moe", "gemma3n": "gemma3n", "gemma4": "gemma4",
    "gemma4_unified": "gemma4_unified", "lfm2_vl": "lfm2", "lfm3_vl": "lfm3",
    "paligemma": "gemma", "idefics3": "llama", "aya_vision": "cohere2", "internvl": "qwen2",
}  # fmt: skip
RECIPES = {
    "mixed": Recipe(REGISTRY["mixed"](4.0)),
    "yarn": Recipe(REGISTRY["yarn"](4.0), attention_factor=1.0),
    "theta": Recipe(REGISTRY["theta"](5e6)),
}


REFUSED = {"gemma4": ("mixed",), "gemma4_unified": ("mixed",)}
"""Methods whose frequencies a class cannot carry; YaRN changes none of Gemma 4's."""


@pytest.mark.parametrize("name", RECIPES)
@pytest.mark.parametrize("model_type", MODELS)
def test_the_text_model_computes_the_schedule(model_type: str, name: str, probe: Probe, tmp_path: Path) -> None:
    from transformers import AutoConfig

    AutoConfig.for_model(model_type).save_pretrained(tmp_path)
    before = json.loads((tmp_path / "config.json").read_text())
    if name in REFUSED.get(model_type, ()):
        with pytest.raises(UnsupportedBake, match="proportional has a base and one factor"):
            make_plan(tmp_path / "config.json", RECIPES[name], replace=True)
        return
    plan = make_plan(tmp_path / "config.json", RECIPES[name], replace=True)
    assert plan.result.family.name == MODELS[model_type]
    write_config(plan, tmp_path)
    compare(probe.ask(tmp_path, plan.schedule.context), plan.schedule, plan.before, plan.result.encoding)
    after = json.loads((tmp_path / "config.json").read_text())
    assert {key for key in after if after[key] != before.get(key)} == {"text_config"}
