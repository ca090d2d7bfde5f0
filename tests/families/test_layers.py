"""Which layers rotate, and how wide their heads are, where a config leaves it to its class: as transformers has it."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from transformers import AutoConfig

from ropeconv.errors import BadSource
from ropeconv.families import by_model_type
from ropeconv.families.cached_layers import cache_geometry
from ropeconv.families.config import detect, geometry
from ropeconv.families.layers import key_layers, layer_names

from ..conftest import Run
from ..support.models import FAMILIES, TINY

LAYERS = 13  # no multiple of an interval
TYPED = [one for one in FAMILIES if by_model_type()[one].layers.types]
LISTED = {"cohere_compass_text", "lfm2", "lfm2_moe", "mellum", "laguna", "molmo2", "step3p7", "zamba2", "zaya"}
"""Families whose class has no rule of its own: every layer is of one type, or the config has to list them."""


NEOMME = {"model_type": "neomme"}


def theirs(model_type: str, **settings: Any) -> list[str]:
    text = next(iter(TINY[model_type].inner.values()), model_type) if model_type in TINY else model_type
    return list(AutoConfig.for_model(text, num_hidden_layers=LAYERS, **settings).layer_types)


@pytest.mark.parametrize("model_type", [one for one in TYPED if one not in LISTED])
def test_layer_types_follow_the_rule_of_the_class(model_type: str) -> None:
    settings = {"attn_layer_indices": [2, 5]} if model_type == "bamba" else {}
    ours = layer_names(dict(settings), by_model_type()[model_type], LAYERS)
    wanted = theirs(model_type, **settings)
    kinds = by_model_type()[model_type].layers.types
    assert [kinds.get(name) for name in ours] == [kinds[name] for name in wanted]
    assert list(layer_names(dict(settings), by_model_type()["llama"], LAYERS)) != wanted, "the control"


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
    config = {"layer_types": types, "num_hidden_layers": 2, "rope_parameters": settings, "head_dim": 64}
    assert geometry({"model_type": "cohere_compass_text", **config}, by_model_type()["cohere_compass"]).layers == kinds


def test_every_layer_may_have_a_window_of_its_own() -> None:
    ours = geometry({"model_type": "neomme", "per_layer_config": {"1": {"sliding_window": 1024}}}, detect(NEOMME))
    theirs = AutoConfig.for_model("neomme").per_layer_config
    assert ours.windows[:7] == (256, 1024, 256, 256, 256, None, 256)
    assert [layer.sliding_window for layer in theirs][:3] == [256, 1024, 256]


def test_numbers_of_layers_may_be_listed() -> None:
    family, listed = by_model_type()["lfm2"], {"full_attn_idxs": [0, 4, 12]}
    assert list(layer_names(listed, family, LAYERS)) == theirs("lfm2", **listed)
    assert set(layer_names({}, family, LAYERS)) == {"full_attention"}


def test_a_default_list_is_that_of_the_class() -> None:
    ours = layer_names({}, by_model_type()["zamba2"], 54)
    assert list(ours) == AutoConfig.for_model("zamba2").layer_types
    assert ours.count("hybrid") == 9


def gemma4(**more: Any) -> dict[str, Any]:
    return {"model_type": "gemma4_text", "num_hidden_layers": 6, "head_dim": 256, **more}


@pytest.mark.parametrize(
    ("settings", "width"),
    [({}, 512), ({"global_head_dim": 384}, 384), ({"per_layer_config": {"05": {"head_dim": 128}}}, 128)],
)
def test_heads_of_global_layers_have_a_width_of_their_own(settings: dict[str, Any], width: int, tmp_path: Path) -> None:
    config = gemma4(**settings)
    sizes = geometry(config, detect(config))
    assert (sizes.head_dim, sizes.rotary_dim, sizes.local_head_dim, sizes.local_rotary_dim) == (width, width, 256, 256)
    (tmp_path / "config.json").write_text(json.dumps(config))
    assert AutoConfig.from_pretrained(tmp_path).per_layer_config["full_attention"].head_dim == width


def test_the_commands_say_which_layers_and_pairs_are_extended(run: Run, tmp_path: Path) -> None:
    config = {**gemma4(), "num_attention_heads": 8, "hidden_size": 2304, "max_position_embeddings": 131072}
    (tmp_path / "config.json").write_text(json.dumps(config))
    said = run("inspect", "config.json").stdout
    assert "192 of 256, by architecture" in said
    assert "1 rotates and sees the whole context; 5 rotate with default, theta 10000 and see 512 tokens" in said
    assert "128 of 512 dimensions rotate" in run("apply", "config.json", "--linear", "2", "--dry-run").stdout
    refused = run("apply", "config.json", "--mixed", "2", "--dry-run")
    assert (refused.returncode, "beside pairs that stand still" in refused.stderr) == (1, True)
    (tmp_path / "config.json").write_text(json.dumps({**config, "model_type": "llama"}))
    assert "by architecture" not in run("inspect", "config.json").stdout


def test_a_zamba_2_without_rope_has_nothing_to_extend() -> None:
    with pytest.raises(BadSource, match="use_mem_rope = False, so it has no rotary position embedding"):
        detect({"model_type": "zamba2"})
    assert detect({"model_type": "zamba2", "use_mem_rope": True}).name == "zamba2"


def test_last_layers_take_the_keys_of_the_last_of_their_type() -> None:
    family = by_model_type()["gemma3n"]
    types = ["sliding_attention", "full_attention"] * 3
    part = {"layer_types": types, "num_kv_shared_layers": 3}
    assert key_layers(part, family, 6) == (0, 1, 2, 1, 2, 1)
    assert key_layers({**part, "num_kv_shared_layers": 0}, family, 6) == tuple(range(6))
    assert key_layers(part, by_model_type()["gemma3"], 6) == tuple(range(6))


def test_the_cache_of_layers_that_share_keys(tiny: Callable[[str], Path]) -> None:
    """Gemma 3n of 6 layers, the last 2 of which keep nothing; a class default of 15 shared layers holds too."""
    config = json.loads((tiny("gemma3n_text") / "config.json").read_text())
    found = cache_geometry(config, detect(config))
    assert found is not None
    assert sum(group.count for group in found.layers) == 4
    published = {"model_type": "gemma3n_text", "num_attention_heads": 8}
    whole = cache_geometry(published, detect(published))
    assert whole is not None
    assert sum(group.count for group in whole.layers) == 35 - 15


def test_a_list_of_types_that_is_too_short_is_refused() -> None:
    config = {"model_type": "cwm", "num_hidden_layers": 2, "head_dim": 64, "max_position_embeddings": 64}
    with pytest.raises(BadSource, match="has 1 layer_types and 2 layers"):
        geometry({**config, "layer_types": ["full_attention"]}, detect(config))
