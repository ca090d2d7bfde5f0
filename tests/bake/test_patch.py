"""`ropeconv.patch`: a loaded model computes a method until it is taken back, as transformers itself
computes it.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers

import ropeconv
from ropeconv.rope.errors import RopeconvError
from ropeconv.rope.methods.method import REGISTRY
from ropeconv.rope.recipe import Recipe

from ..support.baking import YARN, apply, inspected, make_plan, recipe_of
from ..support.extent import sample
from ..support.models import TRAINED, VOCABULARY, make

LENGTH = 4 * TRAINED


def loaded(folder: Path) -> Any:
    return transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()


@pytest.fixture
def model(tiny: Callable[[str], Path]) -> Any:
    return loaded(tiny("llama"))


def logits(model: Any, length: int = LENGTH) -> Any:
    ids = torch.randint(VOCABULARY, (1, length), generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        return model(input_ids=ids, use_cache=False).logits[0].double()


def distance(left: Any, right: Any) -> float:
    """Largest difference in standard deviations of the logits."""
    return float((left - right).abs().max() / right.std())


@pytest.mark.parametrize(
    "model_type", sample(["llama", "qwen3", "gemma3_text", "phi", "deepseek_v2"], 2)
)
def test_it_is_what_transformers_computes_from_its_own_keys(
    tiny: Callable[[str], Path], model_type: str
) -> None:
    """The right side has the method in its config, and no code of ours."""
    folder = tiny(model_type)
    model = loaded(folder)
    before = logits(model)
    undo = ropeconv.patch(model, YARN)
    patched = logits(model)
    undo()
    config = transformers.AutoConfig.from_pretrained(folder)
    factor = YARN.schedule(inspected(folder).spec).attention_factor
    scaling = {
        "rope_type": "yarn",
        "factor": 4.0,
        "original_max_position_embeddings": TRAINED,
        "beta_fast": 32.0,
        "beta_slow": 1.0,
        "attention_factor": factor,
    }
    inside = config.rope_parameters.get("full_attention")
    if inside is None:
        config.rope_parameters = {**config.rope_parameters, **scaling}
    else:
        config.rope_parameters = {**config.rope_parameters, "full_attention": {**inside, **scaling}}
    config.max_position_embeddings = LENGTH
    reference = transformers.AutoModelForCausalLM.from_pretrained(
        folder, config=config, dtype=torch.float32
    ).eval()
    assert distance(patched, logits(reference)) < 1e-3
    assert distance(before, logits(reference)) > 0.1
    assert torch.equal(logits(model), before)


@pytest.mark.parametrize(
    ("model_type", "settings"),
    [("deepseek_v3", {"mscale": 1.0, "mscale_all_dim": 0.7}), ("deepseek_v4", {})],
    ids=["a pair of scales", "no other attention factor"],
)
def test_a_wider_scaling_keeps_what_only_the_config_of_the_model_says(
    model_type: str, settings: dict[str, float], tmp_path: Path
) -> None:
    """The right side is transformers with a factor of 8 in the config, as published."""
    results = []
    for factor in (2.0, 8.0):
        scaling = {
            "rope_type": "yarn",
            "factor": factor,
            "original_max_position_embeddings": TRAINED,
            "beta_fast": 32,
            "beta_slow": 1,
            **settings,
        }
        folder = make(
            model_type,
            tmp_path / f"{factor:g}",
            rope_scaling=scaling,
            max_position_embeddings=int(factor) * TRAINED,
        )
        model = loaded(folder)
        results.append(logits(model))
        if factor == 2:
            ropeconv.patch(model, recipe_of("yarn", 4.0, on_top=True))
            results.append(logits(model))
    narrow, patched, wide = results
    assert distance(patched, wide) < 1e-3
    assert distance(narrow, wide) > 0.1


def test_longrope_takes_the_list_of_the_last_position(model: Any) -> None:
    pairs = 32
    method = REGISTRY["longrope"](long_factor=(4.0,) * pairs, short_factor=(1.0,) * pairs)  # type: ignore[call-arg]
    short = logits(model, TRAINED)
    long = logits(model, LENGTH)
    ropeconv.patch(model, Recipe(method, context=LENGTH, attention_factor=1.0))
    assert distance(logits(model, TRAINED), short) < 1e-3
    assert distance(logits(model, LENGTH), long) > 0.1


def test_queries_are_scaled_and_left_alone_again(model: Any) -> None:
    before = logits(model)
    undo = ropeconv.patch(model, recipe_of("theta", 10000.0, context=LENGTH, log_n="clamped"))
    scaled = logits(model)
    assert distance(scaled[:TRAINED], before[:TRAINED]) < 1e-3
    assert distance(scaled[TRAINED:], before[TRAINED:]) > 0.1
    undo()
    assert torch.equal(logits(model), before)


def test_a_scaled_model_needs_a_plan(tiny: Callable[[str], Path], tmp_path: Path) -> None:
    folder = apply(make_plan(tiny("llama"), YARN, tmp_path / "out"))
    model = loaded(folder)
    with pytest.raises(RopeconvError, match=r"scaled already .*Target\(replace=True\)"):
        ropeconv.patch(model, YARN)
    ropeconv.patch(model, make_plan(folder, YARN, tmp_path / "again", replace=True))


def test_patches_are_undone_in_the_reverse_order(model: Any) -> None:
    before = logits(model)
    first = ropeconv.patch(model, YARN)
    second = ropeconv.patch(model, recipe_of("mixed", 2.0))
    with pytest.raises(RopeconvError, match="undo the later"):
        first()
    second()
    first()
    first()
    assert torch.equal(logits(model), before)


def test_a_plan_for_another_model_is_refused(
    model: Any, tiny: Callable[[str], Path], tmp_path: Path
) -> None:
    with pytest.raises(RopeconvError, match="another RoPE"):
        ropeconv.patch(model, make_plan(tiny("phi"), YARN, tmp_path / "out"))
