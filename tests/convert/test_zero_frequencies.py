"""Pairs that do not rotate: where a frequency of 0 is carried, that it is exactly 0 there, and who
refuses it.
"""

import json
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from ropeconv.errors import UnsupportedBake
from ropeconv.rope.recipe import Recipe

from ..support.baking import apply, inspected, make_plan, recipe_of
from ..support.extent import sample
from ..support.llamacpp import (
    LENGTH,
    bake,
    beyond,
    checkpoint,
    of_llamacpp,
    of_transformers,
    sequence,
)
from ..support.models import TRAINED, make

PAIRS = 32
BASE = [10000.0 ** (-i / PAIRS) for i in range(PAIRS)]
PROPE = [*BASE[:8], *[0.0] * 24]
HOLES = [0.0 if i == 3 or i >= 20 else value for i, value in enumerate(BASE)]
NEARLY = [0.01 if i == 3 else value for i, value in enumerate(HOLES)]
NOTHING = [0.0] * PAIRS
VECTORS = {"holes": HOLES, "p-RoPE": PROPE, "DroPE": NOTHING}


def recipe(vector: list[float], **more: Any) -> Recipe:
    return recipe_of("inv-freq", tuple(vector), context=LENGTH, **more)


def logits(model: Any) -> torch.Tensor:
    with torch.no_grad():
        return model(input_ids=torch.tensor([sequence()]), use_cache=False).logits[0]


def loaded(folder: Path) -> Any:
    from transformers import AutoModelForCausalLM

    return AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, trust_remote_code=True)


def by_hand(source: Path, vector: list[float]) -> torch.Tensor:
    """Logits of the source after its buffer of frequencies is overwritten."""
    model = loaded(source)
    model.model.rotary_emb.inv_freq.copy_(torch.tensor(vector))
    return logits(model)


LAYOUTS = list(product(("llama", "mistral", "qwen2", "qwen3"), ("holes", "DroPE")))


@pytest.mark.parametrize(("layout", "name"), sample(LAYOUTS, 2))
def test_frequencies_of_0_beyond_the_trained_length(layout: str, name: str, tmp_path: Path) -> None:
    source = make(layout, tmp_path / layout)
    plan = make_plan(source, recipe(VECTORS[name]), tmp_path / f"{layout}_{name}")
    assert plan.result.encoding == ("native" if name == "DroPE" else "buffers")
    actual = logits(loaded(apply(plan)))
    assert torch.equal(actual, by_hand(source, VECTORS[name]))
    assert (actual - by_hand(source, NEARLY))[TRAINED:].abs().max() > 0.1


def test_p_rope_is_the_rope_type_of_transformers(llama: Path, tmp_path: Path) -> None:
    from transformers import LlamaConfig, LlamaForCausalLM

    plan = make_plan(llama, recipe(PROPE), tmp_path / "out")
    out = apply(plan)
    assert plan.result.encoding == "native"
    parameters = {"rope_type": "proportional", "partial_rotary_factor": 0.25, "rope_theta": 10000.0}
    assert json.loads((out / "config.json").read_text())["rope_parameters"] == parameters
    # two readers of the same file: transformers, and the class with a config written by hand
    settings = json.loads((llama / "config.json").read_text())
    settings.pop("rope_theta")
    stock = LlamaConfig(**settings, rope_parameters=parameters)
    actual = logits(loaded(out))
    assert torch.equal(
        actual, logits(LlamaForCausalLM.from_pretrained(llama, config=stock, dtype=torch.float32))
    )
    assert (actual - by_hand(llama, PROPE)).abs().max() < 1e-3
    assert (actual - logits(loaded(llama)))[TRAINED:].abs().max() > 0.1


ENCODED = {"llama": "tensor", "qwen2": "carrier", "phi3": "tensor"}


@pytest.mark.parametrize(("model_type", "name"), sample(list(product(ENCODED, VECTORS)), 1))
def test_llama_cpp_does_not_rotate_them(model_type: str, name: str, tmp_path: Path) -> None:
    source = checkpoint(model_type, tmp_path / "source")
    vector = VECTORS[name]
    plan = bake(source, recipe(vector), tmp_path / "out.gguf")
    assert plan.result.encoding == ENCODED[model_type]
    bake(source, recipe(NEARLY), tmp_path / "other.gguf")
    reference = of_transformers(source, plan)
    stock = of_llamacpp(tmp_path / "out.gguf")
    control = beyond(reference, of_llamacpp(tmp_path / "other.gguf"))
    for figures, other in zip(beyond(reference, stock), control, strict=True):
        assert figures.kl_mean < 1e-6
        assert other.kl_mean > 1000 * figures.kl_mean
    inv_freq = inspected(tmp_path / "out.gguf").spec.current().inv_freq
    np.testing.assert_allclose(inv_freq, vector, rtol=3e-7, atol=0)


@pytest.mark.parametrize(
    ("model_type", "vector", "options", "words"),
    [
        (
            "llama",
            HOLES,
            {"encoding": "factors"},
            "13 of 32 frequencies that are 0.*--encoding buffers, or --to gguf",
        ),
        (
            "llama",
            PROPE,
            {"runtimes": ("vllm",)},
            "rope_type proportional is untested except for Gemma 4",
        ),
        ("llama", PROPE, {"runtimes": ("tgi",)}, "it fails on rope_type proportional"),
        (
            "gemma2",
            HOLES,
            {},
            "with factors: their divisors would be infinite, and JSON has no infinity",
        ),
        ("gemma2", HOLES, {"to": "gguf"}, "llama.cpp loads no rope_freqs for it"),
    ],
)
def test_who_refuses_them(
    model_type: str, vector: list[float], options: dict[str, Any], words: str, tmp_path: Path
) -> None:
    with pytest.raises(UnsupportedBake, match=words):
        make_plan(checkpoint(model_type, tmp_path / "source"), recipe(vector), **options)
