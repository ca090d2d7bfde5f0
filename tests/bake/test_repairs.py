"""What `inspect` offers where a runtime does not compute a checkpoint as it is."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from ropeconv.bake.repairs import repairs
from ropeconv.errors import UnsupportedBake
from ropeconv.inspection.inspect import ConfigInspection, inspect_source
from ropeconv.rope.methods import REGISTRY
from ropeconv.rope.recipe import Recipe
from ropeconv.runtimes import newest
from ropeconv.sources import Source, open_source

from ..conftest import CONFIGS
from ..support.baking import make_plan

SIZES: dict[str, Any] = {
    "hidden_size": 4096, "num_attention_heads": 32, "num_hidden_layers": 4, "head_dim": 128, "rope_theta": 1e6,
    "max_position_embeddings": 131072,
}  # fmt: skip
YARN = {"rope_type": "yarn", "type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32768}


def offered(tmp_path: Path, config: dict[str, Any]) -> dict[str, tuple[str, str]]:
    """The message and the flags by the runtime that the flags name, or by the first word of the message."""
    (tmp_path / "config.json").write_text(json.dumps({**SIZES, **config}))
    source = open_source(str(tmp_path / "config.json"))
    seen = inspect_source(source)
    assert isinstance(source, Source)
    assert isinstance(seen, ConfigInspection)
    found = repairs(source.config(), seen)  # the table of `inspect` has the others
    return {(one.repair.split("--runtime ")[-1] or one.message.split()[0]): (one.message, one.repair) for one in found}


def test_a_runtime_that_ignores_the_scaling_gets_a_recipe_that_it_reads(tmp_path: Path) -> None:
    """mlx-lm's file for Qwen 3 MoE reads the base alone: NTK reaches the same length with a base."""
    message, repair = offered(tmp_path, {"model_type": "qwen3_moe", "rope_scaling": YARN})["mlx-lm"]
    assert message.startswith("mlx-lm 0.32: ignored, ")
    assert repair == "--ntk 4 --replace --runtime mlx-lm"


def test_a_schema_that_a_runtime_does_not_see_is_written_twice(tmp_path: Path) -> None:
    new_schema_alone = {"model_type": "llama", "rope_theta": None, "rope_parameters": {**YARN, "rope_theta": 1e6}}
    message, repair = offered(tmp_path, new_schema_alone)["mlx-lm"]
    assert "mlx-lm 0.32: differs" in message
    assert repair == "--as-is --runtime mlx-lm"


def test_what_everybody_reads_needs_nothing(tmp_path: Path) -> None:
    assert offered(tmp_path, {"model_type": "llama"}) == {}


def test_m_rope_that_a_runtime_fails_on_gets_a_base_instead(tmp_path: Path) -> None:
    config = {"model_type": "qwen2_vl", "rope_scaling": {"rope_type": "linear", "factor": 4.0}}
    assert "ktransformers" not in offered(tmp_path, config)
    assert offered(tmp_path, config)["vllm"][1] == "--ntk 4 --replace --runtime vllm"


@pytest.mark.parametrize("model_type", ["qwen2_vl", "qwen2_5_vl"])
@pytest.mark.parametrize(
    ("method", "words"),
    [("yarn", "it computes YaRN's ramp over 4 times the trained length"), ("linear", "a class that is not M-RoPE")],
)
def test_m_rope_in_vllm_is_refused_with_the_reason_and_a_base(
    tmp_path: Path, model_type: str, method: str, words: str
) -> None:
    config = json.loads((CONFIGS / "Qwen--Qwen2.5-VL-7B-Instruct.json").read_text()) | {"model_type": model_type}
    (tmp_path / "config.json").write_text(json.dumps(config))
    with pytest.raises(UnsupportedBake, match=words) as refusal:
        make_plan(tmp_path / "config.json", Recipe(REGISTRY[method](4.0)), runtimes=("vllm",))
    assert "take a base, which is read exactly (--ntk 4)" in str(refusal.value)
    base = make_plan(tmp_path / "config.json", Recipe(REGISTRY["ntk"](4.0)), runtimes=("vllm",))
    assert base.result.status_of(newest("vllm")) == "exact"
