"""Logits: every family inside and far beyond its trained context, and what has to be noticed when it is wrong."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from ropeconv.errors import Disagreement
from ropeconv.rope.methods import REGISTRY
from ropeconv.rope.recipe import Recipe
from ropeconv.validate.checks.before_forward import check_before_forward
from ropeconv.validate.comparison import Comparison
from ropeconv.validate.rule.measures import Figures
from ropeconv.validate.rule.validation import Validation, bucket_result, conclusion, with_rounded_weights
from ropeconv.validate.sampling.positions import doubling_buckets

from ..faults.wrong_bakes import CASES, Wrong, bake
from ..support.baking import apply, changed_weights, make_plan, replaced, stored_as, validate
from ..support.extent import sample
from ..support.families import some
from ..support.in_process import command
from ..support.models import CANCELS, TINY, make

YARN = Recipe(REGISTRY["yarn"](16.0))
RECIPES = {"yarn": YARN, "mixed": Recipe(REGISTRY["mixed"](16.0))}
INSTEAD = {"yarn": Recipe(REGISTRY["linear"](16.0)), "mixed": Recipe(REGISTRY["ntk-fixed"](16.0))}
"""Methods for classes that cannot carry the frequencies of another."""


def baked(source: Path, out: Path, recipe: Recipe = YARN) -> Path:
    return apply(make_plan(source, recipe, out))


def check(out: Path, source: Path, **settings: object) -> Validation:
    return validate(out, source, device="cpu", tokens=128, **settings)


@pytest.mark.parametrize(
    ("model_type", "name"),
    [
        (model_type, name)
        for seed, model_type in enumerate(sample(some(), 16))
        for name in sample(list(RECIPES), 1, seed)
    ],
)
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


IN_BFLOAT16 = (
    "no attention factor", "betas swapped", "one frequency off by 1 %", "keys by A, not A^2", "fold over all rows",
    "log-n to another base",
)  # fmt: skip
"""Faults that are larger than the rounding of bfloat16; `tests/faults` has all of them in float32."""


@pytest.mark.parametrize(
    ("wrong", "model_type"),
    sample([case for case in CASES if case[0].what in IN_BFLOAT16], 3),
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


def test_frequencies_and_folds_are_checked_before_anything_runs(llama: Path, tmp_path: Path) -> None:
    for encoding, edit in (
        ("native", lambda out: replaced(out / "config.json", '"rope_theta": 10000.0', '"rope_theta": 10001.0')),
        ("weights", lambda out: changed_weights(out, "k_proj", 1.1)),
    ):
        out = apply(make_plan(llama, YARN, tmp_path / encoding, encoding=encoding))
        check_before_forward(Comparison.open(out, str(llama)))
        edit(out)
        with pytest.raises(Disagreement):
            check_before_forward(Comparison.open(out, str(llama)))


def test_logits_that_cannot_tell_are_called_inconclusive(llama: Path, tmp_path: Path) -> None:
    """Where the outputs of attention are multiplied by 0, logits are the same whatever the positions."""
    deaf = changed_weights(llama, "o_proj", 0.0)
    result = check(baked(deaf, tmp_path / "out"), deaf)
    assert not result.agrees
    assert result.sentence.startswith("Inconclusive: ")


def test_flat_models_are_distinguished(tmp_path: Path) -> None:
    """With weights near zero attention and logits are uniform: their differences are below any fixed KL."""
    flat = make("llama", tmp_path / "flat", initializer_range=0.002)
    out = baked(flat, tmp_path / "out")
    right = check(out, flat)
    assert right.agrees, right.sentence
    assert right.temperature < 0.1
    assert "logits divided by their spread" in right.sentence
    replaced(out / "config.json", '"factor": 16.0', '"factor": 15.0')
    assert check(out, flat).sentence.startswith("Disagrees")


def test_sharp_models_are_distinguished_in_another_precision(tmp_path: Path) -> None:
    """One-hot attention in bfloat16 is noise; in float32, with smaller attention scores, it is none."""
    sharp = make("granite", tmp_path / "sharp", initializer_range=0.35)
    out = baked(sharp, tmp_path / "out", Recipe(REGISTRY["linear"](16.0)))
    right = check(out, sharp, dtype="bfloat16")
    assert right.agrees, right.sentence
    assert right.dtype == "float32"
    assert "float32" in right.sentence
    replaced(out / "config.json", '"factor": 16.0', '"factor": 15.9')
    assert check(out, sharp, dtype="bfloat16").sentence.startswith("Disagrees")


def test_as_is_has_no_control(llama: Path, tmp_path: Path) -> None:
    result = check(baked(llama, tmp_path / "out", Recipe(REGISTRY["as-is"]())), llama)
    assert result.agrees
    assert "no control" in result.sentence


def test_the_command_records_its_result_and_refuses_an_edited_output(llama: Path, tmp_path: Path) -> None:
    out = baked(llama, tmp_path / "out")
    given = ("validate", "out", "--against", "model", "--device", "cpu", "-q")
    result = json.loads(command(tmp_path, *given, "--tokens", 64, "--json", code=0).stdout)
    assert result["agrees"]
    receipt = json.loads((out / "ropeconv.json").read_text())
    assert {"schema": 2, **receipt["validation"]} == result
    replaced(out / "config.json", '"factor": 16.0', '"factor": 8.0')
    assert "is not the file that ropeconv wrote" in command(tmp_path, *given, code=1).stderr
    disagrees = command(tmp_path, *given, "--ignore-receipt", code=3)
    assert "rope_scaling.factor = 8.0, where 16.0 belongs" in disagrees.stderr


def test_quantised_weights_are_compared_by_their_mean() -> None:
    """A few positions may be far off; that is not for the rule of floats to call inconclusive."""
    figures = Figures(
        kl_mean=0.01, kl_95=0.2, kl_max=1.0, max_dlogit=1.0, top1=1.0, top5=1.0, loss_reference=None, loss_other=None
    )

    def told(control: float) -> tuple[bool, str]:
        buckets = [bucket_result(bucket, figures, control_kl=control) for bucket in doubling_buckets(64, 128, 32)]
        return conclusion([with_rounded_weights(bucket) for bucket in buckets], unchanged=False)

    assert told(control=1.0) == (True, "Agrees everywhere, and the unscaled source does not.")
    assert told(control=0.09)[1].startswith("Disagrees: KL 1.00e-02 at ")


def test_a_choice_of_indexers_is_left_out_of_the_comparison(tiny: Callable[[str], Path], tmp_path: Path) -> None:
    """Rounding can change which keys an indexer of sparse attention chooses."""
    source = tiny("deepseek_v32")
    out = baked(source, tmp_path / "out")
    result = check(out, source)
    assert result.agrees, result.sentence
    assert "attention to all keys" in result.sentence
    replaced(out / "config.json", '"rope_theta": 10000.0', '"rope_theta": 10500.0')
    assert check(out, source).sentence.startswith("Disagrees")
