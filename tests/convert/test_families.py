"""Every family and method against the installed transformers: its own buffers, after a forward
pass, from the baked config, against the formulas that tests/rope has checked, for the base and the
sizes that the family is published with.
"""

import json
import math
from collections.abc import Callable
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ropeconv.engines.probe import Probe
from ropeconv.errors import Disagreement, UnsupportedBake
from ropeconv.rope.errors import RopeconvError
from ropeconv.rope.forms import Plain
from ropeconv.rope.recipe import Recipe
from ropeconv.rope.spec import RopeSpec
from ropeconv.runtimes.runtime import find
from ropeconv.validate.checks import compare, ulp_distance

from ..conftest import CONFIGS
from ..models.test_published_configs import FACTS, REFUSED
from ..support.baking import AS_IS, make_plan, recipe_of, replaced, write_config
from ..support.extent import sample
from ..support.families import crossed
from ..support.models import CANCELS, FAMILIES, TINY, TRAINED, of_extended


def published_theta(model_type: str) -> float:
    from transformers import AutoConfig

    given = of_extended(FAMILIES[model_type].get("rope_parameters", {})).get("rope_theta")
    if given:
        return float(given)
    rope = AutoConfig.for_model(model_type).get_text_config().rope_parameters
    return float(of_extended(rope)["rope_theta"])


def expected(model_type: str, recipe: Recipe) -> np.ndarray:
    """The frequencies of all pairs of a tiny checkpoint. Those that stand still have 0.

    Of r dimensions of which a share p rotates, theta^(-2i/r) is (theta^p)^(-2i/(p r)).
    """
    share = TINY[model_type].rotating_share
    rotary = int(TINY[model_type].rotary_dim * share)
    spec = RopeSpec(rotary, rotary, Plain(published_theta(model_type) ** share), TRAINED, TRAINED)
    if recipe.method.name == "theta":
        recipe = recipe_of("theta", recipe.method.base**share, context=recipe.context)
    return np.append(
        recipe.schedule(spec).inv_freq, np.zeros((TINY[model_type].rotary_dim - rotary) // 2)
    )


CASES: dict[str, tuple[Recipe, float]] = {
    "yarn": (recipe_of("yarn", 4.0), 0.1 * math.log(4) + 1),
    "yarn no-truncate": (recipe_of("yarn", 8.0, 32.0, 1.0, False), 0.1 * math.log(8) + 1),
    "yarn A=1.3": (recipe_of("yarn", 4.0, attention_factor=1.3), 1.3),
    "mixed": (recipe_of("mixed", 4.0), 1.0),
    "mixed A=1.2": (recipe_of("mixed", 4.0, attention_factor=1.2), 1.2),
    "by-parts": (recipe_of("by-parts", 4.0), 1.0),
    "ntk-fixed": (recipe_of("ntk-fixed", 4.0), 1.0),
    "linear": (recipe_of("linear", 4.0), 1.0),
    "theta": (recipe_of("theta", 5e5, context=256), 1.0),
}


@pytest.mark.parametrize(
    ("model_type", "name", "encoding"),
    [(of, *cell) for of, cell in crossed(list(product(CASES, ("auto", "factors"))), 3)],
)
def test_transformers_computes_the_method(
    model_type: str,
    name: str,
    encoding: str,
    tiny: Callable[[str], Path],
    probe: Probe,
    tmp_path: Path,
) -> None:
    recipe, attention_factor = CASES[name]
    if model_type in CANCELS and attention_factor != 1:
        with pytest.raises(UnsupportedBake, match="any attention factor"):
            make_plan(tiny(model_type), recipe, encoding=encoding)
        return
    if {name, recipe.method.name, encoding} & {*TINY[model_type].refused}:
        with pytest.raises(
            UnsupportedBake,
            match=(
                "its class does not support them|no rope type has its formula|it computes other"
                " frequencies"
            ),
        ):
            make_plan(tiny(model_type), recipe, encoding=encoding)
        return
    plan = make_plan(tiny(model_type), recipe, encoding=encoding)
    write_config(plan, tmp_path)
    answer = probe.ask(tmp_path, plan.schedule.context)
    assert "error" not in answer
    reader = find(f"transformers@{answer['transformers']}")[0]
    assert plan.result.verdict_of(reader).status == "exact"
    module = answer["modules"]["global"]
    inv_freq = expected(model_type, recipe)
    if plan.result.encoding == "factors":
        assert ulp_distance(np.array(module["inv_freq"]), inv_freq) <= 2
    np.testing.assert_allclose(module["inv_freq"], inv_freq, rtol=3e-6)
    np.testing.assert_allclose(module["short"], module["inv_freq"], rtol=0)
    assert module["attention_factor"] == pytest.approx(attention_factor, rel=1e-6)
    if "local" in answer["modules"]:
        local = answer["modules"]["local"]
        assert local["attention_factor"] == 1
        theta = TINY[model_type].local_theta or published_theta(model_type)
        rotary = TINY[model_type].local_rotary_dim or TINY[model_type].rotary_dim
        np.testing.assert_allclose(
            local["inv_freq"], theta ** -(np.arange(0, rotary, 2) / rotary), rtol=3e-6
        )
    compare(answer, plan.schedule, plan.before, plan.result.encoding)


@pytest.mark.parametrize("change", ["factor", "theta", "attention_factor"])
def test_the_check_notices_a_wrong_encoding(
    llama: Path, change: str, probe: Probe, tmp_path: Path
) -> None:
    yarn = recipe_of("yarn", 4.0)
    wrong = {
        "factor": recipe_of("yarn", 4.01),
        "attention_factor": replace(yarn, attention_factor=1.1387),
    }
    plan, other = (make_plan(llama, recipe) for recipe in (yarn, wrong.get(change, yarn)))
    write_config(other, tmp_path)
    if change == "theta":
        replaced(tmp_path / "config.json", "10000.0", "10001.0")
    with pytest.raises(Disagreement):
        compare(probe.ask(tmp_path, 256), plan.schedule, plan.before, "native")


# Published configs at their real size: the installed transformers builds them, on no memory, and is
# asked


METHODS = ("yarn", "mixed", "as-is")
# transcribed with the text model's type at the top; the published file says mistral3 there
TOP_TYPE = {"mistralai--Ministral-3-3B-2512": "mistral3"}


def recipe(name: str, method: str) -> Recipe:
    """Four times what a published config declares, by the factor over what it was trained for; or
    as it is.
    """
    trained, declared = FACTS[name][5:7]
    return AS_IS if method == "as-is" else recipe_of(method, 4.0 * declared / trained)


NAMES = [name for name, facts in FACTS.items() if facts[0] not in REFUSED]


@pytest.mark.parametrize(("name", "method"), sample(list(product(NAMES, METHODS)), 10))
def test_the_real_config_computes_the_schedule(
    name: str, method: str, probe: Probe, tmp_path: Path
) -> None:
    config = json.loads((CONFIGS / f"{name}.json").read_text())
    config["model_type"] = TOP_TYPE.get(name, config["model_type"])
    source = tmp_path / "config.json"
    source.write_text(json.dumps(config))
    if FACTS[name][0] == "llama4" and method == "yarn":
        with pytest.raises(UnsupportedBake, match="attention factor"):
            make_plan(source, recipe(name, method), replace=method != "as-is")
        return
    plan = make_plan(source, recipe(name, method), replace=method != "as-is")
    write_config(plan, tmp_path)
    compare(
        probe.ask(tmp_path, plan.schedule.context), plan.schedule, plan.before, plan.result.encoding
    )


# Models around a language model: the settings go into its text_config, which transformers then
# reads. The configs are transformers' own defaults, saved by it, so they come in the schema of
# version 5 alone.

MODELS = {
    "qwen2_vl": "qwen2_vl",
    "qwen2_5_vl": "qwen2_5_vl",
    "qwen3_vl": "qwen3_vl",
    "qwen3_vl_moe": "qwen3_vl_moe",
    "qwen3_5": "qwen3_5",
    "mistral3": "mistral",
    "llava": "llama",
    "gemma3": "gemma3",
    "llama4": "llama4",
    "qwen3_5_moe": "qwen3_5_moe",
    "gemma3n": "gemma3n",
    "gemma4": "gemma4",
    "gemma4_unified": "gemma4_unified",
    "lfm3_vl": "lfm3",
    "paligemma": "gemma",
    "idefics3": "llama",
    "aya_vision": "cohere2",
    "internvl": "qwen2",
    "unlimited_ocr": "unlimited_ocr",
    "mllama": "mllama",
    "aria": "aria_text",
    "glm4v": "glm4v",
    "glm46v": "glm4v",
    "glmga": "glm4v",
    "glm4v_moe": "glm4v_moe",
    "glm_ocr": "glm_ocr",
    "glm_image": "glm_image",
    "qwen2_5_omni": "qwen2_5_omni",
    "qwen2_5_omni_thinker": "qwen2_5_omni",
    "qwen3_omni_moe": "qwen3_omni_moe",
    "paddleocr_vl": "paddleocr_vl",
    "hunyuan_vl": "hunyuan_vl",
    "cosmos3_edge": "cosmos3_edge",
    "granite4_vision": "granite4_vision",
    "granite_docling": "granite_docling",
    "deepseek_ocr2": "deepseek_ocr2",
    "emu3": "emu3",
    "voxtral_realtime": "voxtral_realtime",
    "muse_glimmer": "muse_glimmer",
    "muse_spark": "muse_spark",
    "minimax_m3_vl": "minimax_m3_vl",
    "exaone4_5": "exaone4",
    "lfm2_vl": "lfm2",
    "kimi_k25": "deepseek_v3",
    "cohere_compass": "cohere_compass",
    "molmo2": "molmo2",
    "evolla": "evolla",
    "voxtral": "llama",
    "chameleon": "chameleon",
    "idefics": "idefics",
    "phi4_multimodal": "phi4_multimodal",
}
FLAT = {"chameleon", "evolla", "idefics", "phi4_multimodal"}
"""Model types whose configs have the language model's keys at the top."""
PARTIAL = {
    "rope_parameters": {
        "rope_type": "default",
        "partial_rotary_factor": 0.5,
        "mrope_section": [8, 12, 12],
    }
}
SETTINGS: dict[str, dict[str, Any]] = {
    "hunyuan_vl": {
        "text_config": {
            "rope_parameters": {"rope_type": "default", "mrope_section": [16, 16, 16, 16]}
        }
    },
    "glm4v": {"text_config": PARTIAL},
    "glm46v": {"text_config": {"model_type": "glm4v_text", **PARTIAL}},
    "glmga": {"text_config": {"model_type": "glm4v_text", **PARTIAL}},
    "glm_image": {"text_config": PARTIAL},
    "glm4v_moe": {"text_config": {"head_dim": 128}},
    "qwen3_omni_moe": {"thinker_config": {"text_config": {"head_dim": 128}}},
    "deepseek_ocr2": {"text_config": {"mlp_layer_types": ["dense"] * 32}},
    "chameleon": {"vocabulary_map": {"<image>": 8}},
    "cohere_compass": {
        "text_config": {
            "layer_types": ["sliding_attention", "full_attention"] * 20,
            "rope_parameters": {
                "full_attention": None,
                "sliding_attention": {"rope_type": "default", "rope_theta": 50000.0},
            },
        }
    },
}
"""What the defaults of a class lack or contradict."""
RECIPES = {
    "mixed": recipe_of("mixed", 4.0),
    "yarn": recipe_of("yarn", 4.0, attention_factor=1.0),
    "theta": recipe_of("theta", 5e6),
}
CANNOT = {
    ("gemma4", "mixed"): "proportional has a base and one factor",
    ("gemma4_unified", "mixed"): "proportional has a base and one factor",
    ("gemma4", "yarn"): "changes no frequency",
    ("gemma4_unified", "yarn"): "changes no frequency",
    ("cosmos3_edge", "mixed"): "its class does not support them",
    ("cosmos3_edge", "yarn"): "its class supports default",
}
"""Methods whose frequencies a class cannot carry, with the reason; YaRN changes none of Gemma
4's, so that without an attention factor it changes nothing.
"""


@pytest.mark.parametrize(("model_type", "name"), sample(list(product(MODELS, RECIPES)), 12))
def test_the_text_model_computes_the_schedule(
    model_type: str, name: str, probe: Probe, tmp_path: Path
) -> None:
    from transformers import AutoConfig

    AutoConfig.for_model(model_type, **SETTINGS.get(model_type, {})).save_pretrained(tmp_path)
    before = json.loads((tmp_path / "config.json").read_text())
    if (model_type, name) in CANNOT:
        with pytest.raises(RopeconvError, match=CANNOT[model_type, name]):
            make_plan(tmp_path / "config.json", RECIPES[name], replace=True)
        return
    plan = make_plan(tmp_path / "config.json", RECIPES[name], replace=True)
    assert plan.result.family.name == MODELS[model_type]
    write_config(plan, tmp_path)
    compare(
        probe.ask(tmp_path, plan.schedule.context), plan.schedule, plan.before, plan.result.encoding
    )
    after = json.loads((tmp_path / "config.json").read_text())
    changed = {key for key in after if after[key] != before.get(key)}
    assert model_type in FLAT or changed == {
        "thinker_config" if "thinker_config" in after else "text_config"
    }
