"""Kimi K2, whose YaRN has equal betas: baked on top of its scaling and in place of it, and what its
stock class computes of the output.
"""

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ropeconv.convert.encoding import DEFAULT_RUNTIMES
from ropeconv.errors import UnsupportedBake
from ropeconv.rope.recipe import Recipe
from ropeconv.runtimes.runtime import newest

from ..conftest import DATA
from ..support.baking import AS_IS, apply, make_plan, recipe_of, write_config
from ..support.models import make
from ..support.optional import MISSING, skip

PUBLISHED = DATA / "more_configs" / "moonshotai--Kimi-K2-Instruct.json"
THETA, TRAINED, LENGTH = 5e4, 4096, 131072
ROPE: dict[str, Any] = {
    "type": "yarn",
    "factor": 32.0,
    "original_max_position_embeddings": TRAINED,
    "beta_fast": 1.0,
    "beta_slow": 1.0,
    "mscale": 1.0,
    "mscale_all_dim": 1.0,
}
ON_TOP = recipe_of("yarn", 2.0, on_top=True)
REPLACE = recipe_of("yarn", 64.0)
WIDER = {"on top": (ON_TOP, {}), "replaced": (REPLACE, {"replace": True})}


def by_hand(factor: float, betas: tuple[float, float] = (1.0, 1.0)) -> np.ndarray[Any, Any]:
    """Kimi's frequencies: a pair keeps its own up to the one that turns once in 4,096 tokens."""
    base = THETA ** (-np.arange(0, 64, 2) / 64)
    ends = [64 * math.log(TRAINED / math.tau / beta) / (2 * math.log(THETA)) for beta in betas]
    low, high = math.floor(ends[0]), math.ceil(ends[1])
    ramp = np.clip((np.arange(32) - low) / (high - low), 0, 1)
    return np.asarray(base * (1 - ramp) + base / factor * ramp)


@pytest.mark.parametrize("name", WIDER)
def test_the_published_config(name: str, tmp_path: Path) -> None:
    """Its class in transformers needs code of the checkpoint, so another runtime is the measure."""
    recipe, options = WIDER[name]
    plan = make_plan(PUBLISHED, recipe, **options)
    assert plan.schedule.context == 2 * LENGTH
    np.testing.assert_allclose(plan.schedule.inv_freq, by_hand(64.0), rtol=1e-12)
    assert plan.schedule.attention_factor == 1
    assert plan.schedule.softmax_scale == pytest.approx((0.1 * math.log(64) + 1) ** 2)
    assert plan.result.verdict_of(newest("vllm")).status == "exact"
    assert plan.result.verdict_of(newest("transformers")).status == "unsupported"

    write_config(plan, tmp_path)
    written = json.loads((tmp_path / "config.json").read_text())["rope_scaling"]
    assert {key: written[key] for key in ROPE} == {**ROPE, "factor": 64.0}


def test_a_runtime_that_is_named_is_not_exchanged() -> None:
    with pytest.raises(UnsupportedBake, match="needs the code"):
        make_plan(PUBLISHED, ON_TOP, runtimes=("transformers",))
    assert DEFAULT_RUNTIMES[0] == "transformers"


def test_replace_says_what_it_keeps_and_drops() -> None:
    def notes(recipe: Recipe) -> str:
        plan = make_plan(PUBLISHED, recipe, replace=True)
        return " ".join(note for note in plan.warnings if note.startswith("--replace"))

    kept = notes(REPLACE)
    assert "drops" not in kept
    assert all(f"{key} 1" in kept for key in ("beta_fast", "beta_slow", "mscale_all_dim"))
    partly = notes(Recipe(recipe_of("yarn", 64.0).method, explicit=("beta_fast",)))
    assert "drops beta_fast 1 (now 32)" in partly
    assert "keeps beta_slow 1" in partly
    other = notes(recipe_of("ntk", 64.0))
    assert "drops the yarn" in other
    assert "--on-top" in other


@pytest.mark.parametrize("settings", [{"beta_fast": 32.0}, {"beta_fast": 8.0}])
def test_betas_that_are_given_win(settings: dict[str, float]) -> None:
    method = recipe_of("yarn", 64.0, *settings.values()).method
    recipe = Recipe(method, explicit=("beta_fast",) if settings["beta_fast"] == 32 else ())
    plan = make_plan(PUBLISHED, recipe, replace=True)
    expected = by_hand(64.0, (settings["beta_fast"], 1.0))
    np.testing.assert_allclose(plan.schedule.inv_freq, expected, rtol=1e-12)
    assert not np.allclose(expected, by_hand(64.0), rtol=0.1)


def tiny(folder: Path) -> Path:
    """A tiny checkpoint of the stock class with Kimi's RoPE, over 64 trained tokens."""
    source = make("deepseek_v3", folder)
    config = json.loads((source / "config.json").read_text())
    config.pop("rope_parameters", None)
    rope = {**ROPE, "original_max_position_embeddings": 16, "factor": 4.0}
    config |= {"rope_theta": THETA, "rope_scaling": rope, "max_position_embeddings": 64}
    (source / "config.json").write_text(json.dumps(config))
    return source


@pytest.mark.parametrize("name", WIDER)
def test_what_the_stock_class_computes(name: str, tmp_path: Path) -> None:
    """Frequencies and logits beyond the trained length, beside a model that is patched by hand."""
    if "torch" in MISSING:
        skip("torch")
    import torch
    from transformers import AutoModelForCausalLM

    source = tiny(tmp_path / "source")
    recipe = {"on top": ON_TOP, "replaced": recipe_of("yarn", 8.0)}[name]
    out = apply(make_plan(source, recipe, tmp_path / "out", **WIDER[name][1]))

    def load(folder: Path) -> Any:
        return AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()

    def logits(model: Any) -> Any:
        tokens = torch.arange(3, 200)[None] % 300
        with torch.no_grad():
            return model(tokens).logits[0, 64:].double()

    baked, by_formula, usual = load(out), load(source), load(source)
    end = 64 * math.log(16 / math.tau) / (2 * math.log(THETA))
    base = THETA ** (-np.arange(0, 64, 2) / 64)
    step = np.where(np.arange(32) <= math.floor(end), base, base / 8)
    np.testing.assert_allclose(baked.model.rotary_emb.inv_freq.numpy(), step, rtol=3e-7)

    # by formula: the step, and the softmax scale of MLA for a factor of 8 in place of 4
    by_formula.model.rotary_emb.inv_freq.copy_(torch.from_numpy(step))
    growth = ((0.1 * math.log(8) + 1) / (0.1 * math.log(4) + 1)) ** 2
    for layer in by_formula.model.layers:
        layer.self_attn.scaling *= growth
    right = logits(by_formula)
    scale = right.std()
    assert (logits(baked) - right).abs().max() / scale < 1e-3  # float32 noise is 2e-4

    # the negative control: the same with the betas that nobody asked for
    ends = [64 * math.log(16 / math.tau / beta) / (2 * math.log(THETA)) for beta in (32.0, 1.0)]
    low, high = max(math.floor(ends[0]), 0), math.ceil(ends[1])
    ramp = np.clip((np.arange(32) - low) / (high - low), 0, 1)
    usual.model.rotary_emb.inv_freq.copy_(torch.from_numpy(base * (1 - ramp) + base / 8 * ramp))
    for layer in usual.model.layers:
        layer.self_attn.scaling *= growth
    assert (logits(usual) - right).abs().max() / scale > 1e-2


def test_as_is_changes_nothing(tmp_path: Path) -> None:
    plan = make_plan(PUBLISHED, AS_IS)
    np.testing.assert_allclose(plan.schedule.inv_freq, by_hand(32.0), rtol=1e-12)
