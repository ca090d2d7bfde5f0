"""Every field of a config class that changes logits is read by the conversion, refused, or warned about."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM

from ropeconv.engines.transformers.load import load_stock
from ropeconv.errors import RopeconvError
from ropeconv.rope.methods import REGISTRY as METHODS
from ropeconv.rope.recipe import Recipe

from ..support.baking import make_plan
from ..support.extent import sample
from ..support.llamacpp import EXPORTED, checkpoint
from ..support.models import VOCABULARY

AS_IS = Recipe(METHODS["as-is"]())
ROPE = {"rope_parameters", "rope_scaling", "rope_theta", "partial_rotary_factor", "rotary_pct", "rotary_dim"}
ASKED = {"output_attentions", "output_hidden_states", "return_dict"}
TOKENS = torch.randint(4, VOCABULARY, (1, 96), generator=torch.Generator().manual_seed(0))
WORDS = {"hidden_act": "relu", "hidden_activation": "relu", "activation": "relu", "topk_method": "group_limited_greedy"}


def others(name: str, value: Any) -> list[Any]:
    """Other values of the same type."""
    if isinstance(value, bool):
        return [not value]
    if isinstance(value, int):
        return list(dict.fromkeys([value + 1, max(1, value // 2)]))
    if isinstance(value, float):
        return [value * 3 + 0.5]
    if value is None:
        return [True, 16, 2.0]
    return [WORDS[name]] if name in WORDS else []


def logits(config: dict[str, Any], weights: dict[str, torch.Tensor]) -> torch.Tensor | None:
    """Logits of a config with weights; None where it takes others, or none at all."""
    try:
        model = AutoModelForCausalLM.from_config(AutoConfig.for_model(**config)).to(torch.float32).eval()
        model.load_state_dict(weights)
        with torch.no_grad():
            return model(input_ids=TOKENS, use_cache=False).logits
    except Exception:  # of transformers, for values that make no model
        return None


def unread(model_type: str, folder: Path) -> list[str]:
    """The fields whose change moves logits, while the conversion stays the same without a word."""
    source = checkpoint(model_type, folder / "source")
    model = load_stock(source, "cpu")
    config, weights = model.config.to_dict(), model.state_dict()
    (source / "config.json").write_text(json.dumps(config))
    plain, plan = logits(config, weights), make_plan(source, AS_IS, to="gguf")
    assert plain is not None
    found, moved = [], 0
    for name, value in config.items():
        if name in ROPE | ASKED or name == "model_type":
            continue
        for other in others(name, value):
            changed = {**config, name: other}
            then = logits(changed, weights)
            if then is None or float((then - plain).abs().max()) < 1e-3:
                continue
            moved += 1
            copy = folder / f"{name}-{other}"
            shutil.copytree(source, copy)
            (copy / "config.json").write_text(json.dumps(changed))
            try:
                made: Any = make_plan(copy, AS_IS, to="gguf")
            except RopeconvError:
                continue
            same = _values(made) == _values(plan) and _names(made) == _names(plan)
            if same and made.warnings == plan.warnings:
                found.append(f"{name} = {other}")
            shutil.rmtree(copy)
    assert moved, "no field of the class moved logits, so that nothing was tested"
    return found


def _values(plan: Any) -> dict[str, Any]:
    values = plan.exported.model.header.values
    return {key: value for key, value in values.items() if not key.startswith("general.")}


def _names(plan: Any) -> list[Any]:
    """Every tensor with the places of its rows, and what they are multiplied by."""
    return [
        (item.name, [(part.start, part.rows, part.factors) for part in item.parts]) for item in plan.exported.tensors
    ]


@pytest.mark.parametrize("model_type", sample(EXPORTED, 4))
def test_fields_that_change_logits_are_read_or_refused(tmp_path: Path, model_type: str) -> None:
    assert unread(model_type, tmp_path) == []
