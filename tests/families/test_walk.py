"""Every model type of the installed transformers that rotates is known, or refused for a reason."""

from __future__ import annotations

from pathlib import Path

import pytest

from ropeconv.families import config as reader
from ropeconv.families.refused import refused
from scripts.family_drafts.model_facts import build
from scripts.family_drafts.rotates import rotary_code
from scripts.family_drafts.walk import ModelType, default_config, model_type, walk

from ..support.extent import sample

PENDING = Path(__file__).parent.parent / "data" / "pending_model_types.txt"
WITHOUT_ROPE = [name for name, reason in refused().items() if "no rotary position embedding" in reason]
NOT_OF_TRANSFORMERS = {"rwkv7"}


@pytest.fixture(scope="module")
def found() -> dict[str, ModelType]:
    return {one.name: one for one in walk()}


def unknown(found: dict[str, ModelType]) -> set[str]:
    """Model types that rotate, and of which ropeconv says nothing."""
    return {one.name for one in found.values() if one.rotates and one.state == "unknown"}


def test_every_model_type_that_rotates_is_known_or_refused(found: dict[str, ModelType]) -> None:
    assert unknown(found) == (set(PENDING.read_text().split()) if PENDING.exists() else set())


def test_a_family_that_is_taken_away_is_missed(monkeypatch: pytest.MonkeyPatch) -> None:
    others = {name: family for name, family in reader.by_model_type().items() if name != "olmo2"}
    monkeypatch.setattr(reader, "by_model_type", lambda: others)
    assert unknown({name: model_type(name) for name in ("llama", "olmo2", "gpt2")}) == {"olmo2"}


def test_models_of_text_that_do_not_rotate_are_refused_with_that_sentence(found: dict[str, ModelType]) -> None:
    still = {one.name for one in found.values() if one.text and not one.rotates}
    assert still - set(WITHOUT_ROPE) == set()
    assert [name for name in still if not found[name].detail.endswith(refused()[name])] == []


def test_no_model_that_rotates_is_refused_as_one_that_does_not(found: dict[str, ModelType]) -> None:
    assert [name for name in refused() if name not in found and name not in NOT_OF_TRANSFORMERS] == []
    for name in refused().keys() & found.keys():
        assert found[name].rotates == (name not in WITHOUT_ROPE), name


def test_no_model_type_is_refused_and_known() -> None:
    assert refused().keys() & reader.by_model_type().keys() == set()


@pytest.mark.parametrize("name", sample(sorted(set(WITHOUT_ROPE) & {"bert", "gpt2", "jamba", "opt", "t5", "xlm"}), 1))
def test_a_model_that_does_not_rotate_has_no_rotary_module(name: str) -> None:
    """The second way: the class is built, and not read."""
    assert rotary_modules(name) == []


@pytest.mark.parametrize("name", sample(["cohere2", "deepseek_v3", "falcon", "gptj", "llama", "qwen3_5_text"], 2))
def test_a_model_that_rotates_has_one_or_makes_a_table_in_its_attention(name: str) -> None:
    assert rotary_modules(name) or name == "gptj"
    assert rotary_code(name)


def rotary_modules(name: str) -> list[str]:
    """The rotary modules of a model of few layers on the meta device."""
    model = build(default_config(name))
    return [type(module).__name__ for module in model.modules() if "Rotary" in type(module).__name__]
