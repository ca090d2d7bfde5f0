"""A whole gpt-oss with experts in MXFP4, as published: bytes by gguf-py, logits beside the dequantised checkpoint."""

from __future__ import annotations

import shutil
from pathlib import Path

import gguf
import numpy as np
import safetensors.torch
import torch

from ropeconv.formats.gguf import GgufFile
from ropeconv.rope.methods import REGISTRY as METHODS
from ropeconv.rope.recipe import Recipe

from ..support.gguf_files import contents
from ..support.llamacpp import bake, beyond, checkpoint, of_llamacpp, of_transformers

YARN = Recipe(METHODS["yarn"](4.0))
NUMBERS = torch.tensor([0, 0.5, 1, 1.5, 2, 3, 4, 6, -0.0, -0.5, -1, -1.5, -2, -3, -4, -6])
MXFP4 = gguf.GGMLQuantizationType.MXFP4


def packed(shape: tuple[int, ...], generator: torch.Generator) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Blocks, scales, and the numbers that they stand for, [experts, rows, columns]. shape: of these."""
    codes = torch.randint(0, 16, shape, generator=generator)
    scales = torch.randint(122, 125, (*shape[:2], shape[2] // 32), generator=generator)
    numbers = NUMBERS[codes] * torch.exp2(scales.float() - 127).repeat_interleave(32, -1)
    blocks = (codes[..., 0::2] | codes[..., 1::2] << 4).reshape(*scales.shape, 16)
    return blocks.to(torch.uint8), scales.to(torch.uint8), numbers


def published(folder: Path) -> tuple[Path, Path, dict[str, torch.Tensor]]:
    """A checkpoint with MXFP4 experts, the same with their numbers in float32, and these by name."""
    plain = checkpoint("gpt_oss", folder / "plain")
    tensors = safetensors.torch.load_file(plain / "model.safetensors")
    generator, quantised, expected = torch.Generator().manual_seed(0), dict(tensors), {}
    for name in [name for name in tensors if name.endswith(("gate_up_proj", "down_proj"))]:
        experts, columns, rows = tensors[name].shape
        blocks, scales, numbers = packed((experts, rows, columns), generator)
        del quantised[name]
        quantised |= {f"{name}_blocks": blocks, f"{name}_scales": scales}
        tensors[name], expected[name] = numbers.transpose(1, 2).contiguous(), numbers
    shutil.copytree(plain, folder / "quantised")
    safetensors.torch.save_file(quantised, folder / "quantised" / "model.safetensors", {"format": "pt"})
    safetensors.torch.save_file(tensors, plain / "model.safetensors", {"format": "pt"})
    return folder / "quantised", plain, expected


def test_a_whole_model_keeps_its_blocks_and_computes_what_its_numbers_do(tmp_path: Path) -> None:
    source, plain, expected = published(tmp_path)
    out = tmp_path / "out.gguf"
    plan = bake(source, YARN, out)
    file, made = GgufFile.open(out), contents(out)
    assert file.tensors["blk.0.ffn_down_exps.weight"].type == MXFP4
    down = np.frombuffer(made["blk.0.ffn_down_exps.weight"], np.uint8).reshape(-1, 17)
    up = np.frombuffer(made["blk.1.ffn_up_exps.weight"], np.uint8).reshape(-1, 17)
    wanted = expected["model.layers.0.mlp.experts.down_proj"].flatten().numpy()
    assert np.array_equal(gguf.quants.dequantize(down, MXFP4).flatten(), wanted)
    odd = expected["model.layers.1.mlp.experts.gate_up_proj"][:, 1::2].flatten().numpy()
    assert np.array_equal(gguf.quants.dequantize(up, MXFP4).flatten(), odd)
    reference = of_transformers(plain, plan)
    right = beyond(reference, of_llamacpp(out))
    control = beyond(reference, of_transformers(plain, None))
    wrong = beyond(reference, of_llamacpp(with_other_halves(out, tmp_path / "wrong.gguf")))
    for close, unscaled, swapped in zip(right, control, wrong, strict=True):
        assert close.kl_mean < 0.03  # llama.cpp multiplies MXFP4 by activations in Q8_0
        assert min(unscaled.kl_mean, swapped.kl_mean) > 300 * close.kl_mean


def with_other_halves(path: Path, out: Path) -> Path:
    """A copy whose experts have the halves of each byte the other way round."""
    shutil.copy(path, out)
    reader = gguf.GGUFReader(out, "r+")
    for tensor in reader.tensors:
        if tensor.tensor_type == MXFP4:
            blocks = tensor.data.reshape(-1, 17)
            blocks[:, 1:] = blocks[:, 1:] >> 4 | blocks[:, 1:] << 4
    reader.data.flush()
    return out
