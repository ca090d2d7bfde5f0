"""Encoding `ramp`: linear scaling as YaRN, for models whose runtimes have YaRN only."""

import json
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

from ropeconv.bake.checkpoint import CheckpointPlan
from ropeconv.errors import UnsupportedBake
from ropeconv.rope.forms import InterpolatedForm
from scripts.pages.engine_tables import configs

from ..support.baking import AS_IS, LINEAR, YARN, apply, inspected, make_plan, recipe_of
from ..support.llamacpp import checkpoint
from ..support.models import make

VISION = ("Qwen--Qwen2.5-VL-7B-Instruct", "Qwen--Qwen3-VL-8B-Instruct", "Qwen--Qwen3.5-27B")
MLA = "deepseek-ai--DeepSeek-V3"
SIZES = {VISION[0]: (128, 1e6), VISION[1]: (128, 5e6), VISION[2]: (64, 1e7), MLA: (64, 1e4)}
"""The dimensions of a head that rotate, and the base."""


def published(tmp_path: Path, name: str) -> Path:
    """A published config."""
    path = tmp_path / "config.json"
    path.write_text(json.dumps(configs()[name]))
    return path


def planned(tmp_path: Path, name: str, encoding: str = "ramp") -> CheckpointPlan:
    recipe = recipe_of("linear", 4.0, context=16384) if name == MLA else LINEAR
    config = published(tmp_path, name)
    plan = make_plan(config, recipe, tmp_path / "out", encoding=encoding, replace=True)
    assert isinstance(plan, CheckpointPlan)
    return plan


def by_transformers(rope: dict[str, object], size: int) -> tuple[np.ndarray, float]:
    """What YaRN's function of the installed transformers computes from a RoPE dictionary."""
    whole = {**rope, "partial_rotary_factor": 1.0}
    config = SimpleNamespace(
        rope_parameters=whole,
        rope_scaling=whole,
        head_dim=size,
        hidden_size=size,
        num_attention_heads=1,
        max_position_embeddings=int(str(rope["original_max_position_embeddings"])) * 4,
        standardize_rope_params=lambda: None,
    )
    inv_freq, factor = ROPE_INIT_FUNCTIONS["yarn"](config, "cpu")
    return inv_freq.double().numpy(), float(factor)


@pytest.mark.parametrize("name", SIZES)
def test_every_frequency_is_divided(tmp_path: Path, name: str) -> None:
    plan = planned(tmp_path, name)
    part = plan.result.config.get("text_config", plan.result.config)
    size, theta = SIZES[name]
    inv_freq, factor = by_transformers(part["rope_parameters"], size)
    expected = theta ** (-np.arange(0, size, 2) / size) / 4
    assert np.max(np.abs(inv_freq / expected - 1)) < 4e-7
    assert factor == 1

    # the control: with YaRN's own rotations, fast frequencies are kept
    usual = {**part["rope_parameters"], "beta_fast": 32.0, "beta_slow": 1.0}
    assert np.max(np.abs(by_transformers(usual, size)[0] / expected - 1)) > 2.9


@pytest.mark.parametrize("name", SIZES)
def test_it_is_exact_where_servers_have_no_linear_scaling(tmp_path: Path, name: str) -> None:
    statuses = {}
    for encoding in ("native", "ramp"):
        for verdict in planned(tmp_path, name, encoding).result.verdicts:
            statuses[encoding, verdict.runtime.partition("@")[0]] = verdict.status, verdict.options
    for runtime in ("transformers", "vllm", "sglang"):
        assert statuses["ramp", runtime] == ("exact", "")
    assert statuses["native", "sglang"] != ("exact", "")


def test_auto_takes_it_for_both_servers(tmp_path: Path) -> None:
    config = published(tmp_path, VISION[1])
    plan = make_plan(config, LINEAR, tmp_path / "out", runtimes=("transformers", "vllm", "sglang"))
    assert plan.result.encoding == "ramp"
    alone = make_plan(config, LINEAR, tmp_path / "alone", runtimes=("transformers",))
    assert alone.result.encoding == "native"


def test_llama_cpp_gets_it_as_linear_scaling(tmp_path: Path) -> None:
    """llama.cpp computes a step from such a ramp, with which all pairs keep their frequencies."""
    folder = tmp_path / "baked"
    apply(make_plan(checkpoint("qwen3", tmp_path / "source"), LINEAR, folder))
    config = json.loads((folder / "config.json").read_text())
    rope = {"rope_type": "yarn", "beta_fast": 1e-20, "beta_slow": 1e-20, "attention_factor": 1.0}
    rope |= {"factor": 4.0, "original_max_position_embeddings": 64}
    del config["rope_scaling"]
    config["rope_parameters"] = {**rope, "rope_theta": config["rope_parameters"]["rope_theta"]}
    (folder / "ropeconv.json").unlink()
    (folder / "config.json").write_text(json.dumps(config))

    crossed = inspected(folder).spec
    assert crossed.form.kind == "yarn"
    plan = make_plan(folder, AS_IS, tmp_path / "model.gguf", to="gguf", outtype="f32")
    written = apply(plan)
    spec = inspected(written).spec
    assert spec.form == InterpolatedForm(crossed.rope_theta, 4.0)
    assert spec.attention_factor == pytest.approx(1)


def test_other_schedules_and_models_are_refused(tmp_path: Path) -> None:
    llama = make("llama", tmp_path / "llama")
    for recipe in (LINEAR, YARN):
        with pytest.raises(UnsupportedBake):
            make_plan(llama, recipe, tmp_path / "out", encoding="ramp")
    mla = make("deepseek_v3", tmp_path / "mla")
    with pytest.raises(UnsupportedBake):
        make_plan(mla, YARN, tmp_path / "out", encoding="ramp")

    # a table of 64 tokens times a factor of 1.05 ends before the context of 256
    with pytest.raises(UnsupportedBake):
        make_plan(mla, recipe_of("ntk-fixed", 4.0), tmp_path / "out", encoding="ramp")
    assert make_plan(mla, LINEAR, tmp_path / "out", encoding="ramp").result.encoding == "ramp"


def test_inspect_sees_no_contradiction_in_it(tmp_path: Path) -> None:
    plan = planned(tmp_path, VISION[1])
    folder = tmp_path / "written"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(plan.result.config))
    assert "attn-factor" not in {
        problem.code for problem in inspected(folder / "config.json").problems
    }

    # the control: a factor that only some runtimes multiply
    part = plan.result.config["text_config"]
    for rope in (part["rope_parameters"], part["rope_scaling"]):
        rope["attn_factor"] = 0.5
    (folder / "config.json").write_text(json.dumps(plan.result.config))
    assert "attn-factor" in {problem.code for problem in inspected(folder / "config.json").problems}
