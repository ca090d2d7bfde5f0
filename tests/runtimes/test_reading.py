"""How each runtime reads the same keys, against attention factors measured by running the runtimes."""

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ropeconv.models.registry import by_model_type
from ropeconv.runtimes.read_config import read_spec
from ropeconv.runtimes.runtime import find

from ..support.baking import make_plan, recipe_of

LLAMA = {"model_type": "llama", "head_dim": 32, "max_position_embeddings": 1024, "rope_theta": 10000.0}
LISTS = {"short_factor": [1.0] * 16, "long_factor": [2.0] * 16}
LONGROPE = {"rope_type": "longrope", "original_max_position_embeddings": 256, "factor": 4.0, **LISTS}
YARN = {"rope_type": "yarn", "original_max_position_embeddings": 256, "factor": 4.0}
FORMULA = 0.1 * math.log(4) + 1


def attention_factor(runtime: str, rope: dict[str, Any]) -> float:
    config = {**LLAMA, "rope_scaling": rope, "rope_parameters": {**rope, "rope_theta": 10000.0}}
    return read_spec(config, by_model_type()["llama"], find(runtime)[-1]).attention_factor


@pytest.mark.parametrize(
    ("rope", "transformers", "vllm", "sglang"),
    [
        ({**LONGROPE, "attention_factor": 1.25}, 1.25, 1.118034, 1.118034),
        ({**LONGROPE, "attention_factor": 1.0}, 1.0, 1.118034, 1.118034),
        ({**LONGROPE, "attention_factor": 1.25, "short_mscale": 1.25, "long_mscale": 1.25}, 1.25, 1.25, 1.25),
        (YARN, FORMULA, FORMULA, FORMULA),
        ({**YARN, "attention_factor": 1.25}, 1.25, 1.25, FORMULA),
        ({**YARN, "attention_factor": 1.25, "attn_factor": 1.25 / FORMULA}, 1.25, 1.25, 1.25),
        ({**YARN, "mscale": 0.707, "mscale_all_dim": 1.0}, 0.964327, 0.964327, 0.964327),
    ],
)
def test_attention_factors_as_measured(rope: dict[str, Any], transformers: float, vllm: float, sglang: float) -> None:
    assert attention_factor("transformers", rope) == pytest.approx(transformers, rel=1e-5)
    assert attention_factor("vllm", rope) == pytest.approx(vllm, rel=1e-5)
    assert attention_factor("sglang", rope) == pytest.approx(sglang, rel=1e-5)


def test_predictions_for_single_versions(tiny: Callable[[str], Path]) -> None:
    """SmolLM3 came in the middle of an era; a version before the tables is no ground for a verdict."""
    plan = make_plan(tiny("smollm3"), recipe_of("yarn", 4.0))
    words = [plan.predicted(version) for version in ("4.52.4", "4.53.0", "5.23.0", "4.30.0", "")]
    assert words == ["unsupported", "exact", "exact", "unknown", "unknown"]
    llama = make_plan(tiny("llama"), recipe_of("yarn", 4.0))
    assert [llama.predicted(version) for version in ("4.30.0", "", "4.50.3")] == ["unknown", "unknown", "differs"]
