"""Which layers rotate, how wide their heads and windows are, where a config leaves it to its class:
as transformers.
"""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ropeconv.engines.probe import Probe
from ropeconv.errors import BadSource
from ropeconv.models.config import detect, geometry, local_head_dim, text_part
from ropeconv.models.layers import layer_names
from ropeconv.models.registry import by_model_type
from ropeconv.rope.recipe import Recipe
from ropeconv.runtimes.read_config import read_spec
from ropeconv.validate.checks import compare

from ..support.baking import make_plan, recipe_of, write_config
from ..support.extent import sample
from ..support.families import some
from ..support.models import FAMILIES, TINY

LAYERS = 13  # no multiple of any interval, so that first and last layers differ
SIZES = {"max_position_embeddings": 4096, "hidden_size": 512, "num_attention_heads": 8}
TYPED = [model_type for model_type in FAMILIES if by_model_type()[model_type].layers.types]
LISTED = {
    "cohere_compass_text",
    "lfm2",
    "lfm2_moe",
    "mellum",
    "laguna",
    "molmo2",
    "step3p7",
    "zamba2",
    "zaya",
}
"""Families whose class has no rule of its own: every layer is of one type, or the config has to
list them.
"""
DERIVED = {
    "afmoe",
    "cohere2_moe",
    "cwm",
    "exaone_moe",
    "flint",
    "granite_swa",
    "granitemoe_swa",
    "kolibri1",
    "minimax",
    "ministral",
    "muse_glimmer_text",
    "muse_spark_text",
    "olmo_hybrid",
    "vaultgemma",
}
"""Model types whose class derives what a config leaves out."""


def config_of(model_type: str, layers: int = LAYERS, **more: Any) -> dict[str, Any]:
    return {"model_type": model_type, "num_hidden_layers": layers, **SIZES, **more}


def theirs(model_type: str, layers: int = LAYERS, **settings: Any) -> list[str]:
    from transformers import AutoConfig

    text = (
        next(iter(TINY[model_type].inner.values()), model_type)
        if model_type in TINY
        else model_type
    )
    return list(AutoConfig.for_model(text, num_hidden_layers=layers, **settings).layer_types)


@pytest.mark.parametrize(
    "model_type", some([model_type for model_type in TYPED if model_type not in LISTED])
)
def test_layer_types_follow_the_rule_of_the_class(model_type: str) -> None:
    settings = {"attn_layer_indices": [2, 5]} if model_type == "bamba" else {}
    ours = layer_names(dict(settings), by_model_type()[model_type], LAYERS)
    expected = theirs(model_type, **settings)
    kinds = by_model_type()[model_type].layers.types
    assert [kinds.get(name) for name in ours] == [kinds[name] for name in expected]
    assert list(layer_names(dict(settings), by_model_type()["llama"], LAYERS)) != expected, (
        "the control"
    )


@pytest.mark.parametrize("model_type", sample(sorted(DERIVED), 4))
def test_layer_types_that_a_config_leaves_out_are_those_of_the_class(model_type: str) -> None:
    config = config_of(model_type)
    family = detect(config)
    expected = theirs(model_type)
    assert list(layer_names(text_part(config, family), family, LAYERS)) == expected
    assert len(set(expected)) > 1 or model_type == "ministral"


def test_a_published_minimax_has_a_number_for_each_layer() -> None:
    """MiniMax-Text-01 has attention in layers 7, 15, ... (modeling_minimax_text_01.py)."""
    numbers = [0, 0, 0, 0, 0, 0, 0, 1]
    config = config_of("minimax", 8, attn_type_list=numbers)
    family = by_model_type()["minimax"]
    assert geometry(config, family).layers == ("none",) * 7 + ("global",)

    # the control: without the list, every second layer has attention
    del config["attn_type_list"]
    assert geometry(config, family).layers == ("global", "none") * 4


@pytest.mark.parametrize(
    ("settings", "kinds"),
    [
        ({"full_attention": None, "sliding_attention": {"rope_theta": 5e4}}, ("global", "none")),
        ({"full_attention": {"rope_theta": 5e4}, "sliding_attention": None}, ("none", "global")),
        (
            {"full_attention": {"rope_theta": 5e4}, "sliding_attention": {"rope_theta": 1e4}},
            ("local", "global"),
        ),
    ],
)
def test_layers_whose_settings_are_null_do_not_rotate(
    settings: dict[str, Any], kinds: tuple[str, ...]
) -> None:
    types = ["sliding_attention", "full_attention"]
    config = config_of(
        "cohere_compass_text", 2, layer_types=types, rope_parameters=settings, head_dim=64
    )
    assert geometry(config, by_model_type()["cohere_compass"]).layers == kinds


@pytest.mark.parametrize(
    ("model_type", "off", "on"),
    [
        (
            "granitemoehybrid",
            {"position_embedding_type": None},
            {"position_embedding_type": "rope"},
        ),
        (
            "granitemoehybrid",
            {"position_embedding_type": "nope"},
            {"position_embedding_type": "rope"},
        ),
        ("zamba2", {"use_mem_rope": False}, {"use_mem_rope": True}),
        ("zamba2", {}, {"use_mem_rope": True}),
    ],
)
def test_a_model_without_rope_is_refused_by_the_key_of_its_family(
    model_type: str, off: dict[str, Any], on: dict[str, Any]
) -> None:
    with pytest.raises(BadSource, match=rf"{next(iter(on))} = .*rotary"):
        detect(config_of(model_type, **off))
    assert detect(config_of(model_type, **on)).name == model_type
    assert detect(config_of("llama", **off)).name == "llama"


# Heads and windows


@pytest.mark.parametrize(
    ("settings", "width"),
    [
        ({}, 512),
        ({"global_head_dim": 384}, 384),
        ({"per_layer_config": {"05": {"head_dim": 128}}}, 128),
    ],
)
def test_heads_of_global_layers_have_a_width_of_their_own(
    settings: dict[str, Any], width: int, tmp_path: Path
) -> None:
    from transformers import AutoConfig

    config = config_of("gemma4_text", 6, head_dim=256, **settings)
    sizes = geometry(config, detect(config))
    local = local_head_dim(config, detect(config), width)
    assert (sizes.head_dim, sizes.rotary_dim, local, sizes.local_rotary_dim) == (
        width,
        width,
        256,
        256,
    )
    (tmp_path / "config.json").write_text(json.dumps(config))
    assert AutoConfig.from_pretrained(tmp_path).per_layer_config["full_attention"].head_dim == width


SWITCH = {"use_sliding_window": True, "sliding_window": 8}


@pytest.mark.parametrize(
    ("model_type", "more"),
    [
        ("qwen2", {**SWITCH, "max_window_layers": 3}),
        ("qwen2_moe", SWITCH),
        ("gemma2", {"sliding_window": 8}),
        ("gemma3_text", {"sliding_window": 8}),
        ("cohere2", {"sliding_window": 8}),
        ("olmo3", {"sliding_window": 8}),
    ],
)
def test_the_layers_with_a_window_are_those_to_which_transformers_gives_one(
    model_type: str, more: dict[str, Any]
) -> None:
    config = config_of(model_type, 8, **more)
    sizes = geometry(config, detect(config))
    names = theirs(model_type, 8, **more)
    assert sizes.windows == tuple(8 if name == "sliding_attention" else None for name in names)
    assert set(sizes.windows) == {8, None}


# DeepSeek V4 and Step 3.5, which have two sets of frequencies: what a setting reaches, against
# transformers


PUBLISHED = {
    "model_type": "deepseek_v4",
    "hidden_size": 4096,
    "num_attention_heads": 64,
    "num_key_value_heads": 1,
    "head_dim": 512,
    "qk_rope_head_dim": 64,
    "num_hidden_layers": 6,
    "max_position_embeddings": 1048576,
    "rope_theta": 10000,
    "compress_rope_theta": 160000,
    "compress_ratios": [0, 0, 4, 128, 4, 0, 0],
    "rope_scaling": {
        "type": "yarn",
        "factor": 16,
        "original_max_position_embeddings": 65536,
        "beta_fast": 32,
        "beta_slow": 1,
    },
}


def asked(probe: Probe, config: dict[str, Any], folder: Path) -> dict[str, Any]:
    (folder / "config.json").write_text(json.dumps(config))
    answer = probe.ask(folder, 1024)
    assert "error" not in answer, answer
    modules: dict[str, Any] = answer["modules"]
    return modules


@pytest.mark.parametrize("form", ["flat", "nested"])
def test_a_config_is_read_as_its_class_reads_it(form: str, probe: Probe, tmp_path: Path) -> None:
    """A flat setting is that of the layers that compress keys, and its attention factor is 1."""
    from transformers import AutoConfig

    config = {**PUBLISHED, "vocab_size": 320}
    if form == "nested":
        (tmp_path / "config.json").write_text(json.dumps(config))
        config = AutoConfig.from_pretrained(tmp_path).to_dict()
        assert {"main", "compress"} == config["rope_parameters"].keys()
    spec = read_spec(config, detect(config))
    assert spec.layers == ("local", "local", "global", "global", "global", "local")
    assert spec.windows == (128, 128, None, None, None, 128)
    assert (spec.rotary_dim, spec.attention_factor) == (64, 1.0)
    theirs = asked(probe, config, tmp_path)
    assert spec.local_form is not None
    np.testing.assert_allclose(theirs["global"]["inv_freq"], spec.form.inv_freq(64), rtol=3e-6)
    np.testing.assert_allclose(theirs["local"]["inv_freq"], spec.local_form.inv_freq(64), rtol=3e-6)
    assert theirs["global"]["attention_factor"] == theirs["local"]["attention_factor"] == 1


GLOBAL, LOCAL = "full_attention", "sliding_attention"
STEP: dict[str, Any] = {  # lists by layer, those of draft layers behind them
    "model_type": "step3p5",
    "hidden_size": 256,
    "num_hidden_layers": 4,
    "num_nextn_predict_layers": 1,
    "num_attention_heads": 4,
    "num_attention_groups": 2,
    "head_dim": 64,
    "max_position_embeddings": 4096,
    "layer_types": [GLOBAL, LOCAL, LOCAL, LOCAL, LOCAL],
    "sliding_window": 512,
    "rope_theta": [5e6, 1e4, 1e4, 1e4, 1e4],
    "partial_rotary_factors": [0.5, 1.0, 1.0, 1.0, 1.0],
}


def test_bases_and_shares_are_read_as_transformers_reads_them(tmp_path: Path) -> None:
    from transformers import AutoConfig

    spec = read_spec(STEP, detect(STEP))
    (tmp_path / "config.json").write_text(json.dumps(STEP))
    theirs = AutoConfig.from_pretrained(tmp_path).rope_parameters
    assert spec.layers == ("global", "local", "local", "local")
    assert (spec.rope_theta, spec.rotary_dim / 64) == (5e6, theirs[GLOBAL]["partial_rotary_factor"])
    assert (spec.local_form.theta, spec.local_rotary_dim / 64) == (
        1e4,
        theirs[LOCAL]["partial_rotary_factor"],
    )
    assert (theirs[GLOBAL]["rope_theta"], theirs[LOCAL]["rope_theta"]) == (5e6, 1e4)


@pytest.mark.parametrize(
    "recipe",
    [
        recipe_of("theta", 2e7, context=16384),
        pytest.param(recipe_of("yarn", 4.0), marks=pytest.mark.nightly),
    ],
)
def test_a_method_changes_the_global_layers_alone(
    recipe: Recipe, probe: Probe, tmp_path: Path
) -> None:
    (tmp_path / "config.json").write_text(json.dumps(STEP))
    plan = make_plan(tmp_path / "config.json", recipe)
    write_config(plan, tmp_path)
    answer = probe.ask(tmp_path, plan.schedule.context)
    assert set(answer["modules"]) == {"global", "local"}
    compare(answer, plan.schedule, plan.before, plan.result.encoding)
    theta = 2e7 if recipe.context else 5e6
    assert plan.result.config["rope_theta"] == [theta, 1e4, 1e4, 1e4, 1e4]
