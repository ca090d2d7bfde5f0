"""Logits: every family inside and far beyond its trained context, and what has to be noticed when
it is wrong.
"""

import json
import math
from collections.abc import Callable
from dataclasses import replace
from itertools import product
from pathlib import Path

import numpy as np
import pytest
import safetensors.torch
import torch

import ropeconv
from ropeconv.errors import BadSource
from ropeconv.rope.forms import Plain
from ropeconv.rope.recipe import Recipe
from ropeconv.rope.schedule import QueryScaling
from ropeconv.validate.validation import Validation, measure_states

from ..faults.wrong_bakes import CASES, Wrong, bake, local, rope
from ..support.baking import (
    YARN_16,
    apply,
    changed_weights,
    make_plan,
    recipe_of,
    replaced,
    stored_as,
    validate,
)
from ..support.embedding_gemma import embedding_gemma
from ..support.extent import sample
from ..support.in_process import command
from ..support.models import CANCELS, ENCODERS, FAMILIES, TINY, make

RECIPES = {"yarn": YARN_16, "mixed": recipe_of("mixed", 16.0)}
INSTEAD = {"yarn": recipe_of("linear", 16.0), "mixed": recipe_of("ntk-fixed", 16.0)}
"""Methods for classes that cannot carry the frequencies of another."""
SHORT = recipe_of("yarn", 4.0)


def baked(source: Path, out: Path, recipe: Recipe = YARN_16) -> Path:
    return apply(make_plan(source, recipe, out))


def check(out: Path, source: Path, **settings: object) -> Validation:
    return validate(out, source, device="cpu", tokens=128, **settings)


@pytest.mark.parametrize(("model_type", "name"), sample(list(product(FAMILIES, RECIPES)), 8))
def test_the_stock_load_computes_the_method(
    model_type: str, name: str, tiny: Callable[[str], Path], tmp_path: Path
) -> None:
    recipe = RECIPES[name]
    chosen = replace(recipe, attention_factor=1.0) if model_type in CANCELS else recipe
    if recipe.method.name in TINY[model_type].refused:
        chosen = INSTEAD[recipe.method.name]
    result = check(baked(tiny(model_type), tmp_path / "out", chosen), tiny(model_type))
    assert result.agrees, result.sentence
    assert [bucket.last for bucket in result.buckets][:4] == [63, 127, 255, 511]
    assert all(bucket.control_kl > 1000 * bucket.kl_95 for bucket in result.buckets)


def test_an_output_with_another_rope_than_its_source_is_noticed(
    llama: Path, tmp_path: Path
) -> None:
    """With --as-is, the reference has the RoPE that was read, so a wrong reading agrees with it."""
    out = apply(make_plan(llama, recipe_of("as-is"), tmp_path / "out"))
    comparison = ropeconv.Comparison.open(out, str(llama))
    assert check(out, llama).agrees

    path = out / "config.json"
    config = json.loads(path.read_text())
    config["rope_theta"] = config["rope_parameters"]["rope_theta"] = 12_000.0
    path.write_text(json.dumps(config))
    spec = replace(comparison.spec, form=Plain(12_000.0))
    misread = replace(comparison, spec=spec, schedule=spec.current())
    result = ropeconv.validate_checkpoint(misread, ropeconv.Settings(device="cpu", tokens=128))
    assert all(bucket.agrees for bucket in result.buckets)
    assert (result.agrees, result.sentence[:4]) == (False, "FAIL")
    assert "source" in result.sentence


IN_BFLOAT16 = (
    "no attention factor",
    "betas swapped",
    "one frequency off by 1 %",
    "keys by A, not A^2",
    "fold over all rows",
    "log-n to another base",
)
"""Faults that are larger than the rounding of bfloat16; `tests/faults` has all of them in
float32.
"""


@pytest.mark.parametrize(
    ("wrong", "model_type"),
    sample([case for case in CASES if case[0].what in IN_BFLOAT16], 2),
    ids=lambda part: getattr(part, "what", part),
)
def test_a_wrong_bake_disagrees_and_a_right_one_agrees_in_bfloat16(
    wrong: Wrong, model_type: str, tmp_path: Path
) -> None:
    """Of usual weights: bfloat16 and a sharper softmax would leave nothing to compare."""
    source = make(model_type, tmp_path / "source", initializer_range=0.15)
    stored_as(source, "bfloat16")
    out = bake(source, tmp_path / "out", wrong.method)
    assert check(out, source, dtype="bfloat16").agrees
    wrong.change(out)
    assert not check(out, source, dtype="bfloat16").agrees


def test_logits_that_cannot_tell_are_called_inconclusive(llama: Path, tmp_path: Path) -> None:
    """Where the outputs of attention are multiplied by 0, logits are the same whatever the
    positions.
    """
    deaf = changed_weights(llama, "o_proj", 0.0)
    result = check(baked(deaf, tmp_path / "out"), deaf)
    assert not result.agrees
    assert result.sentence.startswith("INCONCLUSIVE: ")


def test_flat_models_are_distinguished(tmp_path: Path) -> None:
    """With weights near zero attention and logits are uniform: their differences are below any
    fixed KL.
    """
    flat = make("llama", tmp_path / "flat", initializer_range=0.002)
    out = baked(flat, tmp_path / "out")
    right = check(out, flat)
    assert right.agrees, right.sentence
    assert right.temperature < 0.1
    assert "their spread" in right.sentence
    replaced(out / "config.json", '"factor": 16.0', '"factor": 15.0')
    assert check(out, flat).sentence.startswith("FAIL")


def test_sharp_models_are_distinguished_in_another_precision(tmp_path: Path) -> None:
    """One-hot attention in bfloat16 is noise; in float32, with smaller attention scores, it is
    none.
    """
    sharp = make("granite", tmp_path / "sharp", initializer_range=0.35)
    out = baked(sharp, tmp_path / "out", recipe_of("linear", 16.0))
    right = check(out, sharp, dtype="bfloat16")
    assert right.agrees, right.sentence
    assert right.dtype == "float32"
    assert "float32" in right.sentence
    replaced(out / "config.json", '"factor": 16.0', '"factor": 15.9')
    assert check(out, sharp, dtype="bfloat16").sentence.startswith("FAIL")


def test_as_is_has_no_control(llama: Path, tmp_path: Path) -> None:
    result = check(baked(llama, tmp_path / "out", recipe_of("as-is")), llama)
    assert result.agrees
    assert "no control" in result.sentence


def test_the_command_records_its_result_and_refuses_an_edited_output(
    llama: Path, tmp_path: Path
) -> None:
    out = baked(llama, tmp_path / "out")
    given = ("validate", "out", "--against", "model", "--device", "cpu", "-q")
    result = json.loads(command(tmp_path, *given, "--tokens", 64, "--json", code=0).stdout)
    assert result["agrees"]
    receipt = json.loads((out / "ropeconv.json").read_text())
    assert {"schema": 2, **receipt["validation"]} == result
    replaced(out / "config.json", '"factor": 16.0', '"factor": 8.0')
    assert "not the file" in command(tmp_path, *given, code=1).stderr
    disagrees = command(tmp_path, *given, "--ignore-receipt", code=3)
    assert "rope_scaling.factor = 8.0, where 16.0 belongs" in disagrees.stderr


def test_a_choice_of_indexers_is_left_out_of_the_comparison(
    tiny: Callable[[str], Path], tmp_path: Path
) -> None:
    """Rounding can change which keys an indexer of sparse attention chooses."""
    source = tiny("deepseek_v32")
    out = baked(source, tmp_path / "out")
    result = check(out, source)
    assert result.agrees, result.sentence
    assert "all keys" in result.sentence
    replaced(out / "config.json", '"rope_theta": 10000.0', '"rope_theta": 10500.0')
    assert check(out, source).sentence.startswith("FAIL")


def test_what_stands_for_log_n_is_what_is_compared(llama: Path, tmp_path: Path) -> None:
    recipe = recipe_of("yarn", 4.0, log_n="clamped")
    plan = make_plan(llama, recipe, tmp_path / "out", encoding="ministral3", allow_approximate=True)
    scale = ropeconv.Comparison.open(apply(plan), str(llama)).scale
    assert scale == QueryScaling(1 / np.log(64), 64)


def test_another_source_is_refused(llama: Path, tmp_path: Path) -> None:
    out = apply(make_plan(llama, SHORT, tmp_path / "out"))
    other = make("llama", tmp_path / "other", rope_theta=20000.0)
    with pytest.raises(BadSource, match=r"another schedule"):
        ropeconv.Comparison.open(out, str(other))
    with pytest.raises(BadSource, match="not an output"):
        ropeconv.Comparison.open(other, str(other))


def test_an_output_that_replaces_stored_frequencies_is_compared_with_the_first_source(
    llama: Path, tmp_path: Path
) -> None:
    stored = apply(make_plan(llama, SHORT, tmp_path / "stored", encoding="buffers"))
    replaced = apply(
        make_plan(stored, recipe_of("linear", 4.0), tmp_path / "replaced", replace=True)
    )
    with pytest.raises(BadSource, match="--replace .* .model.; .*--against"):
        ropeconv.Comparison.open(replaced, str(stored))
    assert ropeconv.Comparison.open(replaced, str(llama)).schedule.context == 256


# Encoders: their hidden states tell a right output from wrong ones, and the commands say what they
# are

WRONG = {
    "base": rope(rope_theta=lambda old: old * 1.05),
    "attention factor": rope(attention_factor=1.25),
    "no method": rope(rope_type="default"),
    "local layers too": local(rope_type="linear", factor=16.0),
}
OF_ENCODERS = [(name, wrong) for name in sorted(ENCODERS) for wrong in list(WRONG)[:3]]


@pytest.mark.parametrize(
    ("model_type", "wrong"), [*sample(OF_ENCODERS, 1), ("modernbert", "local layers too")]
)
def test_a_wrong_output_disagrees(
    model_type: str, wrong: str, tiny: Callable[[str], Path], tmp_path: Path
) -> None:
    out = apply(make_plan(tiny(model_type), YARN_16, tmp_path / "out"))
    WRONG[wrong](out)
    assert check(out, tiny(model_type)).sentence.startswith("FAIL: relative error ")


@pytest.mark.parametrize(("encoding", "dtype"), [("native", "float32"), ("weights", "bfloat16")])
def test_a_right_output_agrees_in_every_precision(
    encoding: str, dtype: str, tmp_path: Path
) -> None:
    source = make("modernbert", tmp_path / "source", initializer_range=0.15)
    stored_as(source, dtype)
    result = check(
        apply(make_plan(source, YARN_16, tmp_path / "out", encoding=encoding)), source, dtype=dtype
    )
    assert result.agrees, result.sentence


@pytest.mark.parametrize("prefix", ["", "model."])
def test_a_decoder_that_reads_in_both_directions_is_an_encoder(prefix: str, tmp_path: Path) -> None:
    source = embedding_gemma(tmp_path / "source")
    weights = source / "model.safetensors"
    tensors = safetensors.torch.load_file(weights)
    renamed = {prefix + name: tensor for name, tensor in tensors.items()}
    safetensors.torch.save_file(renamed, weights, {"format": "pt"})
    out = apply(make_plan(source, YARN_16, tmp_path / "out"))
    right = check(out, source)
    assert right.agrees, right.sentence
    assert right.rule.startswith("hidden states")

    WRONG["attention factor"](out)
    assert check(out, source).sentence.startswith("FAIL: relative error ")


def test_relative_error_and_cosine_by_hand() -> None:
    """(3, 4) against itself turned by a right angle, made twice as long, and moved by 0.05
    across.
    """
    reference = torch.tensor([[3.0, 4.0]] * 3)
    other = torch.tensor([[-4.0, 3.0], [6.0, 8.0], [3.04, 3.97]])
    result = measure_states(reference, other)
    assert (2 * result.kl).sqrt().tolist() == pytest.approx([math.sqrt(2.0), 1.0, 0.01], rel=1e-4)
    assert result.cosine.tolist() == pytest.approx([0.0, 1.0, 1 / math.sqrt(1 + 1e-4)], abs=1e-8)
    assert result.max_dlogit.tolist() == pytest.approx([7.0, 4.0, 0.04], rel=1e-4)


def test_what_the_commands_say(tiny: Callable[[str], Path], tmp_path: Path) -> None:
    source = tiny("modernbert")
    apply(make_plan(source, YARN_16, tmp_path / "out"))
    given = ("validate", "out", "--against", source)
    done = command(tmp_path, *given, "--report", "page.html", code=0)
    assert "relative error" in done.stdout
    assert "cosine" in done.stdout
    assert "Similarity" in (tmp_path / "page.html").read_text()
    data = json.loads(command(tmp_path, *given, "--json", code=0).stdout)
    first = data["buckets"][0]
    assert 0.999 < first["cosine"] <= 1.0000001
    assert data["rule"].startswith("hidden states")
