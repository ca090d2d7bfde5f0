"""Log-n as mistral3 in the real llama.cpp, against transformers with its queries scaled at run time."""

from __future__ import annotations

from itertools import product
from pathlib import Path

import pytest
import torch

from ropeconv.engines.transformers.load import load_stock
from ropeconv.engines.transformers.patch import patch, scale_queries
from ropeconv.formats.gguf.edit import Edit, write_new
from ropeconv.formats.gguf.file import GgufFile
from ropeconv.formats.gguf.header import f32
from ropeconv.rope.recipe import Recipe
from ropeconv.rope.schedule import LogN, QueryScaling
from ropeconv.validate.comparison import Comparison, Settings
from ropeconv.validate.gguf import validate_gguf

from ...support.baking import recipe_of
from ...support.extent import sample
from ...support.llamacpp import LENGTH, bake, beyond, checkpoint, of_llamacpp, sequence

STEPS = {"carrier": "mistral3", "allow_approximate": True}
KINDS = ("clamped", "full")


def recipe(kind: str, method: str = "mixed", **modifiers: float) -> Recipe:
    return recipe_of(method, 4.0, log_n=kind, **modifiers)


def reference(source: Path, plan, scale: LogN | QueryScaling | None) -> torch.Tensor:
    model = load_stock(source, "cpu")
    patch(model, plan.schedule, plan.before)
    if scale is not None:
        scale_queries(model, scale, "self_attn.q_proj")
    with torch.no_grad():
        return model(input_ids=torch.tensor([sequence()]), use_cache=False).logits[0].float()


@pytest.mark.parametrize(
    ("model_type", "method", "kind"), sample(list(product(("llama", "mistral", "qwen2"), ("yarn", "mixed"), KINDS)), 2)
)
def test_logits(tmp_path: Path, model_type: str, method: str, kind: str) -> None:
    """The steps (clamped) and the formula itself (full), where the same without any scale is far away."""
    source, out = checkpoint(model_type, tmp_path / "source"), tmp_path / "model.gguf"
    plan = bake(source, recipe(kind, method, attention_factor=1.2), out, **STEPS)
    own, *others = (verdict.status for verdict in plan.result.verdicts)
    assert own == ("approximate" if kind == "clamped" else "exact")
    assert not {"exact", "approximate"} & set(others)
    scale = plan.result.log_n_approximation if kind == "clamped" else plan.schedule.log_n
    wanted, stock = reference(source, plan, scale), of_llamacpp(out)
    unscaled = beyond(wanted, reference(source, plan, None))
    for figures, control in zip(beyond(wanted, stock), unscaled, strict=True):
        assert figures.kl_mean < 1e-5
        assert control.kl_mean > 1000 * figures.kl_mean


@pytest.mark.parametrize("patched", [False, True], ids=["from a checkpoint", "from GGUF"])
def test_other_steps_are_noticed(tmp_path: Path, patched: bool) -> None:
    source, out, wrong = checkpoint("llama", tmp_path / "source"), tmp_path / "out.gguf", tmp_path / "wrong.gguf"
    if patched:  # which is compared with its dequantised source
        bake(source, recipe_of("as-is"), tmp_path / "plain.gguf")
        source = tmp_path / "plain.gguf"
    bake(source, recipe("full", "linear") if patched else recipe("clamped"), out, **STEPS)
    write_new(GgufFile.open(out), 0, Edit({"mistral3.attention.temperature_scale": f32(0.1)}), wrong)
    for file, agrees in ((out, True), (wrong, False)):
        assert validate_gguf(Comparison.open(file, str(source)), Settings(tokens=LENGTH)).agrees == agrees
