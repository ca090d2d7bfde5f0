"""The line of `apply` on what was measured of a method."""

import json
from pathlib import Path
from typing import Any

import pytest

from ropeconv.bake.evidence import EvidenceTable, evidence
from ropeconv.bake.quality import quality, shown_study

from ..conftest import CONFIGS
from ..support.baking import AS_IS, make_plan, recipe_of
from ..support.embedding_gemma import embedding_gemma
from ..support.llamacpp import checkpoint

LLAMA = CONFIGS / "meta-llama--Llama-2-7b-hf.json"


@pytest.mark.parametrize(("factor", "nearest"), [(2.0, 2), (4.0, 4), (5.0, 8), (7.0, 8)])
def test_the_numbers_are_those_of_the_study_that_advise_shows(
    factor: float, nearest: float
) -> None:
    plan = make_plan(LLAMA, recipe_of("yarn", factor))
    study = shown_study(plan)
    assert study is not None
    assert (study.short_model, study.factor) == ("SmolLM2-135M", nearest)
    difference = study.beyond["yarn"] - study.beyond["base"]
    assert difference < 0  # YaRN helps beyond the trained length
    assert f"{difference:+.2f}" in quality(plan)


def test_a_method_that_was_not_measured_names_the_command_that_measures_it() -> None:
    answer = quality(make_plan(LLAMA, recipe_of("piecewise", "4@40")))
    assert answer.startswith("not measured")
    # a config alone has no weights to run
    assert "ropeconv eval" not in answer


def test_a_factor_beyond_all_studies_is_named_as_not_measured() -> None:
    answer = quality(make_plan(LLAMA, recipe_of("yarn", 200.0)))
    assert "at 8 times; not measured at 200 times" in answer
    assert "not measured" not in quality(make_plan(LLAMA, recipe_of("yarn", 8.0)))


def test_a_model_that_hardly_needs_a_method_judges_none(monkeypatch: pytest.MonkeyPatch) -> None:
    plan = make_plan(LLAMA, recipe_of("llama3", 2.0))
    assert shown_study(plan) is not None
    weak = [study for study in evidence().studies if study.hardly_loses_without_method]
    assert any("llama3" in study.lost for study in weak), "there are numbers"
    monkeypatch.setattr("ropeconv.bake.evidence.evidence", lambda: EvidenceTable(tuple(weak), ()))
    assert shown_study(plan) is None


def test_a_factor_of_1_has_no_quality_beyond_the_trained_length() -> None:
    assert quality(make_plan(LLAMA, recipe_of("yarn", 1.0))) == ""
    assert quality(make_plan(LLAMA, recipe_of("yarn", 1.5))) != ""


def test_the_unchanged_model_has_no_quality_of_a_method() -> None:
    assert quality(make_plan(LLAMA, AS_IS)) == ""


def test_a_method_that_changes_no_frequency_has_no_numbers_of_other_models(
    tmp_path: Path,
) -> None:
    """YaRN gives a tiny Gemma 4 with the lengths of 26B an attention factor, and no more."""
    source = checkpoint("gemma4_text", tmp_path / "source")
    file = source / "config.json"
    config = json.loads(file.read_text())
    full = config["rope_parameters"]["full_attention"]
    full |= {"rope_theta": 1e6, "rope_type": "proportional", "partial_rotary_factor": 0.25}
    file.write_text(json.dumps(config | {"max_position_embeddings": 262144}))

    plan = make_plan(source, recipe_of("yarn", 4.0))
    assert plan.schedule.keeps_frequencies(plan.before.current())
    assert plan.schedule.attention_factor > 1.1
    assert shown_study(plan) is None
    assert "nats" not in quality(plan)
    assert quality(plan).startswith("not measured; ropeconv eval ")
    assert "SmolLM2" not in plan.fine_tuning.reason
    assert plan.fine_tuning.level == "undecided"
    assert any("changes no frequency" in warning for warning in plan.warnings)

    # the control: NTK changes them
    changed = make_plan(source, recipe_of("ntk", 4.0))
    assert shown_study(changed) is not None
    assert not any("changes no frequency" in warning for warning in changed.warnings)


@pytest.mark.parametrize("options", [{}, {"to": "gguf"}])
def test_an_encoder_has_no_loss_of_the_next_token(options: dict[str, Any], tmp_path: Path) -> None:
    yarn = recipe_of("yarn", 4.0)
    encoder = make_plan(embedding_gemma(tmp_path / "encoder"), yarn, **options)
    assert shown_study(encoder) is None
    assert quality(encoder) == ""
    # the same family where tokens attend to earlier ones only
    decoder = make_plan(checkpoint("gemma3_text", tmp_path / "decoder"), yarn, **options)
    assert shown_study(decoder) is not None
    assert "nats" in quality(decoder)


def test_a_model_that_was_made_as_an_encoder_has_none_either(tmp_path: Path) -> None:
    source = checkpoint("modernbert", tmp_path / "source")
    assert quality(make_plan(source, recipe_of("yarn", 4.0))) == ""
