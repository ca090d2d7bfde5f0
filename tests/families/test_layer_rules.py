"""Which layers rotate: what a family's file derives from a config without `layer_types`, and what its class derives."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from transformers import CONFIG_MAPPING

from ropeconv.errors import BadSource, UnsupportedBake
from ropeconv.families import families
from ropeconv.families.config import detect, geometry, text_part
from ropeconv.families.layers import layer_names
from ropeconv.rope.methods import REGISTRY
from ropeconv.rope.recipe import Recipe
from ropeconv.runtimes.read_config import read_spec

from ..support.baking import make_plan

LAYERS = 11  # no multiple of any interval, so that first and last layers differ
SIZES = {"num_hidden_layers": LAYERS, "max_position_embeddings": 4096, "hidden_size": 512, "num_attention_heads": 8}
THETA = Recipe(REGISTRY["theta"](5e6), context=8192)
DERIVED = {
    "afmoe", "cohere2_moe", "cwm", "exaone_moe", "flint", "granite_swa", "granitemoe_swa", "kolibri1", "minimax",
    "ministral", "muse_glimmer_text", "muse_spark_text", "olmo_hybrid", "vaultgemma",
}  # fmt: skip


def read(model_type: str, **more: Any) -> dict[str, Any]:
    return {"model_type": model_type, **SIZES, **more}


@pytest.mark.parametrize("model_type", sorted(DERIVED))
def test_layer_types_that_a_config_leaves_out_are_those_of_the_class(model_type: str) -> None:
    config = read(model_type)
    family = detect(config)
    theirs = CONFIG_MAPPING[model_type](num_hidden_layers=LAYERS).layer_types
    assert list(layer_names(text_part(config, family), family, LAYERS)) == theirs
    assert len(set(theirs)) > 1 or model_type == "ministral"


def test_every_family_of_them_has_rules() -> None:
    plain = {name for family in families() if not family.layers.types for name in family.model_types}
    assert {*DERIVED} & plain == {"cwm", "ministral", "vaultgemma"}  # windows alone differ


@pytest.mark.parametrize(("dense", "rotating"), [(0, [0, 1, 2, 4]), (2, [0, 1, 2, 3, 4])])
def test_layers_without_experts_of_command_a_rotate_although_they_see_everything(
    dense: int, rotating: list[int]
) -> None:
    from transformers.models.cohere2_moe.modeling_cohere2_moe import Cohere2MoeAttention

    config = read("cohere2_moe", first_k_dense_replace=dense, head_dim=64) | {"num_hidden_layers": 5}
    theirs = CONFIG_MAPPING["cohere2_moe"](**{**config, "num_key_value_heads": 1})
    layers = [Cohere2MoeAttention(theirs, layer) for layer in range(5)]
    assert [one.layer_idx for one in layers if one.sliding_window is not None or one.force_rope] == rotating
    kinds = geometry(config, detect(config)).layers
    assert [layer for layer, kind in enumerate(kinds) if kind == "global"] == rotating


def test_a_base_per_layer_is_read_and_written_and_0_stays_0(tmp_path: Path) -> None:
    bases = [0, *[20000.0] * (LAYERS - 1)]
    config = read("granite_swa", rope_theta=10000.0, layer_rope_theta=bases)
    spec = read_spec(config, detect(config))
    assert (spec.rope_theta, spec.layers[0], set(spec.layers[1:])) == (20000.0, "none", {"global"})
    (tmp_path / "config.json").write_text(json.dumps(config))
    baked = make_plan(tmp_path / "config.json", THETA).result.config
    assert baked["layer_rope_theta"] == [0, *[5e6] * (LAYERS - 1)]
    with pytest.raises(BadSource, match="different bases in layer_rope_theta, 10000 and 20000"):
        read_spec(config | {"layer_rope_theta": [10000.0, *bases[1:]]}, detect(config))


@pytest.mark.parametrize("value", [None, "nope"])
def test_granite_4_without_rope_is_refused_by_its_own_key(value: str | None) -> None:
    config = read("granitemoehybrid", layer_types=["attention"] * LAYERS, position_embedding_type=value)
    with pytest.raises(BadSource, match=f"position_embedding_type = {value!r}, so it has no rotary"):
        detect(config)
    assert detect(config | {"position_embedding_type": "rope"}).name == "granitemoehybrid"
    assert detect(read("llama", position_embedding_type=value)).name == "llama"


@pytest.mark.parametrize("kind", ["linear", "yarn"])
def test_ernie_vl_is_refused_since_its_class_takes_the_default_type_alone(kind: str, tmp_path: Path) -> None:
    from transformers.models.ernie4_5_vl_moe.modeling_ernie4_5_vl_moe import Ernie4_5_VLMoeTextRotaryEmbedding

    rope = {"rope_type": kind, "rope_theta": 500000.0, "factor": 4.0}
    with pytest.raises(ValueError, match="requires the `default` rope type"):
        Ernie4_5_VLMoeTextRotaryEmbedding(CONFIG_MAPPING["ernie4_5_vl_moe_text"](rope_parameters=rope))
    (tmp_path / "config.json").write_text(json.dumps(read("ernie4_5_vl_moe_text")))
    with pytest.raises(UnsupportedBake, match="takes no rope type but the default one"):
        make_plan(tmp_path / "config.json", THETA)
