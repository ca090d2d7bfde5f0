"""Models around a language model: the settings go into its `text_config`, which transformers then reads.

The configs are transformers' own defaults, saved by it, so they come in the schema of version 5 alone.
"""

import json
from itertools import product
from pathlib import Path
from typing import Any

import pytest

from ropeconv.engines.probe import Probe
from ropeconv.errors import UnsupportedBake
from ropeconv.validate.checks import compare

from ..support.baking import make_plan, recipe_of, write_config
from ..support.extent import sample

MODELS = {
    "qwen2_vl": "qwen2_vl", "qwen2_5_vl": "qwen2_5_vl", "qwen3_vl": "qwen3_vl", "qwen3_vl_moe": "qwen3_vl_moe",
    "qwen3_5": "qwen3_5", "mistral3": "mistral", "llava": "llama", "gemma3": "gemma3", "llama4": "llama4",
    "qwen3_5_moe": "qwen3_5_moe", "gemma3n": "gemma3n", "gemma4": "gemma4",
    "gemma4_unified": "gemma4_unified", "lfm3_vl": "lfm3",
    "paligemma": "gemma", "idefics3": "llama", "aya_vision": "cohere2", "internvl": "qwen2",
    "unlimited_ocr": "unlimited_ocr",
    "mllama": "mllama", "aria": "aria_text", "glm4v": "glm4v", "glm46v": "glm4v", "glmga": "glm4v",
    "glm4v_moe": "glm4v_moe", "glm_ocr": "glm_ocr", "glm_image": "glm_image", "qwen2_5_omni": "qwen2_5_omni",
    "qwen2_5_omni_thinker": "qwen2_5_omni", "qwen3_omni_moe": "qwen3_omni_moe", "paddleocr_vl": "paddleocr_vl",
    "hunyuan_vl": "hunyuan_vl", "cosmos3_edge": "cosmos3_edge", "granite4_vision": "granite4_vision",
    "granite_docling": "granite_docling", "deepseek_ocr2": "deepseek_ocr2", "emu3": "emu3",
    "voxtral_realtime": "voxtral_realtime", "muse_glimmer": "muse_glimmer", "muse_spark": "muse_spark",
    "minimax_m3_vl": "minimax_m3_vl", "exaone4_5": "exaone4", "lfm2_vl": "lfm2", "kimi_k25": "deepseek_v3",
    "cohere_compass": "cohere_compass", "molmo2": "molmo2", "evolla": "evolla",
    "voxtral": "llama", "chameleon": "chameleon", "idefics": "idefics", "phi4_multimodal": "phi4_multimodal",
}  # fmt: skip
FLAT = {"chameleon", "evolla", "idefics", "phi4_multimodal"}
"""Model types whose configs have the language model's keys at the top."""
PARTIAL = {"rope_parameters": {"rope_type": "default", "partial_rotary_factor": 0.5, "mrope_section": [8, 12, 12]}}
SETTINGS: dict[str, dict[str, Any]] = {
    "hunyuan_vl": {"text_config": {"rope_parameters": {"rope_type": "default", "mrope_section": [16, 16, 16, 16]}}},
    "glm4v": {"text_config": PARTIAL}, "glm46v": {"text_config": {"model_type": "glm4v_text", **PARTIAL}},
    "glmga": {"text_config": {"model_type": "glm4v_text", **PARTIAL}}, "glm_image": {"text_config": PARTIAL},
    "glm4v_moe": {"text_config": {"head_dim": 128}},
    "qwen3_omni_moe": {"thinker_config": {"text_config": {"head_dim": 128}}},
    "deepseek_ocr2": {"text_config": {"mlp_layer_types": ["dense"] * 32}},
    "chameleon": {"vocabulary_map": {"<image>": 8}},
    "cohere_compass": {"text_config": {"layer_types": ["sliding_attention", "full_attention"] * 20, "rope_parameters": {
        "full_attention": None, "sliding_attention": {"rope_type": "default", "rope_theta": 50000.0},
    }}},
}  # fmt: skip
"""What the defaults of a class lack or contradict."""
RECIPES = {
    "mixed": recipe_of("mixed", 4.0),
    "yarn": recipe_of("yarn", 4.0, attention_factor=1.0),
    "theta": recipe_of("theta", 5e6),
}
REFUSED = {
    ("gemma4", "mixed"): "proportional has a base and one factor",
    ("gemma4_unified", "mixed"): "proportional has a base and one factor",
    ("cosmos3_edge", "mixed"): "its class does not support them",
    ("cosmos3_edge", "yarn"): "takes default",
}
"""Methods whose frequencies a class cannot carry, with the reason; YaRN changes none of Gemma 4's."""


@pytest.mark.parametrize(("model_type", "name"), sample(list(product(MODELS, RECIPES)), 12))
def test_the_text_model_computes_the_schedule(model_type: str, name: str, probe: Probe, tmp_path: Path) -> None:
    from transformers import AutoConfig

    AutoConfig.for_model(model_type, **SETTINGS.get(model_type, {})).save_pretrained(tmp_path)
    before = json.loads((tmp_path / "config.json").read_text())
    if (model_type, name) in REFUSED:
        with pytest.raises(UnsupportedBake, match=REFUSED[model_type, name]):
            make_plan(tmp_path / "config.json", RECIPES[name], replace=True)
        return
    plan = make_plan(tmp_path / "config.json", RECIPES[name], replace=True)
    assert plan.result.family.name == MODELS[model_type]
    write_config(plan, tmp_path)
    compare(probe.ask(tmp_path, plan.schedule.context), plan.schedule, plan.before, plan.result.encoding)
    after = json.loads((tmp_path / "config.json").read_text())
    changed = {key for key in after if after[key] != before.get(key)}
    assert model_type in FLAT or changed == {"thinker_config" if "thinker_config" in after else "text_config"}
