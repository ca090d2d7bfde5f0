"""Checkpoints that are scaled already, converted as they are: what the stock converter loses has to be there.

Attention factors, betas, open ramps, factor lists and llama3 scaling, in llama.cpp against the checkpoint itself.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from ropeconv.inspection import inspect_source
from ropeconv.rope.methods import REGISTRY as METHODS
from ropeconv.rope.recipe import Recipe
from ropeconv.sources import open_source

from ..support.extent import sample
from ..support.llamacpp import bake, beyond, checkpoint, of_llamacpp, of_transformers

YARN: dict[str, Any] = {
    "rope_type": "yarn", "rope_theta": 10000.0, "factor": 4.0, "original_max_position_embeddings": 64,
}  # fmt: skip
LISTS = {"short_factor": [1 + i / 20 for i in range(32)], "long_factor": [1 + i * 0.4 for i in range(32)]}
LONGROPE = {"rope_type": "longrope", "rope_theta": 10000.0, **LISTS}
LLAMA3 = {**YARN, "rope_type": "llama3", "low_freq_factor": 1.0, "high_freq_factor": 4.0}
MINISTRAL = {**YARN, "beta_fast": 16.0, "llama_4_scaling_beta": 0.1, "mscale": 1.0}
GEMMA3 = {
    "full_attention": {"rope_type": "linear", "factor": 4.0, "rope_theta": 1e6},
    "sliding_attention": {"rope_type": "default", "rope_theta": 10000.0},
}
CASES: dict[str, tuple[str, dict[str, Any], str]] = {
    "llama3": ("llama", LLAMA3, "tensor"),
    "an attention factor": ("qwen2", {**YARN, "attention_factor": 1.3}, "keys"),
    "an open ramp": ("qwen2", {**YARN, "beta_fast": 8.0, "beta_slow": 2.0, "truncate": False}, "carrier"),
    "two mscales": ("ministral3", {**MINISTRAL, "mscale_all_dim": 0.8}, "keys"),
    "equal mscales": ("ministral3", {**MINISTRAL, "mscale_all_dim": 1.0}, "keys"),
    "some layers": ("gemma3_text", GEMMA3, "keys"),
    "lists of Phi 3": ("phi3", LONGROPE, "tensor"),
    "lists of others": ("llama", {**LONGROPE, "factor": 4.0, "original_max_position_embeddings": 64}, "tensor"),
    "layers without RoPE": ("smollm3", YARN, "keys"),
}


@pytest.mark.parametrize("name", sample(list(CASES), 3))
def test_as_it_is(tmp_path: Path, name: str) -> None:
    model_type, rope, encoding = CASES[name]
    own = {"original_max_position_embeddings": 64} if model_type == "phi3" else {}
    source = checkpoint(model_type, tmp_path / "source", max_position_embeddings=256, rope_parameters=rope, **own)
    out = tmp_path / "out.gguf"
    plan = bake(source, Recipe(METHODS["as-is"]()), out)
    assert plan.result.encoding == encoding
    reference, plain = of_transformers(source, None), checkpoint(model_type, tmp_path / "plain")
    control = beyond(reference, of_transformers(plain, None))
    for figures, unscaled in zip(beyond(reference, of_llamacpp(out)), control, strict=True):
        assert figures.kl_mean < 1e-5
        assert unscaled.kl_mean > 1000 * figures.kl_mean
    seen = inspect_source(open_source(str(out)))
    assert not seen.problems
    assert seen.spec.attention_factor == pytest.approx(plan.schedule.attention_factor, rel=1e-6)
