"""Which layers rotate, how wide their heads and windows are, where a config leaves it to its class: as transformers."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from ropeconv.errors import BadSource
from ropeconv.models.config import detect, geometry, text_part
from ropeconv.models.layers import layer_names
from ropeconv.models.registry import by_model_type

from ..support.extent import sample
from ..support.families import some
from ..support.models import FAMILIES, TINY

LAYERS = 13  # no multiple of any interval, so that first and last layers differ
SIZES = {"max_position_embeddings": 4096, "hidden_size": 512, "num_attention_heads": 8}
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
    with pytest.raises(BadSource, match=rf"{next(iter(on))} = .*, so it does not use rotary"):
        detect(config_of(model_type, **off))
    assert detect(config_of(model_type, **on)).name == model_type
    assert detect(config_of("llama", **off)).name == "llama"


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
