"""Every distinct RoPE setting of published configs that was found: read, written, extended, advised.

`data/published_ropes.json` has them, each with its source. The formulas here are written down again,
in plain numpy, so that nothing is compared with itself.
"""

import json
import math
import shlex
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ropeconv.bake.evidence import trained_scaling
from ropeconv.bake.plan import Plan
from ropeconv.errors import BadSource, UsageError
from ropeconv.inspection.inspection import ConfigInspection, inspect_source
from ropeconv.models.open import open_source
from ropeconv.rope.errors import RopeconvError
from ropeconv.rope.forms import DynamicNtk
from ropeconv.rope.recipe import Recipe
from ropeconv.rope.spec import RopeSpec
from ropeconv.runtimes.read_config import read_spec, rope_dict

from ..conftest import DATA
from ..support.baking import AS_IS, make_plan, recipe_of, write_config
from ..support.extent import sample
from ..support.in_process import command

ENTRIES = {
    entry["model"]: entry["config"]
    for entry in json.loads((DATA / "published_ropes.json").read_text())
}
# model types that no family knows, or that have no RoPE: no value of theirs is refused
UNKNOWN = {
    "EleutherAI/gpt-j-6b": "cannot",
    "HiggsAudioV2Config()": "audio",
    "LGAI-EXAONE/EXAONE-4.5 (beta)": "--family exaone4",
    "clip_vision_model": "tower",
    "deepseek": "custom code",
    "deepseek_vl2_tiny": "custom code",
    "ibm-granite/granite-4.0-h-350m": "does not use",
    "nomic-ai/nomic-embed-text-v1.5": "computes its defaults",
    "nomic-ai/nomic-embed-text-v2-moe": "computes its defaults",
    "gpt_j": "gptj",  # MLC's own rope_type
    "llava_v1.5_7b": "does not have",
    "moonshotai/Kimi-K3": "does not use",
    "nvidia/Llama-3_3-Nemotron-Super-49B-v1": "not supported",
    "nvidia/NVIDIA-Nemotron-3-Nano-30B-A3B-BF16": "does not use",
    "nvidia/NVIDIA-Nemotron-3-Super-120B-A12B-FP8": "does not use",
    "nvidia/NVIDIA-Nemotron-3.5-Lightning-30B-A3B-NVFP4": "does not use",
    "orion": "custom code",
    "phi-1_5": "custom code",
    "phi-3_5-vision": "custom code",
    "phi3_v": "custom code",
    "phi3small": "custom code",
    "qwen": "custom code",
    "qwen_7b": "custom code",
    "sgl-project/DeepSeek-V4-Flash-FP8": "not supported",
    "stepfun-ai/Step-3.7-Flash-FP8": "reads a text model from text_config",  # its source is flat
}


def inspection_of(model: str, folder: Path) -> ConfigInspection:
    path = folder / "config.json"
    path.write_text(json.dumps(ENTRIES[model]))
    inspection = inspect_source(open_source(str(path)))
    assert isinstance(inspection, ConfigInspection)
    return inspection


def specs() -> dict[str, RopeSpec]:
    """The RoPE of each entry that can be extended, read without a file."""
    from ropeconv.models.config import detect

    found = {}
    for model, config in ENTRIES.items():
        try:
            family = detect(config)
            if not family.refuse:
                found[model] = read_spec(config, family)
        except RopeconvError:
            assert model in UNKNOWN
    return found


SPECS = specs()
SCALED = [model for model, spec in SPECS.items() if spec.scaled]


def plan(model: str, folder: Path, recipe: Recipe, **options: Any) -> Plan:
    path = folder / "config.json"
    path.write_text(json.dumps(ENTRIES[model]))
    return make_plan(path, recipe, **options)


def test_the_list_is_one_of_distinct_settings_with_sources() -> None:
    entries = json.loads((DATA / "published_ropes.json").read_text())
    assert all(entry["source"] for entry in entries)
    assert len(ENTRIES) == len(entries) >= 140
    assert len({json.dumps(entry["config"], sort_keys=True) for entry in entries}) == len(entries)
    assert len(SCALED) >= 50
    assert {SPECS[model].form.kind for model in SCALED} >= {"yarn", "llama3", "linear", "longrope"}


@pytest.mark.parametrize("model", UNKNOWN)
def test_only_types_are_refused_and_no_values(model: str, tmp_path: Path) -> None:
    try:
        inspection = inspection_of(model, tmp_path)
    except BadSource as refusal:
        assert UNKNOWN[model] in str(refusal)  # noqa: PT017
    else:
        assert inspection.refuse


@pytest.mark.parametrize("model", SPECS)
def test_what_is_written_reads_back_alike(model: str, tmp_path: Path) -> None:
    """`--as-is` writes both schemas, and no key of the source is lost without a word."""
    before = inspection_of(model, tmp_path)
    if any(problem.code in ("schemas", "flat") for problem in before.problems):
        return  # runtimes read it in two ways, and one of them is written
    planned = plan(model, tmp_path, AS_IS, allow_untested=True)
    write_config(planned, tmp_path)
    after = inspect_source(open_source(str(tmp_path / "config.json")))
    assert isinstance(after, ConfigInspection)
    assert after.spec.form == before.spec.form
    assert after.spec.attention_factor == pytest.approx(before.spec.attention_factor, rel=1e-9)
    assert after.spec.softmax_scale == pytest.approx(before.spec.softmax_scale, rel=1e-9)
    assert (after.spec.context, after.spec.original_context) == (
        before.spec.context,
        before.spec.original_context,
    )
    assert (after.spec.local_form, after.spec.query_scaling, after.spec.mrope_section) == (
        before.spec.local_form,
        before.spec.query_scaling,
        before.spec.mrope_section,
    )

    family = before.model_family
    part = ENTRIES[model].get("text_config", ENTRIES[model])
    written = json.loads((tmp_path / "config.json").read_text())
    old, _ = rope_dict(part, family)
    place = written.get("text_config", written)
    new, _ = rope_dict(place, family)
    told = " ".join((*planned.warnings, *planned.notes))
    for key, value in old.items():
        if value is not None and key not in {"rope_type", "type", *new, *place}:
            without_effect = key == "partial_rotary_factor" or (key, value) == ("factor", 1)
            assert key in told or without_effect, key


# The formulas, once more


def yarn(spec: RopeSpec, factor: float) -> np.ndarray[Any, Any]:
    form: Any = spec.form
    size = spec.rotary_dim
    ends = [
        size * math.log(form.original_context / (2 * math.pi * beta)) / (2 * math.log(form.theta))
        for beta in (form.beta_fast, form.beta_slow)
    ]
    if form.truncate:
        ends = [math.floor(ends[0]), math.ceil(ends[1])]
    low, high = max(ends[0], 0), min(ends[1], size - 1)
    ramp = np.clip((np.arange(size // 2) - low) / ((high - low) or 0.001), 0, 1)
    base = form.theta ** (-np.arange(0, size, 2) / size)
    return np.asarray(base * (1 - ramp) + base / factor * ramp)


def llama3(spec: RopeSpec, factor: float) -> np.ndarray[Any, Any]:
    form: Any = spec.form
    base = form.theta ** (-np.arange(0, spec.rotary_dim, 2) / spec.rotary_dim)
    result = []
    for frequency in base:
        turns = form.original_context * frequency / (2 * math.pi)
        if turns >= form.high_freq_factor:
            keep = 1.0
        elif turns < form.low_freq_factor:
            keep = 0.0
        else:
            width = form.high_freq_factor - form.low_freq_factor
            keep = (turns - form.low_freq_factor) / width
        result.append(frequency * (keep + (1 - keep) / factor))
    return np.array(result)


def linear(spec: RopeSpec, factor: float) -> np.ndarray[Any, Any]:
    return np.asarray(
        spec.form.theta ** (-np.arange(0, spec.rotary_dim, 2) / spec.rotary_dim) / factor
    )


FORMULAS: dict[str, Callable[[RopeSpec, float], np.ndarray[Any, Any]]] = {
    "yarn": yarn,
    "llama3": llama3,
    "linear": linear,
}


def law(factor: float, slope: float = 0.1) -> float:
    return slope * math.log(factor) + 1 if factor > 1 else 1.0


def declared_whole(model: str) -> bool:
    return SPECS[model].covered_context <= SPECS[model].context


WIDENED = [
    model for model in SCALED if SPECS[model].form.kind in FORMULAS and declared_whole(model)
]


@pytest.mark.parametrize("model", WIDENED)
def test_twice_on_top_equals_the_formula(model: str, tmp_path: Path) -> None:
    spec = SPECS[model]
    form: Any = spec.form
    recipe = recipe_of(form.kind, 2.0, on_top=True)
    schedule = plan(model, tmp_path, recipe, allow_untested=True).schedule
    expected = FORMULAS[form.kind](spec, 2 * form.factor)
    np.testing.assert_allclose(schedule.inv_freq, expected, rtol=1e-12)
    assert schedule.context == 2 * spec.context

    # the attention factor grows by its law; not where the model can have no other one
    settings, _ = rope_dict(
        ENTRIES[model].get("text_config", ENTRIES[model]), inspected_family(model, tmp_path)
    )
    growth = 1.0
    if form.kind == "yarn" and not settings.get("mscale_all_dim"):
        growth = law(2 * form.factor) / law(form.factor)
    expected_factor = spec.attention_factor * growth
    if inspected_family(model, tmp_path).name in ("deepseek_v4", "deepseek_v41"):
        expected_factor = 1.0
    assert schedule.attention_factor == pytest.approx(expected_factor, rel=1e-9)
    if spec.softmax_scale != 1:
        slope = 0.1 * settings["mscale_all_dim"]
        assert schedule.softmax_scale == pytest.approx(law(2 * form.factor, slope) ** 2, rel=1e-9)

    # the negative control: the ramp of the defaults is another one wherever the model has its own
    if form.kind == "yarn" and (form.beta_fast, form.beta_slow) != (32.0, 1.0):
        from dataclasses import replace

        usual = yarn(replace(spec, form=replace(form, beta_fast=32.0, beta_slow=1.0)), 2)
        assert not np.allclose(schedule.inv_freq, usual, rtol=1e-3)


def inspected_family(model: str, folder: Path) -> Any:
    return inspection_of(model, folder).model_family


@pytest.mark.parametrize("model", WIDENED)
def test_replace_by_the_same_kind_keeps_the_settings_and_says_so(
    model: str, tmp_path: Path
) -> None:
    spec = SPECS[model]
    form: Any = spec.form
    factor = 2.0 * spec.context / spec.original_context
    recipe = recipe_of(form.kind, factor)
    planned = plan(model, tmp_path, recipe, replace=True, allow_untested=True)
    np.testing.assert_allclose(
        planned.schedule.inv_freq, FORMULAS[form.kind](spec, factor), rtol=1e-12
    )
    told = [note for note in planned.warnings if note.startswith("--replace")]
    if form.kind == "linear":  # its factor is all that it has
        assert not told
        return
    (sentence,) = told
    names = {"yarn": ("beta_fast", "beta_slow", "truncate")}.get(
        form.kind, ("low_freq_factor", "high_freq_factor")
    )
    kept, _, dropped = sentence.partition(" drops ")
    assert all(name in kept for name in names)
    if form.kind == "yarn" and abs(planned.schedule.attention_factor - 1) > 1e-9:
        has_own = abs(spec.attention_factor - law(form.factor)) > 1e-6
        assert ("--attention-factor" in dropped) == has_own


@pytest.mark.parametrize("model", sample(SCALED, 12))
def test_replace_by_another_kind_says_what_is_dropped(model: str, tmp_path: Path) -> None:
    spec = SPECS[model]
    recipe = recipe_of("theta", 2 * spec.rope_theta, context=2 * spec.context)
    planned = plan(model, tmp_path, recipe, replace=True, allow_untested=True)
    (sentence,) = [note for note in planned.warnings if note.startswith("--replace")]
    assert f"drops the {spec.form.kind}" in sentence
    assert "--on-top" in sentence


@pytest.mark.parametrize("model", sample(list(SPECS), 14))
def test_advise_ends_with_a_command_that_apply_accepts(model: str, tmp_path: Path) -> None:
    inspection = inspection_of(model, tmp_path)
    spec = inspection.spec
    path = tmp_path / "config.json"
    asked = command(tmp_path, "advise", path, "--context", 2 * spec.context)
    if asked.returncode:  # the message has the command that comes first, or says why none can
        assert "`" in asked.stderr
        line = asked.stderr.split("`")[1]
    else:
        (line,) = [row for row in asked.stdout.splitlines() if row.startswith("Bake:")]
        line = line.removeprefix("Bake:").strip()
        on_top = "--on-top" in line
        assert on_top == bool(trained_scaling(inspection))
    words = shlex.split(line)
    assert words[:2] == ["ropeconv", "apply"]
    done = command(tmp_path, *words[1:], "--dry-run")
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("model", SCALED)
def test_a_stored_scaling_counts_as_trained_unless_something_says_otherwise(
    model: str, tmp_path: Path
) -> None:
    inspection = inspection_of(model, tmp_path)
    trained = bool(trained_scaling(inspection))
    is_edit = "its README" in model or "with nulls" in model
    is_dynamic = isinstance(inspection.spec.form, DynamicNtk)
    assert trained == (not is_edit and not is_dynamic)


@pytest.mark.parametrize("model", sample(SCALED, 6))
def test_a_length_within_the_declared_one_is_refused(model: str, tmp_path: Path) -> None:
    from ropeconv.bake.advice import advise

    inspection = inspection_of(model, tmp_path)
    source = open_source(str(tmp_path / "config.json"))
    if not declared_whole(model):
        return
    with pytest.raises(UsageError, match="within the"):
        advise(source, inspection.spec.context)
