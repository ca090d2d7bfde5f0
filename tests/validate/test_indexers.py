"""Indexers of sparse attention: they rotate as attention does, and what they choose is not compared."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM

from ropeconv.engines.transformers.indexers import choose_all_keys, indexers
from ropeconv.families import by_model_type
from ropeconv.rope.methods import REGISTRY
from ropeconv.rope.recipe import Recipe

from ..support.baking import apply, make_plan, replaced, validate
from ..support.extent import sample
from ..support.models import FAMILIES

INDEXED = [
    name for name in FAMILIES if any(norm.side == "product" for norm in by_model_type()[name].weights.further_norms)
]
YARN = Recipe(REGISTRY["yarn"](16.0))
POSITIONS = [0, 1, 63, 64, 1000]


def given_to(folder: Path) -> dict[str, list[Any]]:
    """cos and sin that the attention modules and the indexers of a stock model get, by the kind of module."""
    model = AutoModelForCausalLM.from_pretrained(folder, attn_implementation="eager").eval()
    found: dict[str, list[Any]] = {"attention": [], "indexer": []}

    def remember(module: Any, args: tuple[Any, ...], given: dict[str, Any]) -> None:
        kind = "indexer" if module in chosen else "attention"
        pair = given.get("position_embeddings") or next(one for one in args if isinstance(one, tuple))
        found[kind].append([values[0].numpy() for values in pair])

    chosen = indexers(model)
    for module in model.modules():
        windowed = getattr(module, "sliding_window", None) is not None
        if module in chosen or (type(module).__name__.endswith("Attention") and not windowed):
            module.register_forward_pre_hook(remember, with_kwargs=True)
    ids = torch.arange(5, 5 + len(POSITIONS))[None]
    mask = torch.ones_like(ids)
    with torch.no_grad():
        model(input_ids=ids, position_ids=torch.tensor([POSITIONS]), attention_mask=mask, use_cache=False)
    return found


@pytest.mark.parametrize("model_type", sample(INDEXED, 2))
def test_the_indexer_gets_the_frequencies_and_the_attention_factor_of_attention(
    model_type: str, tiny: Callable[[str], Path], tmp_path: Path
) -> None:
    plan = make_plan(tiny(model_type), YARN, tmp_path / "out")
    found = given_to(apply(plan))
    assert found["indexer"]
    assert found["attention"]
    angles = np.outer(POSITIONS, plan.schedule.inv_freq)
    factor = 0.1 * math.log(16) + 1
    for cos, sin in found["indexer"] + found["attention"]:
        np.testing.assert_allclose(cos[:, : angles.shape[1]], factor * np.cos(angles), atol=2e-3)
        np.testing.assert_allclose(sin[:, : angles.shape[1]], factor * np.sin(angles), atol=2e-3)
    unscaled = given_to(tiny(model_type))["indexer"][0][0]
    assert np.abs(unscaled[-1] - found["indexer"][0][0][-1]).max() > 0.5


def test_a_choice_that_rounding_can_change_is_left_out_of_the_comparison(
    tiny: Callable[[str], Path], tmp_path: Path
) -> None:
    """And a wrong base is noticed all the same, where indexers choose all keys."""
    source = tiny("deepseek_v32")
    out = apply(make_plan(source, YARN, tmp_path / "out"))
    result = validate(out, source, device="cpu", tokens=128)
    assert result.agrees, result.sentence
    assert "attention to all keys" in result.sentence
    replaced(out / "config.json", '"rope_theta": 10000.0', '"rope_theta": 10500.0')
    assert validate(out, source, device="cpu", tokens=128).sentence.startswith("Disagrees")


def test_the_number_of_chosen_keys_is_put_back(tiny: Callable[[str], Path]) -> None:
    model = AutoModelForCausalLM.from_pretrained(tiny("deepseek_v32"))
    before = [module.index_topk for module in indexers(model)]
    undo = choose_all_keys(model)
    assert all(module.index_topk > 10**6 for module in indexers(model))
    undo()
    assert [module.index_topk for module in indexers(model)] == before == [24, 24]
