"""What a config.json leaves to its class, and names of keys that changed between versions of transformers."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from transformers import AutoConfig

from ropeconv.convert.to_gguf.conversions import names_in, solved, value_of
from ropeconv.errors import BadSource
from ropeconv.formats.gguf.file import GgufFile
from ropeconv.models.registry import by_model_type

from ...support.baking import AS_IS, recipe_of
from ...support.corruptions import edit
from ...support.llamacpp import EXPORTED, bake, checkpoint


@pytest.mark.parametrize("model_type", EXPORTED)
def test_defaults_are_those_of_the_class(model_type: str) -> None:
    """Of every key that becomes metadata, and of every value that llama.cpp assumes."""
    rules, stock = by_model_type()[model_type].gguf, AutoConfig.for_model(model_type).to_dict()
    assert rules is not None
    texts = [*rules.u32.values(), *rules.f32.values(), *rules.flag.values()]
    read = {name for text in texts for name in names_in(text)} | ({rules.act_key} if rules.act else set())
    expected = {name: stock[name] for name in read if stock.get(name) is not None}
    assert {name: rules.defaults.get(name) for name in expected} == expected
    assert not [need.key for need in rules.need if stock.get(need.key) not in (None, need.default)]


def test_expressions_are_solved_for_their_keys() -> None:
    """In any order, as long as one key of a sum or product is left; what contradicts itself is refused."""
    given = {"a + b": 12, "b * c": 15, "a": 7, "d | e": 4, "f * 2": 6, "g + h": 1}
    found = solved(given)
    assert found == {"a": 7, "b": 5, "c": 3, "d": 4, "e": 4, "f": 3}
    assert all(value_of(found, text) == value for text, value in given.items() if text != "g + h")
    with pytest.raises(BadSource, match=r"the header has 16 for b \* c"):
        solved({**given, "b * c": 16})


def without(*names: str) -> Callable[[dict[str, Any]], object]:
    return lambda config: [config.pop(name, None) for name in names]


@pytest.mark.parametrize("key", ["num_experts", "num_local_experts"])
def test_the_number_of_experts_has_two_names(tmp_path: Path, key: str) -> None:
    def rename(config: dict[str, Any]) -> None:
        without("num_experts", "num_local_experts")(config)
        config[key] = 4

    edit(source := checkpoint("qwen3_moe", tmp_path / "source"), "config.json", rename)
    bake(source, AS_IS, tmp_path / "model.gguf")
    file = GgufFile.open(tmp_path / "model.gguf")
    assert file.get("qwen3moe.expert_count") == 4
    share = [math.prod(info.shape) // (4 if "_exps." in name else 1) for name, info in file.tensors.items()]
    assert file.get("general.size_label") == f"4x{round(sum(share) / 1000)}K"


def test_a_copy_has_the_base_models_of_its_source(tmp_path: Path) -> None:
    source = checkpoint("llama", tmp_path / "source")
    (source / "README.md").write_text("---\nbase_model: meta-llama/Llama-3.2-1B\n---\n# A model\n")
    for name, recipe, base in (("copy", AS_IS, "Llama 3.2 1B"), ("longer", recipe_of("yarn", 4.0), "Source")):
        bake(source, recipe, tmp_path / f"{name}.gguf")
        assert GgufFile.open(tmp_path / f"{name}.gguf").get("general.base_model.0.name") == base
