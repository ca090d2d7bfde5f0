"""Configs of recent models beside the rotary modules of their classes in transformers, before and
after a bake.

`Probe` builds the modules that the class makes from the whole config, and gives their buffers.
"""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ropeconv.engines.probe import Probe
from ropeconv.inspection.inspection import ConfigInspection, inspect_source
from ropeconv.models.open import open_source
from ropeconv.rope.recipe import Recipe
from ropeconv.rope.schedule import Vector

from ..conftest import DATA
from ..support.baking import make_plan, recipe_of
from ..support.extent import sample

PUBLISHED: dict[str, dict[str, Any]] = {
    entry["model"]: entry["config"]
    for entry in json.loads((DATA / "published_ropes.json").read_text())
}
EXAONE_4_5: dict[str, Any] = {
    "architectures": ["Exaone4_5_ForConditionalGeneration"],
    "model_type": "exaone4_5",
    "text_config": {
        "architectures": ["Exaone4ForCausalLM"],
        "model_type": "exaone4_5_text",
        "hidden_size": 5120,
        "num_hidden_layers": 8,
        "num_attention_heads": 40,
        "num_key_value_heads": 8,
        "max_position_embeddings": 262144,
        "sliding_window": 4096,
        "layer_types": (["sliding_attention"] * 3 + ["full_attention"]) * 2,
        "rope_theta": 1000000,
        "rope_scaling": {
            "rope_type": "llama3",
            "factor": 16.0,
            "low_freq_factor": 1.0,
            "high_freq_factor": 4.0,
            "original_max_position_embeddings": 8192,
        },
    },
    "vision_config": {"model_type": "exaone4_5_vision"},
}
"""The keys of EXAONE 4.5 33B, whose text type is derived from its class."""
GRANITE_4: dict[str, Any] = {
    "model_type": "granitemoehybrid",
    "hidden_size": 2560,
    "num_attention_heads": 40,
    "num_key_value_heads": 8,
    "num_hidden_layers": 4,
    "layer_types": ["attention"] * 4,
    "max_position_embeddings": 131072,
    "position_embedding_type": "rope",
    "rope_theta": 10000000,
    "num_local_experts": 0,
}
"""A Granite 4 whose layers all attend, and rotate."""
STEP_3_7: dict[str, Any] = {
    "architectures": ["Step3p7ForConditionalGeneration"],
    "model_type": "step3p7",
    "text_config": {
        "architectures": ["Step3p5ForCausalLM"],
        "model_type": "step3p5",
        "hidden_size": 4096,
        "num_hidden_layers": 8,
        "num_attention_heads": 64,
        "num_attention_groups": 8,
        "head_dim": 128,
        "max_position_embeddings": 262144,
        "layer_types": (["full_attention"] + ["sliding_attention"] * 3) * 2,
        "sliding_window": 512,
        "rope_theta": [5000000.0, 10000.0, 10000.0, 10000.0] * 2,
        "partial_rotary_factors": [0.5, 1.0, 1.0, 1.0] * 2,
        "rope_scaling": {
            "rope_type": "llama3",
            "factor": 2.0,
            "original_max_position_embeddings": 131072,
            "low_freq_factor": 1.0,
            "high_freq_factor": 32.0,
        },
        "yarn_only_types": ["full_attention"],
    },
}
"""The keys of Step 3.7 Flash, with a base for each layer, and a scaling of global ones only."""

MODELS: dict[str, dict[str, Any]] = {
    name: PUBLISHED[name]
    for name in (
        "google/embeddinggemma-300m",
        "answerdotai/ModernBERT-base",
        "ModernBERT-large saved by transformers 5",
        "zai-org/GLM-4.7-Flash",
        "tencent/Hy3",
        "tencent/Hy3-preview (flat)",
        "LGAI-EXAONE/EXAONE-4.0-1.2B",
        "Qwen/Qwen3.8-Flash-Next",
        "nvidia/GLM-5.2-NVFP4",
        "deepseek-ai/DeepSeek-V4-Flash",
    )
}
MODELS |= {"EXAONE 4.5": EXAONE_4_5, "Granite 4": GRANITE_4, "Step 3.7": STEP_3_7}


@pytest.fixture(scope="module")
def probe() -> Iterator[Probe]:
    with Probe() as started:
        yield started


def recipe_for(inspection: ConfigInspection) -> Recipe:
    """Twice what a model declares: by its own scaling where it has one, else by YaRN."""
    kind = inspection.spec.form.kind
    if inspection.spec.scaled:
        return recipe_of(kind, 2.0, on_top=True)
    return recipe_of("yarn", 2.0)


def check(module: dict[str, Any], inv_freq: Vector | None, factor: float) -> None:
    assert inv_freq is not None
    np.testing.assert_allclose(module["inv_freq"], inv_freq, rtol=2e-6, atol=0)
    assert module["attention_factor"] == pytest.approx(factor, rel=1e-6)


@pytest.mark.parametrize("name", sample(list(MODELS), 4))
def test_the_class_of_transformers_computes_what_is_read_and_what_is_baked(
    name: str, probe: Probe, tmp_path: Path
) -> None:
    path = tmp_path / "config.json"
    path.write_text(json.dumps(MODELS[name]))
    inspection = inspect_source(open_source(str(path)))
    assert isinstance(inspection, ConfigInspection)
    spec = inspection.spec
    modules = probe.ask(tmp_path, spec.context)["modules"]
    check(modules["global"], spec.current().inv_freq, spec.attention_factor)
    has_local = "local" in modules
    assert has_local == (spec.local_inv_freq is not None)
    if has_local:
        check(modules["local"], spec.local_inv_freq, 1.0)

    plan = make_plan(path, recipe_for(inspection))
    assert plan.schedule.context == 2 * spec.context
    path.write_text(json.dumps(plan.result.config))
    baked = probe.ask(tmp_path, plan.schedule.context)["modules"]
    check(baked["global"], plan.schedule.inv_freq, plan.schedule.attention_factor)
    if has_local:
        assert baked["local"] == modules["local"]

    # the control: a bake changes what the class computes
    before = np.asarray(modules["global"]["inv_freq"])
    assert not np.allclose(baked["global"]["inv_freq"], before, rtol=1e-3)
