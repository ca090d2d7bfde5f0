"""Logits: every family inside and far beyond its trained context, and what has to be noticed when it is wrong."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from ropeconv.errors import BadSource
from ropeconv.rope.methods import REGISTRY
from ropeconv.rope.recipe import Recipe
from ropeconv.validate.rule.measures import Figures
from ropeconv.validate.rule.validation import Validation, bucket_result, conclusion, with_rounded_weights
from ropeconv.validate.sampling.positions import doubling_buckets

from ..conftest import Run
from ..support.baking import apply, make_plan, validate
from ..support.extent import sample
from ..support.models import CANCELS, FAMILIES, TINY, make

YARN = Recipe(REGISTRY["yarn"](16.0))
MIXED = Recipe(REGISTRY["mixed"](16.0))
RECIPES = {"yarn": YARN, "mixed": MIXED}
INSTEAD = {"yarn": Recipe(REGISTRY["linear"](16.0)), "mixed": Recipe(REGISTRY["ntk-fixed"](16.0))}
"""Methods for classes that cannot carry the frequencies of another."""


def baked(source: Path, out: Path, recipe: Recipe = YARN, **more: object) -> Path:
    return apply(make_plan(source, recipe, out, **more))


def check(out: Path, source: Path) -> Validation:
    return validate(out, source, device="cpu", tokens=128)


@pytest.mark.parametrize(
    ("model_type", "name"), sample([(model_type, name) for model_type in FAMILIES for name in RECIPES], 50)
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


def test_deepseek_keeps_its_softmax_scale(tiny: Callable[[str], Path], tmp_path: Path) -> None:
    recipe = Recipe(REGISTRY["yarn"](16.0, mscale=1.0, mscale_all_dim=1.0))
    result = check(baked(tiny("deepseek_v3"), tmp_path / "out", recipe), tiny("deepseek_v3"))
    assert result.agrees, result.sentence


def test_longrope_changes_lists_at_the_trained_length(tiny: Callable[[str], Path], tmp_path: Path) -> None:
    recipe = Recipe(REGISTRY["longrope"](tuple([4.0] * 32), tuple([2.0] * 32)), context=1024)
    result = check(baked(tiny("llama"), tmp_path / "out", recipe), tiny("llama"))
    assert result.agrees, result.sentence


@pytest.mark.parametrize(
    ("old", "new"),
    [('"factor": 16.0', '"factor": 15.0'), ('"rope_theta": 10000.0', '"rope_theta": 10500.0'), ("1.277258", "1.3")],
)
def test_an_edited_config_disagrees(tiny: Callable[[str], Path], tmp_path: Path, old: str, new: str) -> None:
    out = baked(tiny("llama"), tmp_path / "out")
    text = (out / "config.json").read_text()
    assert old in text
    (out / "config.json").write_text(text.replace(old, new))
    result = check(out, tiny("llama"))
    assert not result.agrees
    assert result.sentence.startswith("Disagrees")


def test_other_weights_disagree(tiny: Callable[[str], Path], tmp_path: Path) -> None:
    from safetensors.torch import load_file, save_file

    out = baked(tiny("llama"), tmp_path / "out")
    tensors = load_file(out / "model.safetensors")
    tensors["model.layers.0.self_attn.q_proj.weight"] *= 1.01
    save_file(tensors, out / "model.safetensors", metadata={"format": "pt"})
    assert not check(out, tiny("llama")).agrees


def changed_weights(folder: Path, part: str, factor: float) -> Path:
    """The checkpoint in a folder with the weights whose names contain `part` multiplied by a factor."""
    from safetensors.torch import load_file, save_file

    path = folder / "model.safetensors"
    tensors = {name: tensor * factor if part in name else tensor for name, tensor in load_file(path).items()}
    save_file(tensors, path, metadata={"format": "pt"})
    return folder


def test_logits_that_cannot_tell_are_called_inconclusive(tmp_path: Path) -> None:
    """Where the outputs of attention are multiplied by 0, logits are the same whatever the positions."""
    deaf = changed_weights(make("llama", tmp_path / "deaf"), "o_proj", 0.0)
    result = check(baked(deaf, tmp_path / "out"), deaf)
    assert not result.agrees
    assert result.sentence.startswith("Inconclusive: ")


@pytest.mark.parametrize("family", ["llama", "cohere"])
def test_flat_models_are_distinguished(family: str, tmp_path: Path) -> None:
    """With weights near zero attention and logits are uniform: their differences are below any fixed KL."""
    flat = make(family, tmp_path / "flat", initializer_range=0.002)
    out = baked(flat, tmp_path / "out")
    right = check(out, flat)
    assert right.agrees, right.sentence
    assert right.temperature < 0.1
    assert "logits divided by their spread" in right.sentence
    text = (out / "config.json").read_text()
    (out / "config.json").write_text(text.replace('"factor": 16.0', '"factor": 15.0'))
    assert check(out, flat).sentence.startswith("Disagrees")


def test_sharp_models_are_distinguished_in_another_precision(tmp_path: Path) -> None:
    """One-hot attention in bfloat16 is noise; in float32, with smaller attention scores, it is none."""
    sharp = make("granite", tmp_path / "sharp", initializer_range=0.35)
    out = baked(sharp, tmp_path / "out", Recipe(REGISTRY["linear"](16.0)))

    def run() -> Validation:
        return validate(out, sharp, device="cpu", tokens=128, dtype="bfloat16")

    right = run()
    assert right.agrees, right.sentence
    assert right.dtype == "float32"
    assert "float32" in right.sentence
    text = (out / "config.json").read_text()
    (out / "config.json").write_text(text.replace('"factor": 16.0', '"factor": 15.9'))
    assert run().sentence.startswith("Disagrees")


def test_attention_scores_are_multiplied_on_both_sides_alike(tmp_path: Path) -> None:
    """A softmax scale times c is queries times c: checked against a model with such queries, and undone."""
    import torch

    from ropeconv.engines.transformers.attention_scores import attention_modules, scale_scores
    from ropeconv.engines.transformers.load import load_stock

    source = make("llama", tmp_path / "source")
    larger = shutil.copytree(source, tmp_path / "larger")
    changed_weights(larger, "q_proj", 0.25)
    ids = torch.arange(64)[None]
    with torch.no_grad():
        model, other = load_stock(source, "cpu"), load_stock(larger, "cpu")
        before = model(ids).logits
        undo = scale_scores(model, 0.25)
        torch.testing.assert_close(model(ids).logits, other(ids).logits, rtol=1e-4, atol=1e-4)
        undo()
        assert torch.equal(model(ids).logits, before)
    assert len(attention_modules(model)) == 2


def test_as_is_has_no_control(tiny: Callable[[str], Path], tmp_path: Path) -> None:
    result = check(baked(tiny("llama"), tmp_path / "out", Recipe(REGISTRY["as-is"]())), tiny("llama"))
    assert result.agrees
    assert "no control" in result.sentence


def test_another_source_is_noticed(tiny: Callable[[str], Path], tmp_path: Path) -> None:
    out = baked(tiny("llama"), tmp_path / "out")
    other = tmp_path / "other"
    shutil.copytree(tiny("llama"), other)
    text = (other / "config.json").read_text()
    (other / "config.json").write_text(text.replace("10000.0", "20000.0"))
    with pytest.raises(BadSource, match="is not what"):
        check(out, other)
    with pytest.raises(BadSource, match="is not an output of ropeconv"):
        check(other, other)


def test_the_command(run: Run, llama: Path, tmp_path: Path) -> None:
    assert run("apply", "model", "--yarn", "16", "-q").returncode == 0
    done = run("validate", "model-yarn16", "--against", "model", "--device", "cpu", "--tokens", "64", "--json", "-q")
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout)
    assert result["agrees"]
    receipt = json.loads((tmp_path / "model-yarn16" / "ropeconv.json").read_text())
    assert {"schema": 2, **receipt["validation"]} == result
    config = tmp_path / "model-yarn16" / "config.json"
    config.write_text(config.read_text().replace('"factor": 16.0', '"factor": 8.0'))
    edited = ("validate", "model-yarn16", "--against", "model", "--device", "cpu", "-q")
    refused = run(*edited)
    assert (refused.returncode, "is not the file that ropeconv wrote" in refused.stderr) == (1, True)
    disagrees = run(*edited, "--ignore-receipt")
    assert (disagrees.returncode, "rope_scaling.factor = 8.0, where 16.0 belongs" in disagrees.stderr) == (3, True)


def test_buckets_double_up_to_the_context() -> None:
    runs = doubling_buckets(64, 1000, 100)
    assert [run.name for run in runs] == ["0-63", "64-127", "128-255", "256-511", "512-999"]
    assert [len(run.positions) for run in runs] == [64, 100, 100, 100, 100]
    assert runs[-1].positions[0] == 0
    assert runs[-1].positions[-1] == 999
    assert all(position >= 512 for position in runs[-1].positions[runs[-1].counted])


def test_quantised_weights_are_compared_by_their_mean() -> None:
    """A few positions may be far off; that is not for the rule of floats to call inconclusive."""
    figures = Figures(
        kl_mean=0.01, kl_95=0.2, kl_max=1.0, max_dlogit=1.0, top1=1.0, top5=1.0, loss_reference=None, loss_other=None
    )
    inside, beyond = doubling_buckets(64, 128, 32)
    results = [with_rounded_weights(bucket_result(bucket, figures, control_kl=1.0)) for bucket in (inside, beyond)]
    assert conclusion(results, unchanged=False) == (True, "Agrees everywhere, and the unscaled source does not.")
    worse = [with_rounded_weights(bucket_result(bucket, figures, control_kl=0.09)) for bucket in (inside, beyond)]
    assert conclusion(worse, unchanged=False)[1].startswith("Disagrees: KL 1.00e-02 at ")
