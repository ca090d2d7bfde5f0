"""Statements on mlx-vlm, whose models were built on a CPU, and on DeepSpeed inference, whose source was read.

These are shapes that people load and that the record of mlx-vlm 0.7.10 does not have.
"""

import json
from pathlib import Path

import pytest

from ropeconv.models.config import detect
from ropeconv.rope.recipe import parse_recipe
from ropeconv.runtimes.read_config import read_spec
from ropeconv.runtimes.runtime import newest
from ropeconv.runtimes.verdict import judge

from ..conftest import CONFIGS, DATA
from ..support.baking import make_plan

MORE = DATA / "more_configs"
SCALED = ("google--gemma-3-4b-it", "meta-llama--Llama-3.2-11B-Vision-Instruct")
CASES = [
    ("mlx-vlm", MORE / "Qwen--Qwen3.5-35B-A3B.json", "yarn:4", "ignored"),
    ("mlx-vlm", MORE / "google--gemma-3-4b-it.json", "linear:32:context=512k", "exact"),
    ("mlx-vlm", MORE / "google--gemma-3-4b-it.json", "theta:8000000:context=512k", "ignored"),
    ("mlx-vlm", CONFIGS / "google--gemma-2-9b.json", "yarn:4", "ignored"),
    ("mlx-vlm", MORE / "meta-llama--Llama-3.2-11B-Vision-Instruct.json", "yarn:16", "exact"),
    ("mlx-vlm", CONFIGS / "mistralai--Mistral-7B-Instruct-v0.3.json", "yarn:4", "exact"),
    ("mlx-vlm", CONFIGS / "microsoft--Phi-3-mini-4k-instruct.json", "mixed:4", "exact"),
    ("mlx-vlm", CONFIGS / "stabilityai--stablelm-3b-4e1t.json", "yarn:4", "ignored"),
    ("mlx-vlm", MORE / "tencent--Hunyuan-7B-Instruct.json", "linear:4", "refused"),
    ("mlx-vlm", CONFIGS / "tiiuae--falcon-40b.json", "theta:80000", "unsupported"),
    ("mlx-vlm", MORE / "google--gemma-4-26B-A4B.json", "linear:4", "unknown"),
    ("deepspeed", CONFIGS / "Qwen--Qwen2.5-7B-Instruct.json", "theta:8000000", "exact"),
    ("deepspeed", CONFIGS / "Qwen--Qwen2.5-7B-Instruct.json", "yarn:4", "refused"),
    ("deepspeed", CONFIGS / "Qwen--Qwen3-8B.json", "yarn:4", "unknown"),
]


@pytest.mark.parametrize(
    ("runtime", "path", "recipe", "status"), CASES, ids=lambda value: getattr(value, "stem", value)
)
def test_what_was_executed_and_read(runtime: str, path: Path, recipe: str, status: str, tmp_path: Path) -> None:
    plan = make_plan(path, parse_recipe(recipe), tmp_path / "out", replace=path.stem in SCALED)
    statuses = [verdict.status for verdict in plan.result.verdicts if verdict.runtime.startswith(f"{runtime}@")]
    assert statuses == [status]


@pytest.mark.parametrize(
    ("name", "status"),
    [
        ("meta-llama--Llama-2-7b-hf", "exact"),
        ("Qwen--Qwen2-7B", "differs"),
        ("ibm-granite--granite-3.3-8b-instruct", "refused"),
    ],
)
def test_without_a_base_the_default_of_mlx_vlm_counts(name: str, status: str) -> None:
    """Llama has the same default as transformers, Qwen 2 another one, and Granite none."""
    config = json.loads((CONFIGS / f"{name}.json").read_text())
    config.pop("rope_theta", None)
    family = detect(config)
    spec = read_spec(config, family)
    assert judge(config, family, spec.current(), spec, newest("mlx-vlm")).status == status
    config["rope_theta"] = spec.rope_theta
    assert judge(config, family, spec.current(), spec, newest("mlx-vlm")).status == "exact"
