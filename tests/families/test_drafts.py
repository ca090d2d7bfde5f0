"""The generator of family files: what it reads in transformers is what the files of the package say."""

from __future__ import annotations

import tomllib
from typing import Any

import msgspec
import pytest

from ropeconv.families import by_model_type, families
from ropeconv.families.family import Family
from scripts.family_drafts.compare import disagreements
from scripts.family_drafts.draft import draft
from scripts.family_drafts.library import config_classes
from scripts.family_drafts.render import render

from ..extent import sample

KNOWN = sorted(name for family in families() for name in family.model_types if name in config_classes())


@pytest.mark.parametrize("model_type", sample(KNOWN, 20))
def test_the_draft_of_a_known_family_says_what_its_file_says(model_type: str) -> None:
    assert disagreements(by_model_type()[model_type], draft(model_type)) == []


@pytest.mark.parametrize("model_type", ["gemma3_text", "cohere2", "deepseek_v3", "falcon"])
def test_a_draft_is_a_file_of_a_family(model_type: str) -> None:
    found = draft(model_type)
    read = msgspec.convert(tomllib.loads(render(found)), Family)
    assert disagreements(read, found) == []


WRONG: list[tuple[str, dict[str, Any]]] = [
    ("llama", {"layout": "interleaved"}),
    ("cohere", {"layout": "half"}),
    ("deepseek_v3", {"mla": False}),
    ("gemma3_text", {"defaults": {"theta": 10000.0}}),
    ("cohere2", {"layers": {"types": {"full_attention": "global", "sliding_attention": "global"}}}),
    ("gemma2", {"layers": {"interval": 3}}),
    ("smollm3", {"layers": {"flags": ""}}),
    ("qwen2", {"window": {"first_key": ""}}),
    ("stablelm", {"defaults": {"partial_rotary_factor": 1.0}}),
    ("qwen3", {"weights": {"q_norm": ""}}),
    ("olmo2", {"weights": {"norm": "rms"}}),
    ("gemma", {"weights": {"input": "rms"}}),
    ("phi3", {"weights": {"fused": "self_attn.query_key_value"}}),
]


@pytest.mark.parametrize(("model_type", "change"), WRONG)
def test_a_file_that_says_something_else_is_noticed(model_type: str, change: dict[str, Any]) -> None:
    data = msgspec.to_builtins(by_model_type()[model_type])
    for key, value in change.items():
        data[key] = {**data[key], **value} if isinstance(value, dict) else value
    assert disagreements(msgspec.convert(data, Family), draft(model_type))


def test_a_model_type_that_transformers_lacks_is_said_so() -> None:
    with pytest.raises(ValueError, match="has no model type baichuan"):
        draft("baichuan")
