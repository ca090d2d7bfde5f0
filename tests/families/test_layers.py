"""Which layers rotate, how wide their heads and windows are, where a config leaves it to its class: as transformers."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from ropeconv.errors import BadSource, UnsupportedBake
from ropeconv.families import by_model_type
from ropeconv.families.cached_layers import cache_geometry
from ropeconv.families.config import detect, geometry, text_part
from ropeconv.families.layers import key_layers, layer_names
from ropeconv.rope.methods import REGISTRY
from ropeconv.rope.recipe import Recipe
from ropeconv.runtimes.read_config import read_spec

from ..support.baking import make_plan
from ..support.extent import sample
from ..support.families import some
from ..support.models import FAMILIES, TINY, make

LAYERS = 13  # no multiple of any interval, so that first and last layers differ
SIZES = {"max_position_embeddings": 4096, "hidden_size": 512, "num_attention_heads": 8}
THETA = Recipe(REGISTRY["theta"](5e6), context=8192)
TYPED = [one for one in FAMILIES if by_model_type()[one].layers.types]
LISTED = {"cohere_compass_text", "lfm2", "lfm2_moe", "mellum", "laguna", "molmo2", "step3p7", "zamba2", "zaya"}
"""Families whose class has no rule of its own: every layer is of one type, or the config has to list them."""
DERIVED = {
    "afmoe", "cohere2_moe", "cwm", "exaone_moe", "flint", "granite_swa", "granitemoe_swa", "kolibri1", "minimax",
    "ministral", "muse_glimmer_text", "muse_spark_text", "olmo_hybrid", "vaultgemma",
}  # fmt: skip
"""Model types whose class derives what a config leaves out."""


def config_of(model_type: str, layers: int = LAYERS, **more: Any) -> dict[str, Any]:
    return {"model_type": model_type, "num_hidden_layers": layers, **SIZES, **more}


def theirs(model_type: str, layers: int = LAYERS, **settings: Any) -> list[str]:
    from transformers import AutoConfig

    text = next(iter(TINY[model_type].inner.values()), model_type) if model_type in TINY else model_type
    return list(AutoConfig.for_model(text, num_hidden_layers=layers, **settings).layer_types)


@pytest.mark.parametrize("model_type", some([one for one in TYPED if one not in LISTED]))
def test_layer_types_follow_the_rule_of_the_class(model_type: str) -> None:
    settings = {"attn_layer_indices": [2, 5]} if model_type == "bamba" else {}
    ours = layer_names(dict(settings), by_model_type()[model_type], LAYERS)
    wanted = theirs(model_type, **settings)
    kinds = by_model_type()[model_type].layers.types
    assert [kinds.get(name) for name in ours] == [kinds[name] for name in wanted]
    assert list(layer_names(dict(settings), by_model_type()["llama"], LAYERS)) != wanted, "the control"


@pytest.mark.parametrize("model_type", sample(sorted(DERIVED), 4))
def test_layer_types_that_a_config_leaves_out_are_those_of_the_class(model_type: str) -> None:
    config = config_of(model_type)
    family = detect(config)
    wanted = theirs(model_type)
    assert list(layer_names(text_part(config, family), family, LAYERS)) == wanted
    assert len(set(wanted)) > 1 or model_type == "ministral"


@pytest.mark.parametrize(
    ("settings", "kinds"),
    [
        ({"full_attention": None, "sliding_attention": {"rope_theta": 5e4}}, ("global", "none")),
        ({"full_attention": {"rope_theta": 5e4}, "sliding_attention": None}, ("none", "global")),
        ({"full_attention": {"rope_theta": 5e4}, "sliding_attention": {"rope_theta": 1e4}}, ("local", "global")),
    ],
)
def test_layers_whose_settings_are_null_do_not_rotate(settings: dict[str, Any], kinds: tuple[str, ...]) -> None:
    types = ["sliding_attention", "full_attention"]
    config = config_of("cohere_compass_text", 2, layer_types=types, rope_parameters=settings, head_dim=64)
    assert geometry(config, by_model_type()["cohere_compass"]).layers == kinds


@pytest.mark.parametrize(("dense", "rotating"), [(0, [0, 1, 2, 4]), (2, [0, 1, 2, 3, 4])])
def test_layers_without_experts_of_command_a_rotate_although_they_see_everything(
    dense: int, rotating: list[int]
) -> None:
    from transformers import CONFIG_MAPPING
    from transformers.models.cohere2_moe.modeling_cohere2_moe import Cohere2MoeAttention

    config = config_of("cohere2_moe", 5, first_k_dense_replace=dense, head_dim=64)
    class_config = CONFIG_MAPPING["cohere2_moe"](**{**config, "num_key_value_heads": 1})
    layers = [Cohere2MoeAttention(class_config, layer) for layer in range(5)]
    assert [one.layer_idx for one in layers if one.sliding_window is not None or one.force_rope] == rotating
    kinds = geometry(config, detect(config)).layers
    assert [layer for layer, kind in enumerate(kinds) if kind == "global"] == rotating


def test_layers_may_be_listed_by_number_or_in_a_default_list() -> None:
    from transformers import AutoConfig

    listed = {"full_attn_idxs": [0, 4, 12]}
    assert list(layer_names(listed, by_model_type()["lfm2"], LAYERS)) == theirs("lfm2", **listed)
    assert set(layer_names({}, by_model_type()["lfm2"], LAYERS)) == {"full_attention"}
    ours = layer_names({}, by_model_type()["zamba2"], 54)
    assert list(ours) == AutoConfig.for_model("zamba2").layer_types
    assert ours.count("hybrid") == 9


@pytest.mark.parametrize(
    ("model_type", "off", "on"),
    [
        ("granitemoehybrid", {"position_embedding_type": None}, {"position_embedding_type": "rope"}),
        ("granitemoehybrid", {"position_embedding_type": "nope"}, {"position_embedding_type": "rope"}),
        ("zamba2", {"use_mem_rope": False}, {"use_mem_rope": True}), ("zamba2", {}, {"use_mem_rope": True}),
    ],
)  # fmt: skip
def test_a_model_without_rope_is_refused_by_the_key_of_its_family(
    model_type: str, off: dict[str, Any], on: dict[str, Any]
) -> None:
    with pytest.raises(BadSource, match=rf"{next(iter(on))} = .*, so it has no rotary"):
        detect(config_of(model_type, **off))
    assert detect(config_of(model_type, **on)).name == model_type
    assert detect(config_of("llama", **off)).name == "llama"


def test_ernie_vl_is_refused_since_its_class_takes_the_default_type_alone(tmp_path: Path) -> None:
    from transformers import CONFIG_MAPPING
    from transformers.models.ernie4_5_vl_moe.modeling_ernie4_5_vl_moe import Ernie4_5_VLMoeTextRotaryEmbedding

    rope = {"rope_type": "yarn", "rope_theta": 500000.0, "factor": 4.0}
    with pytest.raises(ValueError, match="requires the `default` rope type"):
        Ernie4_5_VLMoeTextRotaryEmbedding(CONFIG_MAPPING["ernie4_5_vl_moe_text"](rope_parameters=rope))
    (tmp_path / "config.json").write_text(json.dumps(config_of("ernie4_5_vl_moe_text")))
    with pytest.raises(UnsupportedBake, match="takes no rope type but the default one"):
        make_plan(tmp_path / "config.json", THETA)


# Heads and windows


@pytest.mark.parametrize(
    ("settings", "width"),
    [({}, 512), ({"global_head_dim": 384}, 384), ({"per_layer_config": {"05": {"head_dim": 128}}}, 128)],
)
def test_heads_of_global_layers_have_a_width_of_their_own(settings: dict[str, Any], width: int, tmp_path: Path) -> None:
    from transformers import AutoConfig

    config = config_of("gemma4_text", 6, head_dim=256, **settings)
    sizes = geometry(config, detect(config))
    assert (sizes.head_dim, sizes.rotary_dim, sizes.local_head_dim, sizes.local_rotary_dim) == (width, width, 256, 256)
    (tmp_path / "config.json").write_text(json.dumps(config))
    assert AutoConfig.from_pretrained(tmp_path).per_layer_config["full_attention"].head_dim == width


SWITCH = {"use_sliding_window": True, "sliding_window": 8}


@pytest.mark.parametrize(
    ("model_type", "more"),
    [
        ("qwen2", {**SWITCH, "max_window_layers": 3}), ("qwen2_moe", SWITCH), ("gemma2", {"sliding_window": 8}),
        ("gemma3_text", {"sliding_window": 8}), ("cohere2", {"sliding_window": 8}), ("olmo3", {"sliding_window": 8}),
    ],
)  # fmt: skip
def test_the_layers_with_a_window_are_those_to_which_transformers_gives_one(
    model_type: str, more: dict[str, Any]
) -> None:
    config = config_of(model_type, 8, **more)
    sizes = geometry(config, detect(config))
    names = theirs(model_type, 8, **more)
    assert sizes.windows == tuple(8 if name == "sliding_attention" else None for name in names)
    assert set(sizes.windows) == {8, None}


def test_every_layer_may_have_a_window_of_its_own() -> None:
    from transformers import AutoConfig

    config = {"model_type": "neomme", "per_layer_config": {"1": {"sliding_window": 1024}}}
    assert geometry(config, detect(config)).windows[:7] == (256, 1024, 256, 256, 256, None, 256)
    in_class = AutoConfig.for_model("neomme").per_layer_config
    assert [layer.sliding_window for layer in in_class][:3] == [256, 1024, 256]


# Bases and caches by layer


def test_a_base_per_layer_is_read_and_written_and_0_stays_0(tmp_path: Path) -> None:
    bases = [0, *[20000.0] * (LAYERS - 1)]
    config = config_of("granite_swa", rope_theta=10000.0, layer_rope_theta=bases)
    spec = read_spec(config, detect(config))
    assert (spec.rope_theta, spec.layers[0], set(spec.layers[1:])) == (20000.0, "none", {"global"})
    (tmp_path / "config.json").write_text(json.dumps(config))
    baked = make_plan(tmp_path / "config.json", THETA).result.config
    assert baked["layer_rope_theta"] == [0, *[5e6] * (LAYERS - 1)]


def test_last_layers_take_the_keys_of_the_last_of_their_type() -> None:
    family = by_model_type()["gemma3n"]
    part = {"layer_types": ["sliding_attention", "full_attention"] * 3, "num_kv_shared_layers": 3}
    assert key_layers(part, family, 6) == (0, 1, 2, 1, 2, 1)
    assert key_layers({**part, "num_kv_shared_layers": 0}, family, 6) == tuple(range(6))
    assert key_layers(part, by_model_type()["gemma3"], 6) == tuple(range(6))


def test_the_cache_of_layers_that_share_keys(tmp_path: Path) -> None:
    """Gemma 3n of 6 layers, the last 2 of which keep nothing; a class default of 15 shared layers holds too."""
    config = json.loads((make("gemma3n_text", tmp_path / "m") / "config.json").read_text())
    for given, layers in ((config, 4), ({"model_type": "gemma3n_text", "num_attention_heads": 8}, 35 - 15)):
        found = cache_geometry(given, detect(given))
        assert found is not None
        assert sum(group.count for group in found.layers) == layers
