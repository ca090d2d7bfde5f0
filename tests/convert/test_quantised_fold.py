"""--encoding weights on quantised checkpoints: the scales of the rows that rotate are multiplied, so
that the weights they stand for are those of a fold. Where rows have no scales of their own, it is
refused.
"""

from pathlib import Path

import numpy as np
import pytest
import safetensors.torch
import torch

import ropeconv
from ropeconv.convert.encoding import CheckpointResult
from ropeconv.errors import UnsupportedBake
from ropeconv.models.source import Source
from ropeconv.models.stored.checkpoint import dequantised

from ..models.test_fp8 import FORMS as FP8
from ..models.test_fp8 import write_both as write_fp8
from ..support.baking import apply, make_plan, recipe_of, validate
from ..support.quantised import CASES, SIZES, write_both

WITHOUT = {
    "NVFP4 of compressed-tensors",
    "NVFP4 of ModelOpt",
    "MXFP4 of compressed-tensors",
    "NF4, nested",
    "BitNet",
}
"""Forms whose rows have no scales in floats of their own."""
HALF = 2.0**-10
"""More than rounding a number to float16 changes it, relatively; 2^-8 for bfloat16."""


def weights(folder: Path) -> dict[str, np.ndarray]:
    """The weights that a checkpoint stands for, in float32."""
    source = ropeconv.open_source(str(folder))
    assert isinstance(source, Source)
    source = dequantised(source)
    [file] = source.generated_files()
    assert file.stream is not None
    made = folder.parent / f"{folder.name}.made"
    made.write_bytes(b"".join(map(bytes, file.stream())))
    return {
        name: tensor.float().numpy() for name, tensor in safetensors.torch.load_file(made).items()
    }


def check_fold(stored: Path, out: Path, rounding: float) -> None:
    """Fold, and compare the weights that the output stands for with those of the source."""
    plan = make_plan(stored, recipe_of("yarn", 4.0), out, encoding="weights")
    assert isinstance(plan.result, CheckpointResult)
    assert plan.result.fold is not None
    apply(plan)
    squared = (0.1 * np.log(4) + 1) ** 2  # YaRN's factor for both sides
    before = weights(stored)
    after = weights(out)
    assert before.keys() == after.keys()
    for name in before:
        factor = squared if name.endswith("k_proj.weight") else 1.0
        np.testing.assert_allclose(after[name], before[name] * factor, rounding, err_msg=name)
    changed = [name for name in before if not np.array_equal(before[name], after[name])]
    assert changed
    assert all(name.endswith("k_proj.weight") for name in changed)


@pytest.mark.parametrize("case", sorted(set(CASES) - WITHOUT))
def test_the_scales_of_keys_are_multiplied(case: str, tmp_path: Path) -> None:
    _, pack, settings = CASES[case]
    stored, _ = write_both("llama", pack, settings, tmp_path, shards=False, **SIZES)
    check_fold(stored, tmp_path / "out", 2.0**-7 if case == "INT8" else HALF)


@pytest.mark.parametrize("form", ["rows", "rows in bfloat16"])
def test_the_scales_of_rows_in_fp8_are_multiplied(form: str, tmp_path: Path) -> None:
    stored, _ = write_fp8("llama", form, tmp_path, **SIZES)
    check_fold(stored, tmp_path / "out", 2.0**-7)


def test_blocks_are_multiplied_where_no_other_rows_have_them(tmp_path: Path) -> None:
    sizes = {**SIZES, "hidden_size": 256, "num_attention_heads": 2, "head_dim": 128}
    stored, _ = write_fp8("llama", "blocks", tmp_path, **sizes, num_key_value_heads=1)
    check_fold(stored, tmp_path / "out", 2.0**-20)
    result = validate(tmp_path / "out", stored, tokens=128)  # transformers reads these scales
    assert result.agrees, result.sentence


@pytest.mark.parametrize("case", sorted(WITHOUT))
def test_rows_without_scales_of_their_own_are_refused(case: str, tmp_path: Path) -> None:
    _, pack, settings = CASES[case]
    stored, _ = write_both("llama", pack, settings, tmp_path, shards=False, **SIZES)
    with pytest.raises(UnsupportedBake, match=r"--encoding native.*ropeconv apply BASE"):
        make_plan(stored, recipe_of("yarn", 4.0), tmp_path / "out", encoding="weights")


def test_one_scale_for_a_whole_matrix_is_refused(tmp_path: Path) -> None:
    assert "whole" in FP8
    stored, _ = write_fp8("llama", "whole", tmp_path, **SIZES)
    with pytest.raises(UnsupportedBake, match="no scales of their own"):
        make_plan(stored, recipe_of("yarn", 4.0), tmp_path / "out", encoding="weights")


def test_norms_are_multiplied_where_a_model_has_them(tmp_path: Path) -> None:
    _, pack, settings = CASES["NVFP4 of ModelOpt"]
    sizes = {**SIZES, "head_dim": 64}
    stored, _ = write_both("qwen3", pack, settings, tmp_path, shards=False, **sizes)
    plan = make_plan(stored, recipe_of("yarn", 4.0), tmp_path / "out", encoding="weights")
    assert isinstance(plan.result, CheckpointResult)
    assert plan.result.fold is not None
    assert all(name.endswith("k_norm.weight") for name in plan.result.fold.tensors)
    apply(plan)
    before = safetensors.torch.load_file(stored / "model.safetensors")
    after = safetensors.torch.load_file(tmp_path / "out" / "model.safetensors")
    changed = {
        name for name in before if not torch.equal(before[name].view(-1), after[name].view(-1))
    }
    assert changed == set(plan.result.fold.tensors)
