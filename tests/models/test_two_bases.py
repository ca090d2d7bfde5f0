"""DeepSeek V4 and Step 3.5, which have two sets of frequencies: what a setting reaches, against transformers."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ropeconv.engines.probe import Probe
from ropeconv.models.config import detect
from ropeconv.rope.recipe import Recipe
from ropeconv.runtimes.read_config import read_spec
from ropeconv.validate.checks import compare

from ..support.baking import make_plan, recipe_of, write_config

PUBLISHED = {
    "model_type": "deepseek_v4", "hidden_size": 4096, "num_attention_heads": 64, "num_key_value_heads": 1,
    "head_dim": 512, "qk_rope_head_dim": 64, "num_hidden_layers": 6, "max_position_embeddings": 1048576,
    "rope_theta": 10000, "compress_rope_theta": 160000, "compress_ratios": [0, 0, 4, 128, 4, 0, 0],
    "rope_scaling": {
        "type": "yarn", "factor": 16, "original_max_position_embeddings": 65536, "beta_fast": 32, "beta_slow": 1,
    },
}  # fmt: skip


def asked(probe: Probe, config: dict[str, Any], folder: Path) -> dict[str, Any]:
    (folder / "config.json").write_text(json.dumps(config))
    answer = probe.ask(folder, 1024)
    assert "error" not in answer, answer
    modules: dict[str, Any] = answer["modules"]
    return modules


@pytest.mark.parametrize("form", ["flat", "nested"])
def test_a_config_is_read_as_its_class_reads_it(form: str, probe: Probe, tmp_path: Path) -> None:
    """A flat setting is that of the layers that compress keys, and its attention factor is 1."""
    from transformers import AutoConfig

    config = {**PUBLISHED, "vocab_size": 320}
    if form == "nested":
        (tmp_path / "config.json").write_text(json.dumps(config))
        config = AutoConfig.from_pretrained(tmp_path).to_dict()
        assert {"main", "compress"} == config["rope_parameters"].keys()
    spec = read_spec(config, detect(config))
    assert spec.layers == ("local", "local", "global", "global", "global", "local")
    assert spec.windows == (128, 128, None, None, None, 128)
    assert (spec.rotary_dim, spec.attention_factor) == (64, 1.0)
    theirs = asked(probe, config, tmp_path)
    assert spec.local_form is not None
    np.testing.assert_allclose(theirs["global"]["inv_freq"], spec.form.inv_freq(64), rtol=3e-6)
    np.testing.assert_allclose(theirs["local"]["inv_freq"], spec.local_form.inv_freq(64), rtol=3e-6)
    assert theirs["global"]["attention_factor"] == theirs["local"]["attention_factor"] == 1


GLOBAL, LOCAL = "full_attention", "sliding_attention"
STEP: dict[str, Any] = {  # lists by layer, those of draft layers behind them
    "model_type": "step3p5", "hidden_size": 256, "num_hidden_layers": 4, "num_nextn_predict_layers": 1,
    "num_attention_heads": 4, "num_attention_groups": 2, "head_dim": 64, "max_position_embeddings": 4096,
    "layer_types": [GLOBAL, LOCAL, LOCAL, LOCAL, LOCAL], "sliding_window": 512,
    "rope_theta": [5e6, 1e4, 1e4, 1e4, 1e4], "partial_rotary_factors": [0.5, 1.0, 1.0, 1.0, 1.0],
}  # fmt: skip


def test_bases_and_shares_are_read_as_transformers_reads_them(tmp_path: Path) -> None:
    from transformers import AutoConfig

    spec = read_spec(STEP, detect(STEP))
    (tmp_path / "config.json").write_text(json.dumps(STEP))
    theirs = AutoConfig.from_pretrained(tmp_path).rope_parameters
    assert spec.layers == ("global", "local", "local", "local")
    assert (spec.rope_theta, spec.rotary_dim / 64) == (5e6, theirs[GLOBAL]["partial_rotary_factor"])
    assert (spec.local_form.theta, spec.local_rotary_dim / 64) == (1e4, theirs[LOCAL]["partial_rotary_factor"])
    assert (theirs[GLOBAL]["rope_theta"], theirs[LOCAL]["rope_theta"]) == (5e6, 1e4)


@pytest.mark.parametrize(
    "recipe",
    [
        recipe_of("theta", 2e7, context=16384),
        pytest.param(recipe_of("yarn", 4.0), marks=pytest.mark.nightly),
    ],
)
def test_a_method_changes_the_global_layers_alone(recipe: Recipe, probe: Probe, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(STEP))
    plan = make_plan(tmp_path / "config.json", recipe)
    write_config(plan, tmp_path)
    answer = probe.ask(tmp_path, plan.schedule.context)
    assert set(answer["modules"]) == {"global", "local"}
    compare(answer, plan.schedule, plan.before, plan.result.encoding)
    theta = 2e7 if recipe.context else 5e6
    assert plan.result.config["rope_theta"] == [theta, 1e4, 1e4, 1e4, 1e4]
