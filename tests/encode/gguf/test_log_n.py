"""Log-n as mistral3 in the real llama.cpp, against transformers with its queries scaled at run time."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from ropeconv.engines.transformers.load import load_stock
from ropeconv.engines.transformers.patch import patch, scale_queries
from ropeconv.errors import UnsupportedBake, UsageError
from ropeconv.formats.gguf import Edit, GgufFile, f32
from ropeconv.formats.gguf.write import write_new
from ropeconv.rope.log_n import LogN, QueryScaling
from ropeconv.rope.methods import REGISTRY as METHODS
from ropeconv.rope.recipe import Recipe
from ropeconv.sources import open_source
from ropeconv.validate.comparison import Comparison
from ropeconv.validate.gguf import validate_gguf
from ropeconv.validate.rule.validation import Validation
from ropeconv.validate.settings import Settings

from ...conftest import Run
from ...support.baking import make_plan
from ...support.llamacpp import LENGTH, bake, beyond, checkpoint, of_llamacpp, sequence
from ...support.models import TRAINED
from .conftest import source_in

STEPS = {"carrier": "mistral3", "allow_approximate": True}


def recipe(kind: str, method: str = "mixed", **modifiers: float) -> Recipe:
    return Recipe(METHODS[method](4.0), log_n=kind, **modifiers)


def reference(source: Path, plan, scale: LogN | QueryScaling | None) -> torch.Tensor:
    model = load_stock(source, "cpu")
    patch(model, plan.schedule, plan.before)
    if scale is not None:
        scale_queries(model, scale, "self_attn.q_proj")
    with torch.no_grad():
        return model(input_ids=torch.tensor([sequence()]), use_cache=False).logits[0].float()


@pytest.mark.parametrize("kind", ["clamped", "full"])
@pytest.mark.parametrize("method", ["yarn", "mixed"])
@pytest.mark.parametrize("model_type", ["llama", "mistral", "qwen2"])
def test_logits(sources: Path, tmp_path: Path, model_type: str, method: str, kind: str) -> None:
    """The steps (clamped) and the formula itself (full), where the same without any scale is far away."""
    source, out = source_in(sources, model_type), tmp_path / "model.gguf"
    plan = bake(source, recipe(kind, method, attention_factor=1.2), out, **STEPS)
    own, *others = (verdict.status for verdict in plan.result.verdicts)
    assert own == ("approximate" if kind == "clamped" else "exact")
    assert not {"exact", "approximate"} & set(others)
    scale = plan.result.log_n_approximation if kind == "clamped" else plan.schedule.log_n
    assert scale is not None
    wanted, stock = reference(source, plan, scale), of_llamacpp(out)
    unscaled = beyond(wanted, reference(source, plan, None))
    for figures, control in zip(beyond(wanted, stock), unscaled, strict=True):
        assert figures.kl_mean < 1e-5
        assert control.kl_mean > 1000 * figures.kl_mean


def test_the_full_form_is_within_a_millionth_of_the_formula(sources: Path, tmp_path: Path) -> None:
    plan = make_plan(
        open_source(str(source_in(sources, "llama"))),
        recipe("full"),
        tmp_path / "out.gguf",
        to="gguf",
        carrier="mistral3",
    )
    assert plan.result.deviation == pytest.approx(2.0**-20)


@pytest.mark.parametrize("kind", ["clamped", "full"])
@pytest.mark.parametrize("model_type", ["llama", "qwen2"])
def test_a_quantised_file_is_patched(tmp_path: Path, model_type: str, kind: str) -> None:
    """Log-n adds no error to that of quantisation, and clamped steps change no bit within the trained length."""
    source, plain = checkpoint(model_type, tmp_path / "calm", initializer_range=0.08), tmp_path / "plain.gguf"
    with_it, without = tmp_path / "with.gguf", tmp_path / "without.gguf"
    bake(source, Recipe(METHODS["as-is"]()), plain, outtype="q8_0")
    plan = bake(plain, recipe(kind), with_it, **STEPS)
    bake(plain, Recipe(METHODS["mixed"](4.0)), without, carrier="mistral3")
    scaled, unscaled = of_llamacpp(with_it), of_llamacpp(without)
    far = beyond(reference(source, plan, plan.result.log_n_approximation), unscaled)
    near = beyond(reference(source, plan, plan.result.log_n_approximation), scaled)
    noise = beyond(reference(source, plan, None), unscaled)
    for ours, rounding, control in zip(near, noise, far, strict=True):
        assert ours.kl_mean < 2 * rounding.kl_mean
        assert control.kl_mean > 10 * ours.kl_mean
    assert torch.equal(scaled[: TRAINED - 1], unscaled[: TRAINED - 1]) == (kind == "clamped")


def compared(out: Path, source: Path) -> Validation:
    """The validation of a GGUF file over every position."""
    return validate_gguf(Comparison.open(out, str(source)), Settings(tokens=LENGTH))


def test_other_steps_are_noticed(sources: Path, tmp_path: Path) -> None:
    source, out, wrong = source_in(sources, "llama"), tmp_path / "out.gguf", tmp_path / "wrong.gguf"
    bake(source, recipe("clamped"), out, **STEPS)
    write_new(GgufFile.open(out), 0, Edit({"mistral3.attention.temperature_scale": f32(0.1)}), wrong)
    assert compared(out, source).agrees
    assert not compared(wrong, source).agrees


def test_a_patched_file_is_compared_with_its_dequantised_source(sources: Path, tmp_path: Path) -> None:
    plain, out, wrong = tmp_path / "plain.gguf", tmp_path / "out.gguf", tmp_path / "wrong.gguf"
    bake(source_in(sources, "llama"), Recipe(METHODS["as-is"]()), plain)
    bake(plain, recipe("full", "linear"), out, **STEPS)
    write_new(GgufFile.open(out), 0, Edit({"mistral3.attention.temperature_scale": f32(0.1)}), wrong)
    assert compared(out, plain).agrees
    assert not compared(wrong, plain).agrees


def test_refusals(sources: Path, tmp_path: Path) -> None:
    def plan(model_type: str, kind: str, **options: object) -> None:
        source = open_source(str(source_in(sources, model_type)))
        make_plan(source, recipe(kind), tmp_path / "out.gguf", to="gguf", **options)

    with pytest.raises(UnsupportedBake, match="take --carrier mistral3"):
        plan("llama", "full")
    with pytest.raises(UnsupportedBake, match="--allow-approximate"):
        plan("llama", "clamped", carrier="mistral3")
    with pytest.raises(UnsupportedBake, match="no such carrier"):
        plan("qwen3", "full", carrier="mistral3")
    with pytest.raises(UnsupportedBake, match="scales queries by position already"):
        plan("ministral3", "full")
    with pytest.raises(UsageError, match="--encoding keys"):
        plan("llama", "full", encoding="keys")
    plan("llama", "full", carrier="mistral3")


def test_on_the_command_line(run: Run, sources: Path, tmp_path: Path) -> None:
    source = source_in(sources, "qwen2")
    options = ("--yarn", "4", "--log-n", "full", "--to", "gguf", "--outtype", "f32", "--carrier", "mistral3")
    done = run("apply", source, *options, "-o", "out.gguf")
    assert done.returncode == 0, done.stderr
    assert "log-n is within 1e-06 of the formula" in done.stderr
    checked = run("validate", "out.gguf", "--against", source)
    assert checked.returncode == 0, checked.stdout + checked.stderr
