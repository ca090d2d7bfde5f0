"""Statements on mlx-vlm, whose models were built on a CPU, and on DeepSpeed inference, whose source was read.

mlx-vlm 0.7.10 with mlx 0.32.4: for every rope type, `inv_freq` of the rotary modules of each model was that of the base
(ignored) or of the formula (exact), or the config class raised ValueError (refused).
"""

from __future__ import annotations

from pathlib import Path

import pytest

from ropeconv.rope.recipe import parse_recipe

from ..conftest import CONFIGS, DATA
from ..support.baking import make_plan

MORE = DATA / "more_configs"
SCALED = ("google--gemma-3-4b-it", "meta-llama--Llama-3.2-11B-Vision-Instruct")
CASES = [
    ("mlx-vlm", MORE / "Qwen--Qwen2-VL-7B-Instruct.json", "yarn:4", "refused"),
    ("mlx-vlm", MORE / "Qwen--Qwen2-VL-7B-Instruct.json", "theta:8000000", "exact"),
    ("mlx-vlm", MORE / "Qwen--Qwen3-VL-8B-Instruct.json", "mixed:4", "refused"),
    ("mlx-vlm", MORE / "Qwen--Qwen3.5-35B-A3B.json", "yarn:4", "ignored"),
    ("mlx-vlm", MORE / "google--gemma-3-4b-it.json", "linear:32:context=512k", "exact"),
    ("mlx-vlm", MORE / "google--gemma-3-4b-it.json", "theta:8000000:context=512k", "ignored"),
    ("mlx-vlm", CONFIGS / "Qwen--Qwen3-8B.json", "yarn:4", "exact"),
    ("mlx-vlm", CONFIGS / "google--gemma-2-9b.json", "yarn:4", "ignored"),
    ("mlx-vlm", MORE / "meta-llama--Llama-3.2-11B-Vision-Instruct.json", "yarn:16", "unknown"),
    ("deepspeed", CONFIGS / "Qwen--Qwen2.5-7B-Instruct.json", "theta:8000000", "exact"),
    ("deepspeed", CONFIGS / "Qwen--Qwen2.5-7B-Instruct.json", "yarn:4", "refused"),
    ("deepspeed", CONFIGS / "Qwen--Qwen3-8B.json", "yarn:4", "unknown"),
]


@pytest.mark.parametrize(
    ("runtime", "path", "recipe", "status"), CASES, ids=lambda value: getattr(value, "stem", value)
)
def test_what_was_executed_and_read(runtime: str, path: Path, recipe: str, status: str, tmp_path: Path) -> None:
    plan = make_plan(path, parse_recipe(recipe), tmp_path / "out", replace=path.stem in SCALED)
    found = [verdict.status for verdict in plan.result.verdicts if verdict.runtime.startswith(f"{runtime}@")]
    assert found == [status]
