"""Checkpoints with weights of eight bits: they become the GGUF file that their float32 weights give,
which torch computes here.
"""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.torch
import torch

import ropeconv
from ropeconv.bake.gguf import ExportPlan
from ropeconv.errors import BadSource
from ropeconv.formats.gguf.file import GgufFile
from ropeconv.models.source import Source
from ropeconv.models.stored.checkpoint import DequantisedCheckpoint, dequantised
from ropeconv.models.stored.numbers import EIGHT_BITS, POWERS

from ..support import quantised
from ..support.baking import apply, make_plan, recipe_of, validate
from ..support.extent import sample
from ..support.gguf_files import contents
from ..support.llamacpp import bake, checkpoint
from ..support.quantised import SIZES, Tensors

LARGEST = 448.0
"""The largest number of F8_E4M3."""
Quantise = Callable[[torch.Tensor], tuple[torch.Tensor, torch.Tensor, torch.Tensor]]
"""Returns the stored numbers, the scales, and the product of both in float32."""


def scaled(weight: torch.Tensor, scale: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """The numbers of a weight for a scale of each of them, and the product."""
    stored = (weight / scale).clamp(-LARGEST, LARGEST).to(torch.float8_e4m3fn)
    return stored, stored.float() * scale


def by_blocks(weight: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """As DeepSeek V3: blocks of 128 x 128, of which the last ones are smaller."""
    rows, columns = weight.shape
    padded = torch.zeros(-(-rows // 128) * 128, -(-columns // 128) * 128)
    padded[:rows, :columns] = weight.abs()
    blocks = padded.unflatten(0, (-1, 128)).unflatten(2, (-1, 128))
    scales = blocks.amax((1, 3)).clamp_min(1e-6) / LARGEST
    each = scales.repeat_interleave(128, 0).repeat_interleave(128, 1)[:rows, :columns]
    stored, product = scaled(weight, each)
    return stored, scales, product


def by_rows(weight: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """As compressed-tensors with a scale for each channel."""
    scales = weight.abs().amax(1, keepdim=True) / LARGEST
    stored, product = scaled(weight, scales)
    return stored, scales, product


def as_a_whole(weight: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """As Ministral 3: one scale, without dimensions."""
    scale = weight.abs().max() / LARGEST
    stored, product = scaled(weight, scale)
    return stored, scale, product


def in_bfloat16(weight: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Scales of each row in bfloat16."""
    scales = (weight.abs().amax(1, keepdim=True) / LARGEST).bfloat16()
    stored, product = scaled(weight, scales.float())
    return stored, scales, product


FORMS: dict[str, tuple[Quantise, str, dict[str, Any]]] = {
    "blocks": (
        by_blocks,
        "_scale_inv",
        {"quant_method": "fp8", "weight_block_size": [128, 128], "activation_scheme": "dynamic"},
    ),
    "rows": (by_rows, "_scale", {"quant_method": "compressed-tensors", "config_groups": {}}),
    "rows in bfloat16": (in_bfloat16, "_scale", {"quant_method": "compressed-tensors"}),
    "whole": (as_a_whole, "_scale_inv", {"quant_method": "fp8", "weight_block_size": None}),
}


def write_both(
    family: str, form: str, folder: Path, shards: bool = False, **sizes: Any
) -> tuple[Path, Path]:
    """Write a checkpoint in eight bits, and the same weights in float32 as torch computes them."""
    quantise, end, settings = FORMS[form]

    def pack(layer: str, weight: torch.Tensor) -> tuple[Tensors, torch.Tensor]:
        stored, scales, product = quantise(weight)
        tensors = {
            f"{layer}.weight": stored,
            f"{layer}.weight{end}": scales,
            f"{layer}.input_scale": torch.tensor(0.5),
        }
        return tensors, product

    return quantised.write_both(family, pack, settings, folder, shards, **sizes)


def opened(folder: Path) -> Source:
    source = ropeconv.open_source(str(folder))
    assert isinstance(source, Source)
    return source


CASES = [(form, outtype) for form in FORMS for outtype in ("f32", "bf16", "q8_0")]


@pytest.mark.parametrize(("form", "outtype"), sample(CASES, 4, seed=2))
def test_a_conversion_is_that_of_the_float32_weights(
    form: str, outtype: str, tmp_path: Path
) -> None:
    stored, plain = write_both("llama", form, tmp_path, **SIZES)
    recipe = recipe_of("yarn", 4.0)
    bake(stored, recipe, tmp_path / "stored.gguf", outtype=outtype)
    bake(plain, recipe, tmp_path / "plain.gguf", outtype=outtype)
    assert contents(tmp_path / "stored.gguf") == contents(tmp_path / "plain.gguf")


def test_experts_with_scales_in_another_file_are_converted(tmp_path: Path) -> None:
    stored, plain = write_both("deepseek_v3", "blocks", tmp_path, shards=True)
    recipe = recipe_of("yarn", 4.0)
    bake(stored, recipe, tmp_path / "stored.gguf", outtype="bf16")
    bake(plain, recipe, tmp_path / "plain.gguf", outtype="bf16")
    assert contents(tmp_path / "stored.gguf") == contents(tmp_path / "plain.gguf")


def test_the_type_is_bf16_unless_one_is_named(tmp_path: Path) -> None:
    stored, _ = write_both("llama", "blocks", tmp_path, **SIZES)
    plan = bake(stored, recipe_of("yarn", 4.0), tmp_path / "out.gguf", outtype="auto")
    assert isinstance(plan, ExportPlan)
    assert plan.exported.outtype == "BF16"
    assert any("FP8" in note for note in plan.notes)


def test_the_output_is_validated_against_the_stored_weights(tmp_path: Path) -> None:
    pytest.importorskip("llama_cpp")
    stored, _ = write_both("llama", "blocks", tmp_path, **SIZES)
    bake(stored, recipe_of("yarn", 4.0), tmp_path / "out.gguf", outtype="f32")
    comparison = ropeconv.Comparison.open(tmp_path / "out.gguf", str(stored))
    result = ropeconv.validate_gguf(comparison)
    assert result.agrees, result.sentence


def test_a_checkpoint_that_keeps_eight_bits_is_validated_on_a_cpu(tmp_path: Path) -> None:
    stored, _ = write_both("llama", "blocks", tmp_path, **SIZES)
    apply(make_plan(stored, recipe_of("yarn", 4.0), tmp_path / "out"))
    result = validate(tmp_path / "out", stored, tokens=128)
    assert result.agrees, result.sentence


def test_any_range_of_a_file_is_that_of_the_whole(tmp_path: Path) -> None:
    stored, plain = write_both("llama", "blocks", tmp_path, **SIZES)
    source = dequantised(opened(stored))
    assert isinstance(source, DequantisedCheckpoint)
    [file] = source.generated_files()
    assert file.stream is not None
    whole = b"".join(map(bytes, file.stream()))
    assert len(whole) == file.size
    random = np.random.default_rng(0)
    for _ in range(40):
        start, stop = sorted(random.integers(0, len(whole), 2).tolist())
        assert source.read(file.name, start, stop) == whole[start:stop]
    (tmp_path / "made.safetensors").write_bytes(whole)
    made = safetensors.torch.load_file(tmp_path / "made.safetensors")
    expected = safetensors.torch.load_file(plain / "model.safetensors")
    assert made.keys() == expected.keys()
    assert all(torch.equal(made[name].float(), expected[name].float()) for name in made)


@pytest.mark.parametrize(
    ("dtype", "numbers"),
    [
        (torch.float8_e4m3fn, EIGHT_BITS["F8_E4M3"]),
        (torch.float8_e5m2, EIGHT_BITS["F8_E5M2"]),
        (torch.float8_e8m0fnu, POWERS),
    ],
)
def test_every_byte_is_the_number_of_torch(dtype: torch.dtype, numbers: Any) -> None:
    expected = torch.arange(256, dtype=torch.uint8).view(dtype).float().numpy()
    np.testing.assert_array_equal(numbers, expected)


def test_stacks_have_the_scales_of_their_matrices(tmp_path: Path) -> None:
    stored, _ = write_both("llama", "blocks", tmp_path, **SIZES)
    tensors = safetensors.torch.load_file(stored / "model.safetensors")
    stack = torch.randn(3, 130, 140)
    parts = [by_blocks(matrix) for matrix in stack]
    numbers, scales, products = (torch.stack(part) for part in zip(*parts, strict=True))
    tensors |= {"experts.gate": numbers, "experts.gate_scale_inv": scales}
    by_matrix = stack.abs().amax((1, 2), keepdim=True) / LARGEST
    other, other_products = scaled(stack, by_matrix)
    tensors |= {"experts.up": other, "experts.up_scale": by_matrix}
    safetensors.torch.save_file(tensors, stored / "model.safetensors", {"format": "pt"})
    source = dequantised(opened(stored))
    for name, expected in (("experts.gate", products), ("experts.up", other_products)):
        [header] = source.headers.values()
        entry = header.tensors[name]
        start = header.data_start + entry.start
        raw = source.read("model.safetensors", start, header.data_start + entry.stop)
        assert torch.equal(
            torch.frombuffer(bytearray(raw), dtype=torch.float32).reshape(entry.shape), expected
        )


def test_other_checkpoints_are_not_touched(tmp_path: Path) -> None:
    source = opened(checkpoint("llama", tmp_path / "model"))
    assert dequantised(source) is source


def without_scale(tensors: Tensors, config: dict[str, Any]) -> None:
    del tensors["model.layers.0.self_attn.k_proj.weight_scale_inv"]


def other_shape(tensors: Tensors, config: dict[str, Any]) -> None:
    tensors["model.layers.0.self_attn.k_proj.weight_scale_inv"] = torch.ones(3, 3)


def other_block(tensors: Tensors, config: dict[str, Any]) -> None:
    config["quantization_config"]["weight_block_size"] = [0, "x"]


def whole_numbers(tensors: Tensors, config: dict[str, Any]) -> None:
    name = "model.layers.0.self_attn.k_proj.weight_scale_inv"
    tensors[name] = tensors[name].to(torch.int32)


WRONG: dict[str, tuple[Callable[[Tensors, dict[str, Any]], None], str]] = {
    "a weight without a scale": (without_scale, "without a scale"),
    "scales of another shape": (other_shape, "does not fit"),
    "a block that is none": (other_block, "weight_block_size"),
    "scales in whole numbers": (whole_numbers, "is I32"),
}


@pytest.mark.parametrize("name", WRONG)
def test_a_damaged_checkpoint_is_refused(name: str, tmp_path: Path) -> None:
    change, words = WRONG[name]
    stored, _ = write_both("llama", "blocks", tmp_path, **SIZES)
    tensors = safetensors.torch.load_file(stored / "model.safetensors")
    config = json.loads((stored / "config.json").read_text())
    change(tensors, config)
    safetensors.torch.save_file(tensors, stored / "model.safetensors", {"format": "pt"})
    (stored / "config.json").write_text(json.dumps(config))
    with pytest.raises(BadSource, match=words):
        bake(stored, recipe_of("yarn", 4.0), tmp_path / "out.gguf")
    assert not list(tmp_path.glob("*out.gguf*"))


def test_a_gguf_file_has_no_keys_of_the_quantisation(tmp_path: Path) -> None:
    stored, _ = write_both("llama", "whole", tmp_path, **SIZES)
    bake(stored, recipe_of("yarn", 4.0), tmp_path / "out.gguf", outtype="q8_0")
    assert not [
        key
        for key in GgufFile.open(tmp_path / "out.gguf").header.values
        if "quant" in key and "general" not in key
    ]
