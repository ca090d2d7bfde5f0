"""Keys about RoPE that nothing reads: no hint without them, and no repair that loops."""

import json
from pathlib import Path
from typing import Any

import msgspec
import pytest

from ropeconv.errors import BadSource, UnknownModelType
from ropeconv.inspection.inspection import inspect_source
from ropeconv.models import config as config_module
from ropeconv.models.config import detect
from ropeconv.models.open import open_source
from ropeconv.models.registry import best_family, by_name, config_keys
from ropeconv.models.unread_keys import unread_rope_keys

LLAMA: dict[str, Any] = {
    "model_type": "new_one",
    "architectures": ["LlamaForCausalLM"],  # so that the family does not hang on a single key
    "hidden_size": 2048,
    "intermediate_size": 8192,
    "num_attention_heads": 32,
    "num_hidden_layers": 16,
    "num_key_value_heads": 8,
    "rms_norm_eps": 1e-5,
    "rope_theta": 500000.0,
    "vocab_size": 128256,
    "hidden_act": "silu",
    "max_position_embeddings": 4096,
}
UNREAD = {
    "rope_wavelength": 2.0,
    "rotary_emb_base": 1000,
    "swa_rope_theta": 10000,
    "partial_rotary_factor": 0.5,
    "rope_interleaved": True,
    "rope": {"base": 1e6},
    "attn_config": {"rope": True, "rope_theta": 5e5},
    "rope_parameters": {"full_attention": {"rope_type": "default", "rope_theta": 1e6}},
    "rope_scaling": {"rope_type": "fancy", "factor": 2.0},
    "layer_types": ["full_attention", "linear_attention"] * 8,
    "nope_layer_interval": 4,
    "local_base_freq": 1e4,
    "position_embedding_type": "rope_2d",
    "position_embedding_base": 1e4,
    "use_logn_attn": True,
    "attn_temperature_tuning": True,
    "alibi": True,
    "use_rope": False,
    "max_seq_len": 8192,
}
INSIDE = {
    "attn_config": "attn_config.rope_theta",
    "rope_parameters": "rope_parameters.full_attention",
    "rope_scaling": "rope_scaling.rope_type",
}
"""Keys of these objects that are named."""
WITHOUT_EFFECT = {
    "rope_wavelength": None,
    "rope_interleaved": False,
    "partial_rotary_factor": 1.0,
    "rope_scaling": {"rope_type": "linear", "factor": 2.0},
    "attn_config": {"rope": True, "rope_theta": None},
    "layer_types": ["full_attention"] * 16,
    "position_embedding_type": "rope",
    "use_rope": True,
    "alibi": False,
    "moe_layer_freq": 2,
}


def hint(**more: Any) -> str:
    with pytest.raises(UnknownModelType) as refusal:
        detect({**LLAMA, **more})
    return str(refusal.value)


@pytest.mark.parametrize("key", UNREAD)
def test_a_family_is_suggested_only_where_it_reads_every_key(key: str) -> None:
    config = dict(LLAMA)
    if key == "max_seq_len":
        del config["max_position_embeddings"]
    with pytest.raises(UnknownModelType) as refusal:
        detect({**config, key: UNREAD[key]})
    assert "--family" not in str(refusal.value)
    assert INSIDE.get(key, key) in str(refusal.value)


@pytest.mark.parametrize("key", WITHOUT_EFFECT)
def test_a_key_that_changes_nothing_is_no_obstacle(key: str) -> None:
    assert "pass --family llama" in hint(**{key: WITHOUT_EFFECT[key]})
    assert "pass --family llama" in hint()


def test_a_family_with_other_layers_is_suggested_only_where_the_config_says_so() -> None:
    """Layers without RoPE, or with another base, are not guessed from the names of other keys."""
    config = {key: value for key, value in LLAMA.items() if key != "architectures"}
    scaled = {"attn_temperature_tuning": True, "floor_scale": 8192, "attn_scale": 0.1}
    assert best_family({**config, **scaled}) != "llama4"
    assert best_family({**config, "no_rope_layers": [1, 1, 1, 0] * 4}) == "smollm3"
    sliding = {"layer_types": ["full_attention", "sliding_attention"] * 8, "sliding_window": 512}
    assert not by_name()[best_family({**config, **sliding})].encoder


def test_inspect_lists_them_for_a_class_that_was_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    derived = msgspec.structs.replace(by_name()["llama"], derived="transformers 5's class New")
    monkeypatch.setattr(config_module, "by_model_type", lambda: {"new_one": derived})
    messages = {}
    for base in (1000, 0):
        path = tmp_path / "config.json"
        path.write_text(json.dumps({**LLAMA, "rotary_emb_base": base}))
        problems = inspect_source(open_source(str(path))).problems
        messages[base] = [item.message for item in problems if item.code == "ignored-key"]
    (message,) = messages[1000]
    assert "rotary_emb_base" in message
    assert messages[0] == []


def test_inspect_lists_them_for_a_family_that_is_assumed(tmp_path: Path) -> None:
    def problems(**more: Any) -> list[str]:
        path = tmp_path / "config.json"
        path.write_text(json.dumps({**LLAMA, **more}))
        inspection = inspect_source(open_source(str(path), family="llama"))
        return [item.message for item in inspection.problems if item.code == "ignored-key"]

    (message,) = problems(rope_wavelength=2.0, rotary_emb_base=1000)
    assert "rope_wavelength and rotary_emb_base" in message
    assert problems() == []


@pytest.mark.parametrize(
    ("more", "named"),
    [
        ({"rotary_scale_base": 512, "use_xpos": True}, ["rotary_scale_base", "use_xpos"]),
        ({"rotary_ndims": 64, "position_freq_base": 1e6}, ["rotary_ndims", "position_freq_base"]),
        ({"rotary_scale_base": None, "use_xpos": False}, []),
    ],
)
def test_keys_that_no_family_reads_are_named_where_none_fits(
    more: dict[str, Any], named: list[str]
) -> None:
    """A config with few keys, of which two or three are foreign, is like no family."""
    few = {"hidden_size": 4096, "num_attention_heads": 32, "num_hidden_layers": 32, "depth_of": 3}
    with pytest.raises(UnknownModelType) as refusal:
        detect({"model_type": "hyperion", **few, "rope_theta": 1e4, **more})
    assert "list families" in str(refusal.value)
    assert all(key in str(refusal.value) for key in named)
    assert ("no family reads" in str(refusal.value)) == bool(named)


def test_objects_with_numbers_for_keys_are_no_settings() -> None:
    """The configs of classes that were not read from JSON have such an id2label."""
    with pytest.raises(UnknownModelType) as refusal:
        detect({"model_type": "hyperion", "depth_of": 3, "id2label": {0: "A", 1: "B"}})
    assert "no family reads" not in str(refusal.value)


def test_a_share_that_a_family_would_assume_is_not_hinted_at() -> None:
    """StableLM rotates a quarter of a head where a config does not say how much."""
    text = {
        "hidden_size": 4096,
        "num_attention_heads": 32,
        "num_hidden_layers": 32,
        "num_key_value_heads": 8,
        "max_position_embeddings": 8192,
        "rope_theta": 500000.0,
        "vocab_size": 1000,
        "qk_layernorm": True,
    }
    assert best_family(text) != "stablelm"
    assert best_family({**text, "partial_rotary_factor": 0.25}) == "stablelm"


def test_keys_of_text_models_inside_others_count() -> None:
    wrapper = {"model_type": "outer", "text_config": {**LLAMA, "rope_wavelength": 2.0}}
    with pytest.raises(UnknownModelType, match="does not read rope_wavelength"):
        detect(wrapper)


def test_keys_of_a_model_around_the_text_model_count() -> None:
    wrapper = {"model_type": "outer", "mrope_section": [8, 12, 12], "text_config": LLAMA}
    with pytest.raises(UnknownModelType, match="does not read mrope_section"):
        detect(wrapper)
    del wrapper["mrope_section"]
    with pytest.raises(UnknownModelType, match="--family llama"):
        detect(wrapper)


def test_interleaved_pairs_are_not_guessed_from_keys() -> None:
    family = by_name()["glm4"]
    config = dict.fromkeys(config_keys()["glm4"], 2)
    assert best_family(config) != "glm4"
    named = {**config, "architectures": ["Glm4ForCausalLM"]}
    assert (best_family(named), family.layout) == ("glm4", "interleaved")


def test_a_family_reads_its_own_keys() -> None:
    mla = by_name()["deepseek_v3"]
    part = {"qk_rope_head_dim": 64, "rope_theta": 1e4, "rope_interleave": True}
    assert unread_rope_keys(part, mla) in ([], ["rope_interleave"])
    assert unread_rope_keys({"qk_rope_head_dim": 64}, by_name()["llama"]) == ["qk_rope_head_dim"]


# Layouts of a model's own code, whose type a stock class has taken over

NOMIC: dict[str, Any] = {
    "model_type": "nomic_bert",
    "n_embd": 768,
    "n_head": 12,
    "n_layer": 12,
    "n_inner": 3072,
    "n_positions": 2048,
    "rotary_emb_base": 1000,
    "rotary_emb_fraction": 1.0,
    "rotary_emb_interleaved": False,
    "rotary_scaling_factor": None,
}
STOCK = {
    "hidden_size": 768,
    "num_attention_heads": 12,
    "num_hidden_layers": 12,
    "max_position_embeddings": 2048,
}


def inspected(folder: Path, **config: Any) -> list[str]:
    path = folder / "config.json"
    path.write_text(json.dumps(config))
    inspection = inspect_source(open_source(str(path)))
    return [item.message for item in inspection.problems if item.code == "ignored-key"]


def test_the_layout_of_the_original_code_is_refused_with_the_reason(tmp_path: Path) -> None:
    with pytest.raises(BadSource, match="n_embd.*rotary_emb_base.*stock nomic_bert class") as error:
        inspected(tmp_path, **NOMIC)
    assert "add them" not in str(error.value)
    # what it asks for, a stock layout, ends it
    stated = {**STOCK, "rotary_emb_base": 1000}
    assert inspected(tmp_path, model_type="nomic_bert", **stated) == []
    # where nothing names sizes in another way, they are absent
    with pytest.raises(BadSource, match="add them"):
        inspected(tmp_path, model_type="nomic_bert")


def test_a_key_that_says_what_the_class_computes_is_no_problem(tmp_path: Path) -> None:
    assert inspected(tmp_path, **NOMIC, **STOCK) == []
    other = {**NOMIC, **STOCK, "rotary_emb_base": 10000}
    (message,) = inspected(tmp_path, **other)
    assert "rotary_emb_base" in message
    # the repair that it names ends it
    rope = {"rope_type": "default", "rope_theta": 10000.0}
    assert inspected(tmp_path, **other, rope_parameters=rope) == []


@pytest.mark.parametrize(
    "config",
    [
        {"model_type": "olmo", "d_model": 2048, "n_heads": 16, "n_layers": 16, "rope": True},
        {"model_type": "phi", "n_embd": 2560, "n_head": 32, "n_layer": 32, "rotary_dim": 32},
        {"model_type": "llama", "dim": 4096, "n_heads": 32, "n_layers": 32},
        {**NOMIC, "hidden_size": 768},
    ],
)
def test_other_layouts_that_a_stock_class_ignores_are_refused(config: dict[str, Any]) -> None:
    with pytest.raises(BadSource, match="the model's own code") as error:
        detect(config)
    own = [key for key in config if key in ("n_heads", "n_layers", "n_head", "n_layer")]
    assert all(key in str(error.value) for key in own)


@pytest.mark.parametrize(
    "config",
    [
        {"model_type": "gptj", "n_embd": 4096, "n_head": 16, "n_layer": 28, "rotary_dim": 64},
        {"model_type": "dbrx", "d_model": 6144, "n_heads": 48, "n_layers": 40},
        {"model_type": "nomic_bert", **STOCK, "n_inner": 3072},
    ],
)
def test_families_that_read_such_names_are_no_such_layout(config: dict[str, Any]) -> None:
    assert detect(config).name == config["model_type"]


@pytest.mark.parametrize(
    "config",
    [
        {"model_type": "gpt2", "n_embd": 768, "rotary_emb_fraction": 0.5},
        {"model_type": "bert", "hidden_size": 768, "rotary_emb_base": 1000},
        {"model_type": "xlm-roberta", "position_embedding_type": "rotary"},
    ],
)
def test_a_type_without_rope_whose_own_code_rotates_says_so(config: dict[str, Any]) -> None:
    with pytest.raises(BadSource, match="only by the model's own code"):
        detect(config)
    plain = {"model_type": config["model_type"], "hidden_size": 768}
    with pytest.raises(BadSource, match="does not use rotary"):
        detect(plain)


@pytest.mark.parametrize(
    ("attention", "word"),
    [({"rope": True, "alibi": False}, "attn_config.rope"), ({"alibi": True}, "does not use")],
)
def test_mpt_says_that_only_its_own_code_rotates(attention: dict[str, Any], word: str) -> None:
    with pytest.raises(BadSource, match=word):
        detect({"model_type": "mpt", "d_model": 4096, "attn_config": attention})
