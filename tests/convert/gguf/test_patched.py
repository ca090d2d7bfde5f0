"""Patched GGUF files against the original, given the same at loading: the same bits, whatever the quantisation."""

from __future__ import annotations

import math
from itertools import product
from pathlib import Path
from typing import Any

import pytest
import torch

from ropeconv.formats.gguf.file import GgufFile
from ropeconv.rope.recipe import Recipe

from ...support.baking import AS_IS, apply, make_plan, recipe_of
from ...support.extent import sample
from ...support.gguf_files import contents
from ...support.llamacpp import bake, checkpoint, figures, of_llamacpp
from ...support.models import TRAINED


@pytest.fixture(scope="module")
def originals(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("originals")
    for model_type, outtypes in (("llama", ("f32", "f16", "q8_0")), ("qwen2", ("f32", "q8_0")), ("gemma2", ("f16",))):
        source = checkpoint(model_type, folder / model_type)
        for outtype in outtypes:
            bake(source, AS_IS, folder / f"{model_type}-{outtype}.gguf", outtype=outtype)
    return folder


KIND, FACTOR, ORIGINAL = "rope.scaling.type", "rope.scaling.factor", "rope.scaling.original_context_length"
YARN = {KIND: ("str", "yarn"), FACTOR: ("float", 4.0), ORIGINAL: ("int", TRAINED)}
CASES: dict[str, tuple[Recipe, dict[str, tuple[str, Any]]]] = {
    "theta": (recipe_of("theta", 1e6, context=256), {"rope.freq_base": ("float", 1e6)}),
    "linear": (recipe_of("linear", 4.0), {KIND: ("str", "linear"), FACTOR: ("float", 4.0)}),
    "yarn": (recipe_of("yarn", 4.0), YARN),
    "yarn, attention factor 1": (
        recipe_of("yarn", 4.0, attention_factor=1.0),
        {**YARN, "rope.scaling.attn_factor": ("float", 1 / (1 + 0.1 * math.log(4)))},
    ),
}
FILES = ("llama-f32", "llama-f16", "llama-q8_0", "qwen2-q8_0", "gemma2-f16")


@pytest.mark.parametrize(("file", "name"), sample(list(product(FILES, CASES)), 3))
def test_a_patched_file_gives_the_bits_of_the_original_with_overrides(
    originals: Path, tmp_path: Path, file: str, name: str
) -> None:
    recipe, told = CASES[name]
    original, out, arch = originals / f"{file}.gguf", tmp_path / "out.gguf", file.split("-")[0]
    plan = bake(original, recipe, out)
    assert plan.result.encoding == "keys"
    assert contents(out) == contents(original)
    patched, unscaled = of_llamacpp(out), of_llamacpp(original)
    reference = of_llamacpp(original, overrides={f"{arch}.{key}": value for key, value in told.items()})
    assert torch.equal(patched, reference)
    assert not torch.equal(patched, unscaled)


def test_a_scaled_file_becomes_its_carrier_without_a_trace_of_the_old_scaling(originals: Path, tmp_path: Path) -> None:
    scaled, again, fresh = (tmp_path / f"{name}.gguf" for name in ("scaled", "again", "fresh"))
    bake(originals / "qwen2-f32.gguf", recipe_of("yarn", 2.0, attention_factor=1.5), scaled)
    bake(scaled, recipe_of("mixed", 4.0), again, replace=True)
    bake(originals / "qwen2-f32.gguf", recipe_of("mixed", 4.0), fresh)
    assert torch.equal(of_llamacpp(again), of_llamacpp(fresh))
    header = GgufFile.open(again).header
    left = {key: header.get(key) for key in header.values if ".rope.scaling." in key}
    assert left == {"llama.rope.scaling.type": "none", "llama.rope.scaling.original_context_length": TRAINED}


@pytest.mark.parametrize("outtype", sample(["q8_0", "q4_k_m", "iq4_xs", "q2_k"], 1))
def test_a_quantised_file_is_patched_by_keys_and_as_another_architecture(tmp_path: Path, outtype: str) -> None:
    """Whole rows move, so only the order of summation changes; unpermuted they would be another model."""
    wide = {"hidden_size": 256, "intermediate_size": 256, "num_attention_heads": 4}
    original, recipe = tmp_path / "model.gguf", recipe_of("yarn", 4.0)
    bake(checkpoint("qwen2", tmp_path / "source", **wide), AS_IS, original, outtype=outtype)
    bake(original, recipe, tmp_path / "keys.gguf")
    bake(original, recipe, tmp_path / "carried.gguf", carrier="llama")
    by_keys, unscaled = of_llamacpp(tmp_path / "keys.gguf"), of_llamacpp(original)
    assert figures(by_keys, of_llamacpp(tmp_path / "carried.gguf")).kl_mean < 0.01
    assert figures(by_keys, unscaled).kl_mean > 1
    apply(make_plan(original, recipe, in_place=True))
    assert torch.equal(of_llamacpp(original), by_keys)
