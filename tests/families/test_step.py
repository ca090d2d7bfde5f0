"""Step 3.5 as it is published: bases and shares of a head in lists by layer, those of draft layers behind them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from transformers import AutoConfig

from ropeconv.engines.probe.client import Probe
from ropeconv.errors import BadSource
from ropeconv.families.config import detect
from ropeconv.rope.methods import REGISTRY
from ropeconv.rope.recipe import Recipe
from ropeconv.runtimes.read_config import read_spec
from ropeconv.validate.checks.frequencies import compare

from ..support.baking import make_plan

GLOBAL, LOCAL = "full_attention", "sliding_attention"
PUBLISHED: dict[str, Any] = {
    "model_type": "step3p5", "hidden_size": 256, "num_hidden_layers": 4, "num_nextn_predict_layers": 1,
    "num_attention_heads": 4, "num_attention_groups": 2, "head_dim": 64, "max_position_embeddings": 4096,
    "layer_types": [GLOBAL, LOCAL, LOCAL, LOCAL, LOCAL], "sliding_window": 512,
    "rope_theta": [5e6, 1e4, 1e4, 1e4, 1e4], "partial_rotary_factors": [0.5, 1.0, 1.0, 1.0, 1.0],
}  # fmt: skip


def test_bases_and_shares_are_read_as_transformers_reads_them(tmp_path: Path) -> None:
    spec = read_spec(PUBLISHED, detect(PUBLISHED))
    (tmp_path / "config.json").write_text(json.dumps(PUBLISHED))
    theirs = AutoConfig.from_pretrained(tmp_path).rope_parameters
    assert spec.layers == ("global", "local", "local", "local")
    assert (spec.rope_theta, spec.rotary_dim / 64) == (5e6, theirs[GLOBAL]["partial_rotary_factor"])
    assert (spec.local_form.theta, spec.local_rotary_dim / 64) == (1e4, theirs[LOCAL]["partial_rotary_factor"])
    assert (theirs[GLOBAL]["rope_theta"], theirs[LOCAL]["rope_theta"]) == (5e6, 1e4)


@pytest.mark.parametrize("recipe", [Recipe(REGISTRY["yarn"](4.0)), Recipe(REGISTRY["theta"](2e7), context=16384)])
def test_a_method_changes_the_global_layers_alone(recipe: Recipe, probe: Probe, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(PUBLISHED))
    plan = make_plan(tmp_path / "config.json", recipe)
    text = next(step.text for step in plan.files if step.name == "config.json")
    (tmp_path / "config.json").write_text(text)
    answer = probe.ask(tmp_path, plan.schedule.context)
    assert set(answer["modules"]) == {"global", "local"}
    compare(answer, plan.schedule, plan.before, plan.result.encoding)
    theta = 2e7 if recipe.context else 5e6
    assert json.loads(text)["rope_theta"] == [theta, 1e4, 1e4, 1e4, 1e4]


def test_global_layers_with_different_bases_are_refused() -> None:
    config = PUBLISHED | {"layer_types": [GLOBAL] * 5}
    with pytest.raises(BadSource, match="layers with different bases in rope_theta, 10000 and 5e\\+06"):
        read_spec(config, detect(config))
