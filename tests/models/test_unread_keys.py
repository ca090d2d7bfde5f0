"""Keys about RoPE that nothing reads: no hint without them, and no repair that loops."""

import json
from pathlib import Path
from typing import Any

import pytest

from ropeconv.errors import BadSource, UnknownModelType
from ropeconv.inspection.inspection import inspect_source
from ropeconv.models.config import detect
from ropeconv.models.open import open_source
from ropeconv.models.registry import by_name
from ropeconv.models.schema import unread_rope_keys

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
}
WITHOUT_EFFECT = {
    "rope_wavelength": None,
    "rope_interleaved": False,
    "partial_rotary_factor": 1.0,
    "rope_scaling": {"rope_type": "linear", "factor": 2.0},
}


def hint(**more: Any) -> str:
    with pytest.raises(UnknownModelType) as refusal:
        detect({**LLAMA, **more})
    return str(refusal.value)


@pytest.mark.parametrize("key", UNREAD)
def test_a_family_is_suggested_only_where_it_reads_every_key(key: str) -> None:
    sentence = hint(**{key: UNREAD[key]})
    assert "--family" not in sentence
    assert key in sentence


@pytest.mark.parametrize("key", WITHOUT_EFFECT)
def test_a_key_that_changes_nothing_is_no_obstacle(key: str) -> None:
    assert "pass --family llama" in hint(**{key: WITHOUT_EFFECT[key]})
    assert "pass --family llama" in hint()


def test_inspect_lists_them_for_a_family_that_is_assumed(tmp_path: Path) -> None:
    def problems(**more: Any) -> list[str]:
        path = tmp_path / "config.json"
        path.write_text(json.dumps({**LLAMA, **more}))
        inspection = inspect_source(open_source(str(path), family="llama"))
        return [item.message for item in inspection.problems if item.code == "ignored-key"]

    (message,) = problems(rope_wavelength=2.0, rotary_emb_base=1000)
    assert "rope_wavelength and rotary_emb_base" in message
    assert problems() == []


def test_keys_of_text_models_inside_others_count() -> None:
    wrapper = {"model_type": "outer", "text_config": {**LLAMA, "rope_wavelength": 2.0}}
    with pytest.raises(UnknownModelType, match="does not read rope_wavelength"):
        detect(wrapper)


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
    ("attention", "word"),
    [({"rope": True, "alibi": False}, "attn_config.rope"), ({"alibi": True}, "does not use")],
)
def test_mpt_says_that_only_its_own_code_rotates(attention: dict[str, Any], word: str) -> None:
    with pytest.raises(BadSource, match=word):
        detect({"model_type": "mpt", "d_model": 4096, "attn_config": attention})
