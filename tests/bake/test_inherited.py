"""What a plan takes over from its source is said in one line, with the numbers that the model's own class computes."""

from __future__ import annotations

import json
import math
import re
from pathlib import Path
from typing import Any

import pytest
import torch

from ropeconv.bake import Plan
from ropeconv.rope.methods import REGISTRY
from ropeconv.rope.recipe import Recipe

from ..conftest import CONFIGS
from ..encode.test_families import write_config
from ..support.baking import make_plan
from ..support.gguf_files import write

YARN = Recipe(REGISTRY["yarn"](80.0))
DEEPSEEK_V3, MINISTRAL = "deepseek-ai--DeepSeek-V3", "mistralai--Ministral-3-3B-2512"
# name, model_type at the top, mscale, mscale_all_dim
PUBLISHED = [
    ("deepseek-ai--DeepSeek-V2-Lite", "deepseek_v2", 0.707, 0.707),
    (DEEPSEEK_V3, "deepseek_v3", 1.0, 1.0),
    (MINISTRAL, "mistral3", 1.0, 1.0),  # as published; the transcribed file has the type of the text model there
]
SENTENCE = re.compile(
    r"mscale (\S+) and mscale_all_dim (\S+) are the model's own: attention_factor ([\d.]+)(?:, softmax_scale ([\d.]+))?"
)


def said(plan: Plan) -> list[tuple[float, float, float, float]]:
    """The numbers of every such sentence: the pair, the attention factor, the softmax scale."""
    found = [match for match in map(SENTENCE.fullmatch, plan.notes) if match]
    return [(float(m[1]), float(m[2]), float(m[3]), float(m[4] or 1)) for m in found]


def published(name: str, model_type: str, folder: Path) -> Path:
    config = json.loads((CONFIGS / f"{name}.json").read_text())
    config["model_type"] = model_type
    (folder / "config.json").write_text(json.dumps(config))
    return folder / "config.json"


def computed(folder: Path) -> tuple[float, float]:
    """Attention factor and softmax scale that the installed transformers computes from a config."""
    from transformers import AutoConfig, AutoModelForCausalLM
    from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

    config: Any = AutoConfig.from_pretrained(folder).get_text_config()
    config.num_hidden_layers = 1
    _, attention_factor = ROPE_INIT_FUNCTIONS["yarn"](config)
    with torch.device("meta"):
        attention = AutoModelForCausalLM.from_config(config).model.layers[0].self_attn
    width = getattr(attention, "qk_head_dim", None) or attention.head_dim
    return attention_factor, attention.scaling * math.sqrt(width)


@pytest.mark.parametrize(("name", "model_type", "mscale", "everywhere"), PUBLISHED)
def test_the_pair_of_a_published_model(
    name: str, model_type: str, mscale: float, everywhere: float, tmp_path: Path
) -> None:
    plan = make_plan(published(name, model_type, tmp_path), YARN, replace=True)
    (tmp_path / "out").mkdir()
    write_config(plan, tmp_path / "out")
    wanted = (mscale, everywhere, *computed(tmp_path / "out"))
    assert said(plan) == [pytest.approx(wanted, rel=1e-4)]
    assert (wanted[3] > 1.2) == (model_type != "mistral3")


def test_an_unequal_pair_gives_another_attention_factor(tmp_path: Path) -> None:
    path = published(DEEPSEEK_V3, "deepseek_v3", tmp_path)
    config = json.loads(path.read_text())
    config["rope_scaling"]["mscale_all_dim"] = 0.5
    path.write_text(json.dumps(config))
    plan = make_plan(path, YARN, replace=True)
    log = math.log(80)
    assert said(plan) == [pytest.approx((1, 0.5, (0.1 * log + 1) / (0.05 * log + 1), (0.05 * log + 1) ** 2), rel=1e-4)]


@pytest.mark.parametrize(
    ("name", "recipe"),
    [
        (DEEPSEEK_V3, Recipe(REGISTRY["yarn"](80.0, mscale=1.0, mscale_all_dim=1.0))),  # the user's own
        (DEEPSEEK_V3, Recipe(REGISTRY["theta"](1e6), context=163840)),
        (DEEPSEEK_V3, Recipe(REGISTRY["as-is"]())),
        ("meta-llama--Llama-2-7b-hf", YARN),
    ],
)
def test_what_is_not_inherited_is_not_said(name: str, recipe: Recipe) -> None:
    assert said(make_plan(CONFIGS / f"{name}.json", recipe, replace=recipe.method.name != "as-is")) == []


@pytest.mark.parametrize(
    ("arch", "multiplier", "wanted"),
    [
        ("deepseek2", 0.0707, (0.707, 0.707, 1.0, (0.0707 * math.log(80) + 1) ** 2)),
        ("mistral3", 0.707, (1.0, 0.707, (1 + 0.1 * math.log(80)) / (1 + 0.0707 * math.log(80)), 1.0)),
        ("llama", 0.707, None),
    ],
)
def test_a_gguf_says_it_from_its_key(
    tmp_path: Path, arch: str, multiplier: float, wanted: tuple[float, ...] | None
) -> None:
    """yarn_log_multiplier is 0.1 mscale_all_dim in deepseek2; 0.0707 is what the converter writes for V2."""
    keys = {
        "rope.scaling.type": "yarn", "rope.scaling.factor": 40.0, "rope.scaling.original_context_length": 64,
        "rope.scaling.yarn_log_multiplier": multiplier,
    }  # fmt: skip
    plan = make_plan(write(tmp_path / "model.gguf", arch, keys), YARN, replace=True)
    assert said(plan) == ([] if wanted is None else [pytest.approx(wanted, rel=1e-4)])
