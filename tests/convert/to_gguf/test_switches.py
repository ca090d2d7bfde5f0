"""Every field of a config class that changes logits is read by the conversion, refused, or warned about."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM

from ropeconv.engines.transformers.load import load_stock
from ropeconv.rope.errors import RopeconvError

from ...support.baking import AS_IS, make_plan
from ...support.extent import sample
from ...support.llamacpp import EXPORTED, checkpoint
from ...support.models import VOCABULARY

LEFT_OUT = {
    "rope_parameters", "rope_scaling", "rope_theta", "partial_rotary_factor", "rotary_pct", "rotary_dim", "model_type",
    "output_attentions", "output_hidden_states", "return_dict",
}  # fmt: skip
"""Fields of the RoPE, and those that say what is returned."""
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


def conversion(plan: Any) -> tuple[Any, ...]:
    """The metadata, every tensor with the places of its rows and what they are multiplied by, and the warnings."""
    values = {key: value for key, value in plan.exported.model.header.values.items() if not key.startswith("general.")}
    parts = {one.name: [(part.start, part.rows, part.factors) for part in one.parts] for one in plan.exported.tensors}
    return values, parts, plan.warnings


@pytest.mark.parametrize("model_type", sample(EXPORTED, 1))
def test_fields_that_change_logits_are_read_or_refused(tmp_path: Path, model_type: str) -> None:
    source = checkpoint(model_type, tmp_path / "source")
    model = load_stock(source, "cpu")
    config, weights = model.config.to_dict(), model.state_dict()

    def converted(config: dict[str, Any]) -> tuple[Any, ...] | None:
        (source / "config.json").write_text(json.dumps(config))
        try:
            return conversion(make_plan(source, AS_IS, to="gguf"))
        except RopeconvError:
            return None

    plain, before = logits(config, weights), converted(config)
    assert plain is not None
    assert before is not None
    changed = [(name, other) for name in config.keys() - LEFT_OUT for other in others(name, config[name])]
    moved = [
        (name, other) for name, other in changed
        if (then := logits({**config, name: other}, weights)) is not None and (then - plain).abs().max() >= 1e-3
    ]  # fmt: skip
    assert moved, "no field of the class moved logits, so that nothing was tested"
    assert [(name, other) for name, other in moved if converted({**config, name: other}) == before] == []
