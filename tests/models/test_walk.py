"""Every model type of the installed transformers that rotates is known, or refused for a reason."""

from __future__ import annotations

from pathlib import Path

import pytest

from ropeconv.models.registry import refused
from scripts.family_drafts.walk import ModelType, walk

PENDING = Path(__file__).parent.parent / "data" / "pending_model_types.txt"
WITHOUT_ROPE = [name for name, reason in refused().items() if "does not use rotary position embeddings" in reason]
NOT_OF_TRANSFORMERS = {"rwkv7"} | {name for name, reason in refused().items() if "custom code" in reason}


@pytest.fixture(scope="module")
def found() -> dict[str, ModelType]:
    return {one.name: one for one in walk()}


def unknown(found: dict[str, ModelType]) -> set[str]:
    """Model types that rotate, and of which ropeconv says nothing."""
    return {one.name for one in found.values() if one.rotates and one.state == "unknown"}


def test_every_model_type_that_rotates_is_known_or_refused(found: dict[str, ModelType]) -> None:
    assert unknown(found) == (set(PENDING.read_text().split()) if PENDING.exists() else set())


def test_models_of_text_that_do_not_rotate_are_refused_with_that_sentence(found: dict[str, ModelType]) -> None:
    still = {one.name for one in found.values() if one.text and not one.rotates}
    assert still - set(WITHOUT_ROPE) == set()
    assert [name for name in still if not found[name].detail.endswith(refused()[name])] == []


def test_no_model_that_rotates_is_refused_as_one_that_does_not(found: dict[str, ModelType]) -> None:
    assert [name for name in refused() if name not in found and name not in NOT_OF_TRANSFORMERS] == []
    for name in refused().keys() & found.keys():
        assert found[name].rotates == (name not in WITHOUT_ROPE), name
