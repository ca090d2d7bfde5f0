"""What `bake_config` writes into the configs of families that say RoPE in keys of their own: keys,
nesting, order.
"""

from typing import Any

import pytest

from ropeconv.convert.config_edit import RopeSetting, bake_config
from ropeconv.errors import BadSource
from ropeconv.models.family import Family
from ropeconv.models.registry import by_model_type
from ropeconv.runtimes.read_config import read_spec

BASE: dict[str, Any] = {
    "num_hidden_layers": 2,
    "hidden_size": 128,
    "num_attention_heads": 2,
    "head_dim": 64,
    "max_position_embeddings": 64,
    "rope_theta": 10000.0,
}
LINEAR = {"rope_type": "linear", "factor": 4.0}
DEFAULT = {"rope_type": "default"}
NEW = {"max_position_embeddings": 256, "rope_theta": 500.0}
FLAT = {
    **NEW,
    "rope_scaling": {**LINEAR, "type": "linear"},
    "rope_parameters": {**LINEAR, "rope_theta": 500.0},
}
WINDOW = {"sliding_window": 32}
FULL, SLIDING = "full_attention", "sliding_attention"


def local(theta: float) -> dict[str, Any]:
    return {"rope_type": "default", "rope_theta": theta}


def parameters(**more: Any) -> dict[str, Any]:
    return {**LINEAR, "rope_theta": 500.0, **more}


def written(model_type: str, rope: dict[str, Any] = LINEAR, **config: Any) -> dict[str, Any]:
    """The whole new config. config: more keys; None takes one away."""
    family: Family = by_model_type()[model_type]
    whole = {
        key: value
        for key, value in {"model_type": model_type, **BASE, **config}.items()
        if value is not None
    }
    return bake_config(whole, family, read_spec(whole, family), RopeSetting(rope, 500.0, 256))


def changed(model_type: str, rope: dict[str, Any] = LINEAR, **config: Any) -> dict[str, Any]:
    """The keys that are new or have another value."""
    before = {**BASE, **config}
    after = written(model_type, rope, **config)
    return {
        key: value
        for key, value in after.items()
        if key != "model_type" and before.get(key, "absent") != value
    }


@pytest.mark.parametrize(
    ("model_type", "config", "expected"),
    [
        ("llama", {}, FLAT),
        # Command R: vLLM takes model_max_length for its table of positions, and the least of all
        # lengths as its window
        (
            "cohere",
            {"model_max_length": 128, "seq_length": 64},
            {**FLAT, "model_max_length": 256, "seq_length": 256},
        ),
        ("cohere", {"model_max_length": 512}, FLAT),
        (
            "gpt_neox",
            {"rope_theta": None, "rotary_pct": 0.5},
            {
                **FLAT,
                "rotary_emb_base": 500.0,
                "rope_parameters": parameters(partial_rotary_factor=0.5),
            },
        ),
        (
            "gpt_neox",
            {"rotary_emb_base": 10000},
            {
                **FLAT,
                "rotary_emb_base": 500.0,
                "rope_parameters": parameters(partial_rotary_factor=0.25),
            },
        ),
        (
            "gpt_neox_japanese",
            {"rotary_pct": 0.5},
            {
                **FLAT,
                "rotary_emb_base": 500.0,
                "rope_parameters": parameters(partial_rotary_factor=0.5),
            },
        ),
        ("olmo", {}, {**FLAT, "rope_scaling": {"type": "linear", "factor": 4.0}}),
        ("persimmon", {}, {**FLAT, "rope_parameters": parameters(partial_rotary_factor=0.5)}),
        (
            "persimmon",
            {"partial_rotary_factor": 0.25},
            {**FLAT, "rope_parameters": parameters(partial_rotary_factor=0.25)},
        ),
        (
            "gemma3_text",
            {**WINDOW, "num_hidden_layers": 7, "rope_local_base_freq": 20000.0},
            {**FLAT, "rope_parameters": {FULL: parameters(), SLIDING: local(20000.0)}},
        ),
        (
            "gemma3_text",
            {**WINDOW, "num_hidden_layers": 7},
            {
                **FLAT,
                "rope_local_base_freq": 10000.0,
                "rope_parameters": {FULL: parameters(), SLIDING: local(10000.0)},
            },
        ),
        (
            "modernbert",
            {"num_hidden_layers": 4, "global_rope_theta": 1.6e5, "local_rope_theta": 2e4},
            {
                **NEW,
                "global_rope_theta": 500.0,
                "rope_parameters": {FULL: parameters(), SLIDING: local(20000.0)},
            },
        ),
        (
            "granite_swa",
            {"layer_rope_theta": [10000.0, 0.0], "layer_types": [FULL, FULL]},
            {**FLAT, "layer_rope_theta": [500.0, 0.0]},
        ),
        (
            "step3p5",
            {
                **WINDOW,
                "num_hidden_layers": 3,
                "rope_theta": [1e4, 2e4, 1e4],
                "layer_types": [FULL, SLIDING, FULL],
            },
            {
                "max_position_embeddings": 256,
                "rope_theta": [500.0, 20000.0, 500.0],
                "rope_parameters": {
                    FULL: parameters(partial_rotary_factor=1.0),
                    SLIDING: {**local(20000.0), "partial_rotary_factor": 1.0},
                },
            },
        ),
    ],
)
def test_keys_of_families(
    model_type: str, config: dict[str, Any], expected: dict[str, Any]
) -> None:
    assert changed(model_type, **config) == expected


def test_the_old_schema_is_null_where_nothing_is_scaled_unless_a_class_needs_it() -> None:
    sections = {"type": "mrope", "mrope_section": [8, 12, 12]}
    assert written("llama", DEFAULT)["rope_scaling"] is None
    assert written("olmo", DEFAULT)["rope_scaling"] is None
    assert written("qwen2_vl", DEFAULT)["rope_scaling"] is None
    kept = written("qwen2_vl", DEFAULT, rope_scaling=sections)
    assert kept["rope_scaling"] == {
        "rope_type": "default",
        "type": "default",
        "mrope_section": [8, 12, 12],
    }
    assert kept["rope_parameters"] == {
        "rope_type": "default",
        "mrope_section": [8, 12, 12],
        "rope_theta": 500.0,
    }
    # without a key the class of apertus puts a scaling of its own in force
    assert written("apertus", DEFAULT)["rope_scaling"] == {
        "rope_type": "default",
        "type": "default",
    }
    assert "rope_scaling" not in written(
        "modernbert", DEFAULT, rope_scaling=DEFAULT, global_rope_theta=1e4
    )


def test_a_scale_of_queries_keeps_its_length_and_stands_where_vllm_looks_too() -> None:
    before = {**local(10000.0), "llama_4_scaling_beta": 1, "original_max_position_embeddings": 32.0}
    config = written("ministral3", rope_parameters=before)
    scale = {"original_max_position_embeddings": 32, "llama_4_scaling_beta": 1.0}
    assert config["rope_parameters"] == parameters(**scale)
    assert config["rope_scaling"] == {**LINEAR, "type": "linear", **scale}
    assert config["llama_4_scaling"] == {"original_max_position_embeddings": 32, "beta": 1.0}
    assert "llama_4_scaling" not in written("llama")


def test_an_original_length_at_the_top_is_that_of_the_scaling_else_the_new_context() -> None:
    key = "original_max_position_embeddings"
    yarn = {"rope_type": "yarn", "factor": 4.0}
    assert written("llama", {**yarn, key: 32}, **{key: 64})[key] == 32
    assert written("llama", LINEAR, **{key: 64})[key] == 256


def test_head_dim_is_stated_where_readers_would_work_it_out_otherwise() -> None:
    assert written("llama", head_dim=None)["head_dim"] == 64
    keys = list(written("llama", head_dim=None))
    assert keys[keys.index("hidden_size") + 1] == "head_dim"
    latent = written("deepseek_v3", head_dim=None, qk_rope_head_dim=32)
    assert "head_dim" not in latent
    assert latent["qk_rope_head_dim"] == 32


def test_keys_that_a_scaling_would_trip_over_are_left_out() -> None:
    """transformers reads both with a scaling, and does not fail on the source without one."""
    source = {"model_type": "llama", **BASE, "original_max_position_embeddings": None}
    source["partial_rotary_factor"] = 0.5
    family = by_model_type()["llama"]
    yarn = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32}
    baked = bake_config(source, family, read_spec(source, family), RopeSetting(yarn, 500.0, 256))
    assert "partial_rotary_factor" not in baked
    assert "original_max_position_embeddings" not in baked
    assert read_spec(baked, family).form.kind == "yarn"


def test_a_width_that_a_share_is_made_of_has_to_be_there() -> None:
    widths = {"qk_rope_head_dim": 64, "qk_nope_head_dim": 192}
    assert written("mistral4", **widths)["rope_parameters"]["partial_rotary_factor"] == 0.25
    with pytest.raises(BadSource, match="qk_nope_head_dim"):
        written("mistral4", qk_rope_head_dim=64)
