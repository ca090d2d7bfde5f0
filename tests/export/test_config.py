"""What a config.json leaves to its class, and names of keys that changed between versions of transformers."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from transformers import AutoConfig

from ropeconv.errors import BadSource
from ropeconv.export.expression import names_in, solved, value_of
from ropeconv.families.registry import by_model_type
from ropeconv.formats.gguf import GgufFile
from ropeconv.rope.methods import REGISTRY as METHODS
from ropeconv.rope.recipe import Recipe

from ..support.baking import make_plan
from ..support.llamacpp import EXPORTED, bake, checkpoint

AS_IS = Recipe(METHODS["as-is"]())


def test_defaults_are_those_of_the_class() -> None:
    """Of every key that becomes metadata, and of every value that llama.cpp assumes."""
    wrong = {}
    for model_type in EXPORTED:
        rules, stock = by_model_type()[model_type].gguf, AutoConfig.for_model(model_type).to_dict()
        assert rules is not None
        texts = [*rules.u32.values(), *rules.f32.values(), *rules.flag.values(), *(c.key for c in rules.codes.values())]
        read = {name for text in texts for name in names_in(text)} | ({rules.act_key} if rules.act else set())
        expected = {name: stock[name] for name in read if stock.get(name) is not None}
        known = {name: rules.defaults.get(name) for name in expected}
        needs = {need.key: need.default for need in rules.need if stock.get(need.key) is not None}
        if known != expected or any(stock[key] != value for key, value in needs.items()):
            wrong[model_type] = (known, expected, needs)
    assert not wrong


def test_expressions_are_solved_for_their_keys() -> None:
    """In any order, as long as one key of a sum or product is left; what contradicts itself is refused."""
    given = {"a + b": 12, "b * c": 15, "a": 7, "d | e": 4, "f * 2": 6, "g + h": 1}
    found = solved(given)
    assert found == {"a": 7, "b": 5, "c": 3, "d": 4, "e": 4, "f": 3}
    assert all(value_of(found, text) == value for text, value in given.items() if text != "g + h")
    with pytest.raises(BadSource, match=r"the header has 16 for b \* c"):
        solved({**given, "b * c": 16})


def _rewrite(folder: Path, change: Any) -> None:
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(change(config)))


@pytest.mark.parametrize("key", ["num_experts", "num_local_experts"])
def test_the_number_of_experts_has_two_names(tmp_path: Path, key: str) -> None:
    source = checkpoint("qwen3_moe", tmp_path / "source")

    def rename(config: dict[str, Any]) -> dict[str, Any]:
        return {name: value for name, value in config.items() if "_experts" not in name or "per_tok" in name} | {key: 4}

    _rewrite(source, rename)
    bake(source, AS_IS, tmp_path / "out.gguf")
    file = GgufFile.open(tmp_path / "out.gguf")
    assert file.get("qwen3moe.expert_count") == 4
    assert file.get("general.size_label") == "4x{}K".format(
        round(sum(_share(info.shape, "_exps." in name) for name, info in file.tensors.items()) / 1000)
    )


def _share(shape: tuple[int, ...], expert: bool) -> int:
    size = 1
    for number in shape:
        size *= number
    return size // 4 if expert else size


def test_a_multiplier_that_is_absent_is_the_classes(tmp_path: Path) -> None:
    """Without the key, llama.cpp would divide logits by the root of the head dimension."""
    source = checkpoint("granite", tmp_path / "source")
    _rewrite(source, lambda config: {name: value for name, value in config.items() if "multiplier" not in name})
    bake(source, AS_IS, tmp_path / "out.gguf")
    assert GgufFile.open(tmp_path / "out.gguf").get("granite.attention.scale") == 1.0


def test_sizes_of_gemma_3_that_are_those_of_its_class(tmp_path: Path) -> None:
    """google/gemma-3-4b-it has no head counts in its config: its heads are 8 and 4, of 256 dimensions."""
    source = checkpoint(
        "gemma3_text", tmp_path / "source", num_attention_heads=8, num_key_value_heads=4, head_dim=256,
        query_pre_attn_scalar=256,
    )  # fmt: skip
    left = {"num_attention_heads", "num_key_value_heads", "head_dim", "query_pre_attn_scalar", "rms_norm_eps"}
    _rewrite(source, lambda config: {name: value for name, value in config.items() if name not in left})
    bake(source, AS_IS, tmp_path / "out.gguf")
    file = GgufFile.open(tmp_path / "out.gguf")
    found = [file.get(f"gemma3.attention.{key}") for key in ("head_count", "head_count_kv", "key_length")]
    assert found == [8, 4, 256]


def test_windows_that_llama_cpp_ignores_are_said(tmp_path: Path) -> None:
    words = "llama.cpp ignores the sliding window"
    settings = {"use_sliding_window": True, "sliding_window": 16, "max_window_layers": 1, "layer_types": None}
    windowed = make_plan(checkpoint("qwen2", tmp_path / "windows", **settings), AS_IS, to="gguf")
    assert any(words in warning for warning in windowed.warnings)
    plain = make_plan(checkpoint("qwen2", tmp_path / "plain"), AS_IS, to="gguf")
    assert not any(words in warning for warning in plain.warnings)


def test_a_copy_has_the_base_models_of_its_source(tmp_path: Path) -> None:
    source = checkpoint("llama", tmp_path / "source")
    (source / "README.md").write_text("---\nbase_model: meta-llama/Llama-3.2-1B\n---\n# A model\n")
    bake(source, AS_IS, tmp_path / "copy.gguf")
    assert GgufFile.open(tmp_path / "copy.gguf").get("general.base_model.0.name") == "Llama 3.2 1B"
    bake(source, Recipe(METHODS["yarn"](4.0)), tmp_path / "longer.gguf")
    assert GgufFile.open(tmp_path / "longer.gguf").get("general.base_model.0.name") == "Source"
