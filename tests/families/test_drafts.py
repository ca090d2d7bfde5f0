"""The generator of family files: what it reads in transformers is what the files of the package say."""

from __future__ import annotations

import json
import tomllib
from pathlib import Path
from typing import Any

import msgspec
import pytest

from ropeconv.families import by_model_type, families
from ropeconv.families.family import Family
from ropeconv.families.registry import packaged
from scripts.family_drafts import config_keys
from scripts.family_drafts.compare import disagreements
from scripts.family_drafts.draft import draft
from scripts.family_drafts.library import config_classes
from scripts.family_drafts.render import render

from ..support.extent import sample

KNOWN = sorted(name for family in families() for name in family.model_types if name in config_classes())


DATA = Path(__file__).parent.parent / "data" / "draft_differences.toml"
EXCEPTIONS: dict[str, dict[str, str]] = tomllib.loads(DATA.read_text())
DIFFERS, NO_DEFAULTS = EXCEPTIONS["differs"], EXCEPTIONS["no_defaults"]
ALIKE = [name for name in KNOWN if name not in {*DIFFERS, *NO_DEFAULTS}]


@pytest.mark.parametrize("model_type", sample(ALIKE, 10))
def test_the_draft_of_a_known_family_says_what_its_file_says(model_type: str) -> None:
    assert disagreements(by_model_type()[model_type], draft(model_type)) == []


@pytest.mark.parametrize("model_type", sample(sorted(DIFFERS), 1))
def test_every_difference_with_a_reason_is_one(model_type: str) -> None:
    assert disagreements(by_model_type()[model_type], draft(model_type))


@pytest.mark.parametrize("model_type", sample(sorted(NO_DEFAULTS), 1))
def test_a_class_that_has_no_defaults_is_said_so(model_type: str) -> None:
    with pytest.raises(ValueError, match="cannot be made from its defaults"):
        draft(model_type)


@pytest.mark.parametrize("model_type", sample(["gemma3_text", "cohere2", "deepseek_v3", "falcon"], 1))
def test_a_draft_is_a_file_of_a_family(model_type: str) -> None:
    found = draft(model_type)
    read = msgspec.convert(tomllib.loads(render(found)), Family)
    assert disagreements(read, found) == []


WRONG: list[tuple[str, dict[str, Any]]] = [
    ("llama", {"layout": "interleaved"}),
    ("deepseek_v3", {"mla": False}),
    ("gemma3_text", {"defaults": {"theta": 10000.0}}),
    ("cohere2", {"layers": {"types": {"full_attention": "global", "sliding_attention": "global"}}}),
    ("gemma2", {"layers": {"interval": 3}}),
    ("smollm3", {"layers": {"flags": ""}}),
    ("lfm2", {"weights": {"input": "layer-norm"}}),
    ("qwen2", {"window": {"first_key": ""}}),
    ("stablelm", {"defaults": {"partial_rotary_factor": 1.0}}),
    ("qwen3", {"weights": {"q_norm": ""}}),
    ("phi3", {"weights": {"fused": "self_attn.query_key_value"}}),
]


@pytest.mark.parametrize(("model_type", "change"), sample(WRONG, 4))
def test_a_file_that_says_something_else_is_noticed(model_type: str, change: dict[str, Any]) -> None:
    data = msgspec.to_builtins(by_model_type()[model_type])
    for key, value in change.items():
        data[key] = {**data[key], **value} if isinstance(value, dict) else value
    assert disagreements(msgspec.convert(data, Family), draft(model_type))


def test_the_keys_of_all_families_are_written_down() -> None:
    """Otherwise run `scripts/families --keys`."""
    written = json.loads(config_keys.FILE.read_text())
    assert [family.name for family in packaged() if keys_missing(family, written)] == []


@pytest.mark.parametrize("family", sample(packaged(), 10), ids=lambda family: family.name)
def test_and_they_are_those_of_the_config_class(family: Family) -> None:
    assert json.loads(config_keys.FILE.read_text()).get(family.name, []) == config_keys.keys_of(family)


def keys_missing(family: Family, written: dict[str, list[str]]) -> bool:
    return family.text_type in config_classes() and family.name not in written
