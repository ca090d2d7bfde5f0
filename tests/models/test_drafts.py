"""The generator of family files: what it reads in transformers is what the files of the package say."""

from __future__ import annotations

import json
import tomllib
from pathlib import Path

import msgspec
import pytest

from ropeconv.models.family import Family
from ropeconv.models.registry import by_model_type, families, packaged
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


@pytest.mark.parametrize("model_type", sample(["gemma3_text", "cohere2", "deepseek_v3", "falcon"], 1))
def test_a_draft_is_a_file_of_a_family(model_type: str) -> None:
    found = draft(model_type)
    read = msgspec.convert(tomllib.loads(render(found)), Family)
    assert disagreements(read, found) == []


def test_the_keys_of_all_families_are_written_down() -> None:
    """Otherwise run `scripts/families --keys`."""
    written = json.loads(config_keys.FILE.read_text())
    known = {family.name for family in packaged() if family.text_type in config_classes()}
    assert known - written.keys() == set()


@pytest.mark.parametrize("family", sample(packaged(), 10), ids=lambda family: family.name)
def test_and_they_are_those_of_the_config_class(family: Family) -> None:
    assert json.loads(config_keys.FILE.read_text()).get(family.name, []) == config_keys.keys_of(family)
