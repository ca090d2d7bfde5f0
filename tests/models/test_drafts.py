"""Model types of the installed transformers: all that rotate are known, and their drafts say what
our files say.
"""

import json
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

from ropeconv.engines.probe import Probe
from ropeconv.features.derivation.derivation import Derivation, DerivationProcess
from ropeconv.features.derivation.description import render
from ropeconv.models.family import Family
from ropeconv.models.registry import by_model_type, package_families, refused_types
from scripts.families import config_keys, null_keys
from scripts.families.compare import disagreements
from scripts.families.draft import ask, draft_of
from scripts.families.library import config_classes
from scripts.families.walk import ModelType, walk

from ..support.extent import sample

DATA = Path(__file__).parent.parent / "data" / "draft_differences.toml"
COMPARED: dict[str, Any] = tomllib.loads(DATA.read_text())
SAME: list[str] = COMPARED["same"]["model_types"]
DIFFERS: dict[str, str] = COMPARED["differs"]
NO_DEFAULTS: dict[str, str] = COMPARED["no_defaults"]


PATIENCE = 900
"""Seconds for one class: most answer in two, that of Ling 3.0 in five minutes on busy cores, and
one that hangs fails its own test only.
"""


class Classes:
    """The classes of the installed transformers, each of which is asked once."""

    def __init__(self, process: DerivationProcess) -> None:
        self.process = process
        self.answers: dict[str, Derivation] = {}

    def ask(self, model_type: str) -> Derivation:
        if model_type not in self.answers:
            self.answers[model_type] = ask(model_type, self.process)
        return self.answers[model_type]

    def draft(self, model_type: str) -> dict[str, Any]:
        return draft_of(model_type, self.ask(model_type))


@pytest.fixture(scope="module")
def classes() -> Iterator[Classes]:
    with DerivationProcess(PATIENCE) as started:
        yield Classes(started)


@pytest.mark.parametrize("model_type", sample(SAME, 2))
def test_the_draft_of_a_known_family_says_what_its_file_says(
    model_type: str, classes: Classes
) -> None:
    assert disagreements(by_model_type()[model_type], classes.draft(model_type)) == []


@pytest.mark.parametrize("model_type", sample(SAME, 2))
def test_a_derivation_measures_what_the_rotary_modules_hold(
    model_type: str, classes: Classes, tmp_path: Path
) -> None:
    """The derivation sees queries and keys only, and a probe only the modules for their angles."""
    answer = classes.ask(model_type)
    (tmp_path / "config.json").write_text(json.dumps({"model_type": model_type}))
    with Probe() as probe:
        modules = probe.ask(tmp_path, 4096)["modules"]
    measured = answer.measured["inv_freq"]
    assert measured.keys() <= modules.keys()
    for kind, inv_freq in measured.items():
        held = np.asarray(modules[kind]["short"])
        assert len(held) == len(inv_freq)
        assert np.allclose(inv_freq, held, rtol=2e-4, atol=1e-10), kind
    assert not np.allclose(measured["global"], 2 * np.asarray(measured["global"]), rtol=2e-4)


@pytest.mark.parametrize("model_type", sample(sorted(DIFFERS), 1))
def test_every_difference_with_a_reason_is_one(model_type: str, classes: Classes) -> None:
    assert disagreements(by_model_type()[model_type], classes.draft(model_type))


@pytest.mark.parametrize("model_type", sample(sorted(NO_DEFAULTS), 1))
def test_a_class_without_a_draft_says_why(model_type: str, classes: Classes) -> None:
    with pytest.raises(ValueError, match=model_type):
        classes.draft(model_type)


@pytest.mark.parametrize(
    "model_type", sample(["gemma3_text", "gpt_neox", "deepseek_v3", "qwen2"], 1)
)
def test_a_draft_is_a_file_of_a_family(model_type: str, classes: Classes) -> None:
    document = classes.draft(model_type)
    read = msgspec.convert(tomllib.loads(render(document)), Family)
    assert disagreements(read, document) == []


def test_the_keys_of_all_families_are_written_down() -> None:
    """Otherwise run `python -m scripts.families --keys`."""
    written = json.loads(config_keys.FILE.read_text())
    known = {family.name for family in package_families() if family.text_type in config_classes()}
    assert known - written.keys() == set()


@pytest.mark.parametrize("family", sample(package_families(), 10), ids=lambda family: family.name)
def test_and_they_are_those_of_the_config_class(family: Family) -> None:
    assert json.loads(config_keys.FILE.read_text()).get(family.name, []) == config_keys.keys_of(
        family
    )


@pytest.mark.parametrize("family", sample(package_families(), 5), ids=lambda family: family.name)
def test_what_null_means_is_that_of_the_class(family: Family) -> None:
    """Otherwise run `python -m scripts.families --keys`."""
    written = json.loads(null_keys.FILE.read_text())
    assert written.get(family.name, {}) == null_keys.meanings(family)


PENDING = Path(__file__).parent.parent / "data" / "pending_model_types.txt"
WITHOUT_ROPE = [
    name
    for name, reason in refused_types().items()
    if "does not use rotary position embeddings" in reason
]
NOT_OF_TRANSFORMERS = {"rwkv7"} | {
    name for name, reason in refused_types().items() if "custom code" in reason
}


@pytest.fixture(scope="module")
def model_types() -> dict[str, ModelType]:
    return {model.name: model for model in walk()}


def unknown(model_types: dict[str, ModelType]) -> set[str]:
    """Model types that rotate, and of which ropeconv says nothing."""
    return {
        model.name for model in model_types.values() if model.rotates and model.state == "unknown"
    }


def test_every_model_type_that_rotates_is_known_or_refused(
    model_types: dict[str, ModelType],
) -> None:
    assert unknown(model_types) == (set(PENDING.read_text().split()) if PENDING.exists() else set())


def test_models_of_text_that_do_not_rotate_are_refused_with_that_sentence(
    model_types: dict[str, ModelType],
) -> None:
    still = {model.name for model in model_types.values() if model.text and not model.rotates}
    assert still - set(WITHOUT_ROPE) == set()
    assert [
        name for name in still if not model_types[name].detail.endswith(refused_types()[name])
    ] == []


def test_no_model_that_rotates_is_refused_as_one_that_does_not(
    model_types: dict[str, ModelType],
) -> None:
    assert [
        name
        for name in refused_types()
        if name not in model_types and name not in NOT_OF_TRANSFORMERS
    ] == []
    for name in refused_types().keys() & model_types.keys():
        assert model_types[name].rotates == (name not in WITHOUT_ROPE), name
