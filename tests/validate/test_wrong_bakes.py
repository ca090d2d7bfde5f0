"""Bakes that are wrong on purpose, of weights of both widths: logits far beyond the trained length have to tell.

What is too small for the arithmetic of bfloat16 on a model without training is left to float32, and to the check of
frequencies before any forward pass, which sees all of it.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.torch
import torch

from ropeconv.errors import Disagreement
from ropeconv.rope.methods import REGISTRY
from ropeconv.rope.recipe import Recipe
from ropeconv.validate.checks.before_forward import check_before_forward
from ropeconv.validate.comparison import Comparison

from ..support.baking import apply, make_plan, validate
from ..support.models import make

FAMILIES = ("llama", "mistral", "qwen3", "olmo2", "stablelm", "phi")
YARN = Recipe(REGISTRY["yarn"](16.0))
CALM = {"initializer_range": 0.15}  # bfloat16 and a sharper softmax would leave nothing to compare


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str, str], Path]:
    made: dict[tuple[str, str], Path] = {}

    def get(model_type: str, dtype: str) -> Path:
        if (model_type, dtype) not in made:
            folder = make(model_type, tmp_path_factory.mktemp(model_type) / "source", **CALM)
            path = folder / "model.safetensors"
            tensors = {n: t.to(getattr(torch, dtype)) for n, t in safetensors.torch.load_file(path).items()}
            safetensors.torch.save_file(tensors, path, {"format": "pt"})
            made[model_type, dtype] = folder
        return made[model_type, dtype]

    return get


def bake(source: Path, out: Path, recipe: Recipe = YARN, **options: Any) -> Path:
    return apply(make_plan(source, recipe, out, **options))


def agrees(out: Path, source: Path, dtype: str) -> bool:
    return validate(out, source, tokens=128, dtype=dtype).agrees


def config_of_vector(out: Path, source: Path, vector: np.ndarray, folder: Path) -> None:
    """Gives `out` the config of other frequencies, with the attention factor that it has."""
    schedule = json.loads((out / "ropeconv.json").read_text())["schedule"]
    method = REGISTRY["inv-freq"](tuple(vector.tolist()))
    recipe = Recipe(method, schedule["context"], attention_factor=schedule["attention_factor"])
    other = bake(source, folder / f"other{vector[1]}", recipe)
    (out / "config.json").write_bytes((other / "config.json").read_bytes())


def each_rope(config: dict[str, Any], change: Callable[[dict[str, Any]], None]) -> None:
    for part in (config, config.get("rope_scaling"), config.get("rope_parameters")):
        if part:
            change(part)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("model_type", FAMILIES)
def test_attention_factor_and_ramp(
    model_type: str, dtype: str, source: Callable[[str, str], Path], tmp_path: Path
) -> None:
    stock = source(model_type, dtype)
    out = bake(stock, tmp_path / "out")
    assert agrees(out, stock, dtype)
    right = (out / "config.json").read_text()

    config = json.loads(right)
    each_rope(config, lambda part: part.update(attention_factor=1.0) if "attention_factor" in part else None)
    (out / "config.json").write_text(json.dumps(config))
    assert not agrees(out, stock, dtype), "the attention factor is lost"

    before = make_plan(stock, YARN).before
    plain, yarn = before.current().inv_freq, YARN.schedule(before).inv_freq
    config_of_vector(out, stock, plain + plain / 16 - yarn, tmp_path)
    assert not agrees(out, stock, dtype), "the ramp is the other way round"


@pytest.mark.parametrize("model_type", FAMILIES)
def test_one_per_cent(model_type: str, source: Callable[[str, str], Path], tmp_path: Path) -> None:
    stock = source(model_type, "float32")
    out = bake(stock, tmp_path / "out")
    vector = YARN.schedule(make_plan(stock, YARN).before).inv_freq
    for off, what in (
        (vector * 1.01 ** -(np.arange(len(vector)) / len(vector)), "theta is off by 1 %"),
        (np.where(np.arange(len(vector)) == 1, 1.01, 1.0) * vector, "one frequency is off by 1 %"),
    ):
        config_of_vector(out, stock, off, tmp_path)
        assert not agrees(out, stock, "float32"), what
        with pytest.raises(Disagreement):
            check_before_forward(Comparison.open(out, str(stock)))


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("model_type", FAMILIES)
def test_folds(model_type: str, dtype: str, source: Callable[[str, str], Path], tmp_path: Path) -> None:
    """Keys by A where A^2 was due; and with heads that rotate in part, every row where only the rotated ones were."""
    stock = source(model_type, dtype)
    out = bake(stock, tmp_path / "out", encoding="weights")
    assert agrees(out, stock, dtype)
    attention_factor = json.loads((out / "ropeconv.json").read_text())["schedule"]["attention_factor"]
    told = make_plan(stock, YARN, encoding="weights").result.fold
    path = out / "model.safetensors"
    right = safetensors.torch.load_file(path)

    def save(change: Callable[[Any, Any], None]) -> None:
        tensors = dict(right)
        for scaling in told.scalings:
            flat = tensors[scaling.tensor].flatten().float()
            change(flat, scaling)
            tensors[scaling.tensor] = flat.reshape(right[scaling.tensor].shape).to(right[scaling.tensor].dtype)
        safetensors.torch.save_file(tensors, path, {"format": "pt"})

    def halve(flat: Any, scaling: Any) -> None:
        for start, stop in scaling.spans:
            flat[start:stop] /= attention_factor

    def all_rows(flat: Any, scaling: Any) -> None:
        rest = torch.ones(len(flat), dtype=torch.bool)
        for start, stop in scaling.spans:
            rest[start:stop] = False
        flat[rest] *= attention_factor**2

    save(halve)
    assert not agrees(out, stock, dtype), "keys by A"
    if model_type in ("stablelm", "phi"):
        save(all_rows)
        assert not agrees(out, stock, dtype), "all rows"
        with pytest.raises(Disagreement):
            check_before_forward(Comparison.open(out, str(stock)))


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("model_type", ["llama", "mistral"])
def test_log_n(model_type: str, dtype: str, source: Callable[[str, str], Path], tmp_path: Path) -> None:
    """The logarithm to another base."""
    stock = source(model_type, dtype)
    recipe = Recipe(REGISTRY["yarn"](16.0), log_n="clamped")
    out = bake(stock, tmp_path / "out", recipe, encoding="ministral3", allow_approximate=True)
    assert agrees(out, stock, dtype)
    config = json.loads((out / "config.json").read_text())

    def other(part: dict[str, Any]) -> None:
        for name in ("llama_4_scaling_beta", "beta"):
            if name in part:
                part[name] *= 1.3

    each_rope(config, other)
    other(config["llama_4_scaling"])
    (out / "config.json").write_text(json.dumps(config))
    assert not agrees(out, stock, dtype)
