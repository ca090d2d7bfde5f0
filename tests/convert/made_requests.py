"""Requests to the encodings of a tiny Llama without files, and what is made of them."""

from collections.abc import Mapping
from typing import Any

import pytest

from ropeconv.convert.encoding import ENCODINGS, CheckpointResult, EncodeRequest
from ropeconv.convert.target import Target
from ropeconv.formats.safetensors import Tensor
from ropeconv.models.registry import by_model_type
from ropeconv.rope.errors import RopeconvError
from ropeconv.rope.recipe import Recipe
from ropeconv.rope.schedule import Schedule
from ropeconv.runtimes.read_config import read_spec

CONFIG: dict[str, Any] = {
    "model_type": "llama",
    "hidden_size": 16,
    "num_attention_heads": 2,
    "num_hidden_layers": 1,
    "head_dim": 8,
    "max_position_embeddings": 64,
    "rope_theta": 10000.0,
}
SHAPES = {"q_proj": (16, 16), "k_proj": (16, 16)}
WEIGHTS = {
    f"model.layers.0.self_attn.{name}.weight": Tensor(
        f"model.layers.0.self_attn.{name}.weight", "BF16", shape, 0, 0
    )
    for name, shape in SHAPES.items()
}


def request(
    of: Recipe | Schedule,
    config: dict[str, Any] = CONFIG,
    tensors: Mapping[str, Tensor] = WEIGHTS,
    **target: Any,
) -> EncodeRequest:
    inner = config.get("text_config", config)
    family = by_model_type()[inner["model_type"]]
    spec = read_spec(config, family)
    schedule = of.schedule(spec) if isinstance(of, Recipe) else of
    return EncodeRequest(schedule, spec, family, config, Target(**target), lambda: tensors)


def encoded(
    encoding: str, of: Recipe | Schedule, config: dict[str, Any] = CONFIG, **more: Any
) -> CheckpointResult:
    return ENCODINGS[encoding].encode(request(of, config, **more))


def refusal(
    encoding: str, of: Recipe | Schedule, config: dict[str, Any] = CONFIG, **more: Any
) -> str:
    with pytest.raises(RopeconvError) as problem:
        encoded(encoding, of, config, **more)
    return str(problem.value)
